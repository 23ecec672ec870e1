// Small charts: drawn as SVG, read with the pointer or the arrow keys, told to screen readers value by value.
import { attr, h, text } from './dom.js';

/** Height of the drawing in its own units; the width is the number of values. */
const TALL = 100;

/**
 * A chart of `{label, kind: 'bars'|'lines', series: [{name, of(point)}], show(value), top}`; `top` is the least upper
 * end of the scale. `update(points, tell)` draws; `tell(point)` names a point's time.
 */
export function chart({ label, kind, series, show, top = 0 }) {
	const value = h('span.num.dim');
	const shapes = series.map((_, at) => h('path', { class: kind === 'bars' ? (at ? 'part' : 'area') : `curve ${at ? 'second' : ''}` }));
	const here = h('line.here', { y1: 0, y2: TALL, hidden: true });
	const svg = h('svg', { preserveAspectRatio: 'none', 'aria-hidden': 'true' }, h('g', null), shapes, here);
	const reader = h('div', { role: 'slider', tabindex: 0, 'aria-label': label, 'aria-valuemin': 0 }, svg);
	const ends = h('div.axis', { 'aria-hidden': 'true' }, h('span'), h('span'), h('span'));
	const legend = series.length > 1
		? h('div.legend', series.map(({ name }, at) => h('span', { class: `key ${at ? (kind === 'bars' ? 'part' : 'second') : ''}` }, name)))
		: null;
	const node = h('figure.box.chart', h('figcaption', h('b', label), value), reader, ends, legend);
	let points = [];
	let tell = () => '';
	let at = 0;
	let pointed = false;

	function words(point) {
		const values = series.map(({ name, of }) => `${series.length > 1 ? `${name} ` : ''}${show(of(point))}`);
		return `${tell(point)}: ${values.join(', ')}`;
	}
	function point(index, seen) {
		if (!points.length) return;
		pointed = seen;
		at = Math.max(0, Math.min(points.length - 1, index));
		text(value, words(points[at]));
		attr(reader, 'aria-valuenow', at);
		attr(reader, 'aria-valuetext', words(points[at]));
		attr(here, 'x1', at + 0.5);
		attr(here, 'x2', at + 0.5);
		attr(here, 'visibility', seen ? 'visible' : 'hidden');
	}
	reader.addEventListener('pointermove', (event) => {
		const { left, width } = reader.getBoundingClientRect();
		point(Math.floor(((event.clientX - left) / width) * points.length), true);
	});
	reader.addEventListener('pointerleave', () => point(points.length - 1, false));
	reader.addEventListener('blur', () => point(points.length - 1, false));
	reader.addEventListener('keydown', (event) => {
		const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: points.length - 1 };
		if (!(event.key in steps)) return;
		event.preventDefault();
		point(steps[event.key], true);
	});

	function update(next, name) {
		[points, tell] = [next, name];
		// Bars stand on each other, so the scale must hold their sum; curves share it.
		const height = (one) => (kind === 'bars'
			? series.reduce((sum, { of }) => sum + (of(one) ?? 0), 0)
			: Math.max(0, ...series.map(({ of }) => of(one) ?? 0)));
		const most = Math.max(top, ...points.map(height));
		const y = (amount) => TALL - (most ? (amount / most) * TALL : 0);
		attr(svg, 'viewBox', `0 0 ${points.length || 1} ${TALL}`);
		svg.firstChild.replaceChildren(...[0, TALL / 2, TALL].map((level) => h('line.grid', { x1: 0, x2: points.length, y1: level, y2: level })));
		const under = points.map(() => 0);
		series.forEach(({ of }, index) => {
			attr(shapes[index], 'd', kind === 'bars' ? bars(points, of, under, y) : curve(points, of, y));
		});
		attr(reader, 'aria-valuemax', Math.max(0, points.length - 1));
		text(ends.children[0], points.length ? tell(points[0]) : '');
		text(ends.children[1], most ? `scale to ${show(most)}` : 'nothing yet');
		text(ends.children[2], points.length ? tell(points.at(-1)) : '');
		if (!pointed) at = points.length - 1;
		point(at, pointed);
	}
	return { node, update };
}

function bars(points, of, under, y) {
	return points.map((one, at) => {
		const amount = of(one) ?? 0;
		if (!amount) return '';
		const [low, high] = [under[at], under[at] + amount];
		under[at] = high;
		return `M${at + 0.1} ${y(low)}V${y(high)}h.8V${y(low)}z`;
	}).join('');
}

/** A line through the values that are known; gaps stay gaps, and a lone value is a dash. */
function curve(points, of, y) {
	let path = '';
	let drawing = false;
	points.forEach((one, at) => {
		const amount = of(one);
		if (amount === null || amount === undefined) {
			drawing = false;
			return;
		}
		path += drawing ? `L${at + 0.5} ${y(amount)}` : `M${at + 0.2} ${y(amount)}H${at + 0.5}`;
		const next = points[at + 1] && of(points[at + 1]);
		if (next === null || next === undefined) path += `H${at + 0.8}`;
		drawing = true;
	});
	return path;
}
