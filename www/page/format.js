// Numbers and times for people. Pure, but for the clock.
import { clock } from './api.js';
import { attr, h, text } from './dom.js';

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

/** A count: 999, 12,345, 1.2 M. */
export function count(n) {
	if (n === null || n === undefined) return '–';
	if (Math.abs(n) < 100_000) return whole.format(n);
	if (Math.abs(n) < 1e6) return `${whole.format(n / 1e3)} k`;
	if (Math.abs(n) < 1e9) return `${(n / 1e6).toFixed(n < 1e7 ? 2 : 1)} M`;
	return `${(n / 1e9).toFixed(2)} G`;
}

export function percent(n) {
	if (n === null || n === undefined || Number.isNaN(n)) return '–';
	const digits = n === 0 || n === 100 || n >= 10 ? (n % 1 && n > 99 ? 1 : 0) : 1;
	return `${n.toFixed(digits)} %`;
}

export function ms(n) {
	if (n === null || n === undefined) return '–';
	if (n < 1000) return `${Math.round(n)} ms`;
	if (n < 60_000) return `${(n / 1000).toFixed(n < 10_000 ? 2 : 1)} s`;
	return duration(n);
}

const UNITS = [[86_400_000, 'd'], [3_600_000, 'h'], [60_000, 'min'], [1000, 's']];

/** A length of time in its one or two largest units: 3 d 4 h, 12 min. */
export function duration(length) {
	const total = Math.max(0, length);
	const at = UNITS.findIndex(([size]) => total >= size);
	if (at < 0) return '0 s';
	const [size, unit] = UNITS[at];
	const main = Math.floor(total / size);
	const next = UNITS[at + 1];
	const rest = next && at < 2 ? Math.floor((total % size) / next[0]) : 0;
	return rest ? `${main} ${unit} ${rest} ${next[1]}` : `${main} ${unit}`;
}

export function bytes(n) {
	if (n === null || n === undefined) return '–';
	const steps = ['B', 'KiB', 'MiB', 'GiB'];
	let at = 0;
	let size = n;
	for (; size >= 1024 && at < steps.length - 1; at += 1) size /= 1024;
	return `${at === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${steps[at]}`;
}

export function money(n) {
	if (n === null || n === undefined) return '–';
	if (n === 0) return '$0';
	if (n < 0.0001) return '< $0.0001';
	return `$${n.toFixed(n < 0.01 ? 4 : 2)}`;
}

export function relative(at) {
	const distance = at - clock.now();
	if (Math.abs(distance) < 1000) return 'now';
	return distance > 0 ? `in ${duration(distance)}` : `${duration(-distance)} ago`;
}

export function exact(at) {
	return new Date(at).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
}

/** A time that is told relative to now and goes on being true; its title has the exact one. */
export function when(at) {
	const node = h('time.when');
	setWhen(node, at);
	return node;
}

export function setWhen(node, at) {
	if (node.at === at) return;
	node.at = at;
	text(node, at ? relative(at) : '–');
	attr(node, 'datetime', at ? new Date(at).toISOString() : null);
	attr(node, 'title', at ? exact(at) : null);
}

export function whenOf(of) {
	const node = when(null);
	return { node, update: (item) => setWhen(node, of(item)) };
}

export function tick(root) {
	for (const node of root.getElementsByClassName('when')) if (node.at) text(node, relative(node.at));
}
