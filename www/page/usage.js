// Usage over time: figures, charts with the same numbers as a table, and who used it.
import { api } from './api.js';
import { chart } from './chart.js';
import { h, keyed, show, text, words } from './dom.js';
import { count, money, ms, percent } from './format.js';
import { box, button, empty, facts, fold, panel, table, tabs } from './parts.js';

const RANGES = [['24h', '24 hours'], ['7d', '7 days'], ['30d', '30 days'], ['90d', '90 days']];
const GROUPS = { provider: ['Provider', 'byProvider'], model: ['Model', 'byModel'], key: ['Key', 'byKey'], client: ['Client', 'byClient'] };
const NOBODY = { provider: 'nobody was tried', model: 'no model', key: 'no key', client: 'without a key' };
const whole = (part) => (part === null || part === undefined ? null : 100 * part);

const spread = (which) => ['p50', 'p95'].map((name) => ({ name, of: (one) => one[which][name] }));

const CHARTS = [
	{ label: 'Requests', kind: 'bars', show: count, series: [{ name: 'served', of: (one) => one.ok }, { name: 'not served', of: (one) => one.failed + one.canceled }] },
	{ label: 'Tokens', kind: 'bars', show: count, series: [{ name: 'in and out', of: (one) => one.tokensIn + one.tokensOut }] },
	{ label: 'Success', kind: 'lines', show: percent, top: 100, series: [{ name: 'success', of: (one) => whole(one.successRate) }] },
	{ label: 'Latency', kind: 'lines', show: ms, series: spread('latencyMs') },
	{ label: 'First token', kind: 'lines', show: ms, series: spread('firstTokenMs') },
	{ label: 'Saved', kind: 'bars', show: money, series: [{ name: 'saved', of: (one) => one.savedUsd }] },
	{ label: 'Cost nothing (cache)', kind: 'lines', show: percent, top: 100, series: [{ name: 'share', of: (one) => whole(one.freeShare) }] },
];

/** The columns of figures, after the one that names the row. */
const FIGURES = [
	['requests', (one) => count(one.requests)], ['served', (one) => count(one.ok)], ['success', (one) => percent(whole(one.successRate))],
	['tokens in', (one) => count(one.tokensIn)], ['tokens out', (one) => count(one.tokensOut)], ['p50', (one) => ms(one.latencyMs.p50)],
	['p95', (one) => ms(one.latencyMs.p95)], ['first token p50', (one) => ms(one.firstTokenMs.p50)],
	['cost nothing', (one) => percent(whole(one.freeShare))], ['saved', (one) => money(one.savedUsd)],
].map(([title, of]) => [title, of, 'num']);

export function usage() {
	let range = '24h';
	let group = 'provider';
	let answer = null;
	const filters = {};
	const figures = facts('tiles');
	const charts = CHARTS.map(chart);
	const active = h('div.row');
	const groups = table('Usage by provider, model, key or client', (one) => `${group} ${one.id}`, [['name', filter], ...FIGURES]);
	const none = empty('No request in this time', 'Choose a longer one, or send something from the playground.');
	const errors = h('ul.plain');
	const times = table('Usage over time', (one) => one.at, [['time', (one) => tell(one.at)], ...FIGURES]);
	const span = h('span.dim');

	const tell = (at) => new Date(at).toLocaleString(undefined, answer.bucket === 'hour'
		? { weekday: 'short', hour: '2-digit', minute: '2-digit' } : { month: 'short', day: 'numeric' });

	async function load() {
		const query = new URLSearchParams({ range, tzOffset: -new Date().getTimezoneOffset(), ...filters });
		answer = await api(`/api/analytics?${query}`);
		paint();
	}
	function paint() {
		const { summary, timeline } = answer;
		figures.update([
			['requests', count(summary.requests), `${count(summary.failed)} failed, ${count(summary.canceled)} canceled`],
			['tokens', count(summary.tokensIn + summary.tokensOut), `${count(summary.tokensIn)} in, ${count(summary.tokensOut)} out`],
			['success', percent(whole(summary.successRate))],
			['latency p50', ms(summary.latencyMs.p50), `p95 ${ms(summary.latencyMs.p95)}`],
			['first token p50', ms(summary.firstTokenMs.p50), `p95 ${ms(summary.firstTokenMs.p95)}`],
			['saved', money(summary.savedUsd), 'at list prices'],
			['cost nothing', percent(whole(summary.freeShare)), `${count(summary.cached)} from the cache`],
		]);
		charts.forEach((one) => one.update(timeline, (point) => tell(point.at)));
		times.update(timeline.filter((one) => one.requests).reverse());
		paintGroups();
		keyed(errors, answer.errors, (one) => one.code, () => words((one) => `${one.code}: ${count(one.requests)} (${percent(whole(one.share))} of what failed)`, 'li'));
		show(errorBox, answer.errors.length);
		show(none, !summary.requests);
		keyed(active, Object.entries(filters), ([name, id]) => `${name} ${id}`, ([name, id]) => ({
			node: button(`${GROUPS[name][0]}: ${id || NOBODY[name]} ✕`, () => {
				delete filters[name];
				self.refresh();
			}, { class: 'small', title: 'Remove this filter' }),
		}));
		text(span, `since ${new Date(answer.from).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' })}`);
	}
	function paintGroups() {
		if (answer) groups.update(answer[GROUPS[group][1]]);
	}
	function filter(one) {
		const [name, id] = [group, one.id ?? ''];
		return button(id || NOBODY[name], () => {
			filters[name] = id;
			self.refresh();
		}, { class: 'link', title: 'Show only this' });
	}
	const errorBox = box('Why requests failed', [], errors);
	const self = panel({
		id: 'usage',
		title: 'Usage',
		every: 30_000,
		load,
		onRecords: () => range === '24h',
		actions: [tabs('Time', RANGES, (id) => {
			range = id;
			self.refresh();
		})],
		children: [
			h('div.row', span, active), none, figures.node, h('div.charts', charts.map((one) => one.node)),
			fold('The charts as a table', (body) => body.append(times.node), { class: 'wide' }),
			box('Who', tabs('Group by', Object.entries(GROUPS).map(([id, [title]]) => [id, title]), (id) => {
				group = id;
				paintGroups();
			}), groups.node), errorBox,
		],
	});
	return self;
}
