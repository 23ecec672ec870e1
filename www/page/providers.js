// Provider cards: is it well, what is left, and what to do when it is not.
import { api, part } from './api.js';
import { attr, away, h, keyed, show, text, toast } from './dom.js';
import { count, duration, ms, percent, setWhen, when } from './format.js';
import { importBox, keyRows, pasteBox, probe, probeReport } from './keys.js';
import { actionButton, chip, chipOf, copyable, empty, facts, finder, fold, panel, tabs, toggle } from './parts.js';

const TERMS = { ok: ['terms fine', 'good'], caution: ['terms: caution', 'warn'], ambiguous: ['terms: unclear', 'warn'], avoid: ['terms: avoid', 'bad'] };
const PERIODS = { s: 's', m: 'min', h: 'h', d: 'day', mo: 'month' };

/** What a limit counts: `rpm` is requests a minute. */
function metric(key) {
	const [, what, period] = /^([rt])p(s|mo?|h|d)$/.exec(key) ?? [];
	return what ? `${what === 'r' ? 'requests' : 'tokens'} / ${PERIODS[period]}` : key;
}

/** What a card's dot and word say: `[words, tone]`. */
export function state(provider) {
	if (!provider.enabled) return ['off', 'off'];
	if (!provider.configured) return ['needs a key', 'warn'];
	if (['invalid', 'forbidden'].includes(provider.health)) return ['key refused', 'bad'];
	if (provider.health === 'unreachable') return ['unreachable', 'bad'];
	if (provider.cooldownMsRemaining || provider.health === 'limited') return ['resting', 'bad'];
	const tried = provider.ok + provider.fail;
	if (tried >= 5 && provider.fail / tried > 0.2) return ['shaky', 'warn'];
	if (provider.reason === 'no_models') return ['no models yet', 'warn'];
	return provider.health === 'unknown' && !tried ? ['not tried yet', 'new'] : ['ready', 'good'];
}

const VIEWS = {
	all: ['All', () => true],
	ready: ['Ready', (one) => ['ready', 'shaky', 'not tried yet'].includes(state(one)[0])],
	key: ['Need a key', (one) => one.enabled && !one.configured],
	trouble: ['In trouble', (one) => state(one)[1] === 'bad' || state(one)[0] === 'shaky'],
	off: ['Off', (one) => !one.enabled],
};

export function providers(shared) {
	const grid = h('div.cards', { tabindex: -1 });
	const issues = h('ul.plain.issues');
	const nothing = empty('No provider here', 'None fits what you look for.');
	const search = finder('Find a provider', () => paint());
	const views = tabs('Which providers', Object.entries(VIEWS).map(([id, [label]]) => [id, label]), (id) => {
		view = id;
		paint();
	});
	let view = 'all';
	let known = [];
	const order = [];
	const rank = (one) => (one.enabled ? (one.configured ? 0 : 1) : 2);

	function paint() {
		const words = search.value.trim().toLowerCase();
		const fits = known.filter((one) => VIEWS[view][1](one) && `${one.label} ${one.id} ${one.envKeys.join(' ')}`.toLowerCase().includes(words));
		keyed(grid, fits, (one) => one.id, (one) => card(one, reload));
		show(nothing, known.length && !fits.length);
		for (const tab of views.children) {
			const [label, test] = VIEWS[tab.dataset.id];
			text(tab, `${label} ${known.filter(test).length}`);
		}
	}
	async function load() {
		const answer = await api('/api/providers?models=0');
		// Once in a useful order, and then left alone: a card that jumps away under one's hand helps nobody.
		for (const one of answer.providers.toSorted((a, b) => rank(a) - rank(b) || a.priority - b.priority)) if (!order.includes(one.id)) order.push(one.id);
		known = answer.providers.sort((a, b) => order.indexOf(a.id) - order.indexOf(b.id));
		keyed(issues, answer.issues, (one) => `${one.file}:${one.message}`, (one) => ({
			node: h('li', { class: one.level === 'error' ? 'bad' : 'warn' }, h('code', one.file), ` ${one.message}`),
		}));
		show(issues, answer.issues.length);
		paint();
		await forecast();
	}
	/** When a limit will be used up at the present rate, told at its bar. */
	async function forecast() {
		const { forecasts } = await api('/api/alerts');
		for (const { providerId, forecasts: each } of forecasts) {
			const bars = known.find((one) => one.id === providerId)?.bars ?? [];
			for (const { key, exhaustsInMs } of each) for (const bar of bars) if (bar.key === key) bar.dryInMs = exhaustsInMs;
		}
		paint();
	}
	function reload() {
		shared.refreshStats().catch(() => {});
		return self.refresh();
	}
	const self = panel({
		id: 'providers',
		title: 'Providers',
		every: 15_000,
		load,
		onRecords: () => true,
		actions: [
			actionButton('Read all files again', async () => {
				const { ok, usable } = await api('/api/reload', { method: 'POST' });
				toast(ok ? `Read again: ${usable} providers are ready` : 'A file is faulty; what was there before stays', ok ? 'good' : 'bad');
				await reload();
			}),
			actionButton('Check all keys', async () => {
				const { keys, actionable } = await api('/api/keyhealth', { method: 'POST' });
				toast(`${keys.length} keys checked, ${actionable.length} need a hand`, actionable.length ? 'bad' : 'good');
				await reload();
			}),
			actionButton('Fetch model lists', async () => {
				const { done } = await api('/api/refresh', { method: 'POST' });
				toast(done ? 'The model lists are fresh' : 'Some lists are still on their way');
				await reload();
			}),
		],
		children: [
			issues,
			h('div.bar', views, search),
			fold('Paste many keys at once', (body) => body.append(importBox(reload)), { class: 'wide' }),
			grid, nothing,
		],
	});
	return self;
}

function bar(first) {
	const name = h('span', metric(first.key));
	const used = h('span.num');
	const fill = h('i');
	const meter = h('div.meter', { role: 'meter', 'aria-label': `${metric(first.key)} used`, 'aria-valuemin': 0 }, fill);
	const reset = when(null);
	const dry = h('span.warn');
	const note = h('small.dim', first.window, h('span', ', again '), reset, dry);
	const node = h('div.quota', name, used, meter, note);
	const update = (one) => {
		text(used, `${count(one.used)} / ${count(one.limit)}`);
		fill.style.width = `${Math.min(100, one.pct)}%`;
		attr(meter, 'class', `meter ${one.pct > 85 ? 'bad' : one.pct >= 60 ? 'warn' : 'good'}`);
		attr(meter, 'aria-valuenow', Math.round(one.used));
		attr(meter, 'aria-valuemax', Math.round(one.limit));
		attr(meter, 'aria-valuetext', `${percent(one.pct)} of ${count(one.limit)}`);
		setWhen(reset, one.resetsAt);
		show(note.children[0], one.resetsAt);
		show(reset, one.resetsAt);
		text(dry, one.dryInMs ? `, used up in ${duration(one.dryInMs)}` : '');
	};
	return { node, update };
}

function card(first, done) {
	const { id, label } = first;
	const dot = h('i.dot', { 'aria-hidden': 'true' });
	const word = h('span.state');
	const enabled = toggle(`Use ${label}`, async (on) => {
		await api(`/api/providers/${part(id)}/enabled`, { body: { enabled: on } });
		done();
	});
	const numbers = facts('facts');
	const bars = h('div.quotas');
	const keys = keyRows(done);
	const rest = h('p.note');
	const error = fold('Last error', (body) => body.append(errorText), { class: 'error' });
	const errorText = h('p.words');
	const advice = h('div.advice');
	const adding = fold('Add a key', (body) => body.append(pasteBox(id, label, done)), { open: first.enabled && !first.configured });
	const report = h('div.told', { role: 'status' });
	const tags = h('div.tags');
	const limits = chipOf((one) => [`limits ${one.limitsSource === 'docs' ? 'documented' : one.limitsSource}`, one.limitsSource === 'unverified' ? 'warn' : '', 'Where the numbers of its limits come from']);
	const own = chip('changed here', '', 'Changed on this page; the provider file is as it was');
	const terms = first.terms ? chip(...(TERMS[first.terms.verdict] ?? [first.terms.verdict, '']), first.terms.note) : null;
	tags.append(...[terms, limits.node, first.local ? chip('on your network') : null, first.keyless ? chip('no key needed') : null, own].filter(Boolean));
	const ask = (words, validate) => actionButton(words, async () => {
		report.replaceChildren('Asking…');
		try {
			report.replaceChildren(...probeReport(await probe(id, validate)));
		} catch (fault) {
			report.replaceChildren(h('p.bad', fault.message));
		}
		done();
	}, { class: 'small', 'aria-label': `${words}: ${label}` });
	const asks = [ask('Probe', false), ask('Deep probe', true)];
	const more = fold('About', (body) => body.append(
		first.notes ? h('p', first.notes) : '', first.terms?.note ? h('p', `Terms: ${first.terms.note}`) : '',
		h('p.row', h('code', first.baseUrl ?? ''), first.docs ? away(first.docs, 'Documentation') : '', first.console ? away(first.console, 'Console') : ''),
		first.verifiedOn ? h('p.dim', `Facts of ${first.verifiedOn}`) : ''));
	const node = h('article.card', { 'data-provider': id, 'aria-label': label },
		h('header', dot, h('h2', label), word, enabled.node), tags, advice, numbers.node, bars, rest, keys.node,
		first.keyless ? null : adding, error,
		h('footer', asks, first.signup && !first.keyless ? away(first.signup, 'Get a key') : null), report, more);

	function update(one) {
		const [words, tone] = state(one);
		text(word, words);
		attr(node, 'data-state', tone);
		enabled.update(one.enabled);
		numbers.update(figures(one));
		keyed(bars, one.bars, (each) => `${each.key} ${each.window}`, bar);
		keys.update(one);
		text(rest, one.cooldownMsRemaining ? `Rests for another ${duration(one.cooldownMsRemaining)}.` : '');
		show(rest, one.cooldownMsRemaining);
		text(errorText, one.lastError);
		show(error, one.lastError);
		limits.update(one);
		show(own, one.override);
		advise(advice, one);
		show(numbers.node, one.configured);
		show(bars, one.configured);
		for (const ask of asks) show(ask, one.configured);
	}
	return { node, update };
}

function figures(one) {
	const tried = one.ok + one.fail;
	return [
		['success', tried ? percent((100 * one.ok) / tried) : '–', `${count(one.ok)} served, ${count(one.fail)} failed`],
		['latency', one.latencyMs ? ms(one.latencyMs) : '–', 'Typical time to an answer'],
		['first token', ms(one.firstTokenMs), 'Typical time to the first word of a stream'],
		['models', `${count(one.modelsEnabled)} / ${count(one.modelCount)}`, 'Switched on, of all'],
	];
}

/** What to do before it can serve: which variable to set, and where. */
function advise(node, one) {
	const wanted = one.configured || !one.enabled ? [] : one.missingVars.length ? one.missingVars : one.variables.slice(0, 1);
	// That a key is missing is said by the line for it.
	const trouble = one.enabled && one.reason !== 'no_key' ? one.configError : null;
	const mark = `${wanted.join()}|${trouble}`;
	if (node.mark === mark) return;
	node.mark = mark;
	node.replaceChildren();
	if (trouble) node.append(h('p', trouble));
	if (wanted.length) node.append(h('p.dim', 'Paste a key below, or put this into .env:'), ...wanted.map((name) => copyable(`${name}=`, `the line for ${name}`).node));
}
