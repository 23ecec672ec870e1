// The first panel: how things are, what needs a hand, what happened last, and how to connect an app.
import { api } from './api.js';
import { h, keyed, show, text } from './dom.js';
import { feed } from './feed.js';
import { count, duration, ms, percent } from './format.js';
import { guide } from './guide.js';
import { line } from './requests.js';
import { box, chip, chipOf, empty, facts, panel } from './parts.js';
import { state } from './providers.js';
import { snippets } from './snippets.js';

const LAST_SHOWN = 8;
const LEVELS = { exhausted: 'bad', critical: 'bad', warn: 'warn', ok: 'good' };

export function overview(shared) {
	const figures = facts('tiles');
	const alerts = h('ul.plain.alerts', { tabindex: -1 });
	const calm = h('p.good', 'Nothing needs your attention.');
	const strip = h('div.strip', { tabindex: -1 });
	const last = h('ol.log', { tabindex: -1, 'aria-label': 'Last requests' });
	const none = empty('No request yet', 'The playground sends one; so does any app that you point here.');
	const clients = snippets(shared);
	const inGuide = snippets(shared);
	const start = guide(shared, inGuide.node, () => self.refresh());

	const connect = box('Connect an app', [], clients.node);

	function paintRecords() {
		keyed(last, feed.records.slice(0, LAST_SHOWN), (one) => one.key, line);
		show(none, !feed.records.length);
		if (!shared.stats) return;
		const { requests, providers, uptimeSec } = shared.stats;
		const { length } = feed.records;
		const done = feed.records.filter((one) => one.status === 200).map((one) => one.ms).sort((a, b) => a - b);
		figures.update([
			['providers ready', `${providers.usable} of ${providers.total}`],
			['requests served', count(requests.ok), `in ${duration(uptimeSec * 1000)}`],
			['success', requests.requests ? percent((100 * requests.ok) / requests.requests) : '–', requests.fail ? `${count(requests.fail)} failed` : ''],
			['typical latency', done.length ? ms(done[done.length >> 1]) : '–', `median of the last ${done.length}`],
			['from the cache', length ? percent((100 * feed.records.filter((one) => one.cache).length) / length) : '–', `of the last ${length}`],
		]);
	}
	let due = null;
	feed.listeners.add((what) => {
		if (what !== 'records' || self.node.hidden) return;
		due ??= setTimeout(() => {
			due = null;
			paintRecords();
		}, 250);
	});

	async function load() {
		const [, { providers, issues }] = await Promise.all([shared.refreshStats(), api('/api/providers?models=0')]);
		const used = providers.filter((one) => one.enabled && (one.configured || one.ok + one.fail > 0));
		keyed(strip, used, (one) => one.id, health);
		show(strip, used.length);
		start.update(shared.stats, providers);
		show(connect, start.node.hidden);
		clients.update(shared.stats);
		inGuide.update(shared.stats);
		paintRecords();
		const told = await api('/api/alerts');
		const raised = [
			...issues.map((one) => ({ level: one.level === 'error' ? 'critical' : 'warn', source: one.file, message: one.message })),
			...told.alerts.filter((one) => one.level !== 'ok' && one.source !== 'registry'),
		];
		keyed(alerts, raised, (one) => `${one.source} ${one.providerId ?? ''} ${one.message}`, (one) => ({
			node: h('li', chip(one.level, LEVELS[one.level] ?? ''), h('span', one.providerId ? h('b', `${one.providerId} `) : '', one.message), h('small.dim', one.source)),
		}));
		show(calm, !raised.length);
	}
	const self = panel({
		id: 'overview',
		title: 'Overview',
		every: 15_000,
		load,
		shown: paintRecords,
		onRecords: () => true,
		children: [
			start.node, figures.node,
			h('div.columns',
				box('Alerts', [], calm, alerts),
				box('Providers', h('a', { href: '#providers' }, 'All providers'), strip)),
			box('Last requests', h('a', { href: '#requests' }, 'All requests'), last, none),
			connect,
		],
	});
	return self;
}

/** A provider as a word with a dot, and how full its fullest limit is. */
function health(first) {
	const dot = h('i.dot', { 'aria-hidden': 'true' });
	const word = chipOf((one) => [state(one)[0], state(one)[1]]);
	const full = h('span.num.dim');
	const node = h('a.health', { href: '#providers' }, dot, h('b', first.label), word.node, full);
	const update = (one) => {
		node.dataset.state = state(one)[1];
		word.update(one);
		const fullest = one.bars.reduce((most, bar) => Math.max(most, bar.pct), 0);
		text(full, one.bars.length ? `${percent(fullest)} used` : '');
	};
	return { node, update };
}
