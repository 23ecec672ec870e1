// The request log: every finished request as it happens, with what was tried before.
import { attr, h, keyed, show, text } from './dom.js';
import { feed, readBack } from './feed.js';
import { count, exact, ms, when } from './format.js';
import { button, chip, choice, empty, facts, finder, panel } from './parts.js';

/** Rows that stand in the document at once; the rest of what is kept can be searched. */
const ROWS_MAX = 150;
/** Rows are drawn at most this often, in milliseconds. */
const PAINT_EVERY_MS = 250;

const KINDS = {
	all: ['Everything', () => true],
	ok: ['Served', (one) => good(one)],
	failed: ['Failed', (one) => !good(one)],
	moved: ['Failed over', (one) => one.attempts.length > 0],
	cached: ['From the cache', (one) => Boolean(one.cache)],
	stream: ['Streams', (one) => one.stream],
};

function good(one) {
	return one.status === 200 && !one.error;
}

function served(one) {
	return one.providerId ? `${one.providerId}/${one.modelId}` : 'nobody';
}

function words(one) {
	return [one.requestedModel, one.resolution, served(one), one.client, one.error, one.status, one.id, one.preview?.prompt]
		.filter(Boolean).join(' ').toLowerCase();
}

export function requests() {
	const list = h('ol.log', { tabindex: -1, 'aria-label': 'Requests, newest first' });
	const search = finder('Model, provider, client, error…', release);
	const kind = choice(Object.entries(KINDS).map(([id, [label]]) => [id, label]), { 'aria-label': 'Which requests', onchange: release });
	const waiting = button('', release, { class: 'waiting', hidden: true });
	const nothing = empty('No request yet', 'As soon as an app asks something, it appears here.');
	const told = h('p.dim', { role: 'status' });
	const pause = button('Pause', () => {
		paused = !paused;
		text(pause, paused ? 'Go on' : 'Pause');
		attr(pause, 'aria-pressed', String(paused));
		if (!paused) release();
	}, { 'aria-pressed': 'false' });
	let paused = false;
	/** What was there when the list was last drawn anew: while it holds still it shows this. */
	let drawn = [];
	let due = null;
	let read = false;

	/** The list holds still while somebody reads: paused, a row opened, or scrolled into it. */
	function holds() {
		return paused || list.querySelector('details[open]') !== null || list.getBoundingClientRect().top < -200;
	}
	function release() {
		drawn = feed.records.slice();
		paint();
	}
	function paint() {
		due = null;
		if (self.node.hidden) return;
		if (!holds()) drawn = feed.records.slice();
		const wanted = search.value.trim().toLowerCase().split(/\s+/);
		const fits = drawn.filter((one) => KINDS[kind.value][1](one) && wanted.every((word) => words(one).includes(word)));
		const rows = fits.slice(0, ROWS_MAX);
		keyed(list, rows, (one) => one.key, line);
		const newest = feed.records.findIndex((one) => one.key === drawn[0]?.key);
		const news = newest < 0 ? feed.records.length : newest;
		text(waiting, news === 1 ? '1 new request' : `${news} new requests`);
		show(waiting, news);
		show(nothing, !feed.records.length && read);
		text(told, fits.length > rows.length ? `The newest ${rows.length} of ${fits.length} that fit; search finds the others.`
			: feed.records.length && !fits.length ? 'Nothing fits this search.' : '');
	}
	function soon() {
		due ??= setTimeout(paint, PAINT_EVERY_MS);
	}
	feed.listeners.add((what) => what === 'records' && soon());

	const self = panel({
		id: 'requests',
		title: 'Requests',
		shown: paint,
		async load() {
			if (!read) await readBack();
			read = true;
			paint();
		},
		actions: [pause],
		children: [h('div.bar', kind, search, waiting), list, nothing, told],
	});
	return self;
}

/** One request as a row that opens. Finished requests do not change, so there is nothing to update. */
export function line(one) {
	const tone = good(one) ? 'good' : one.status === 499 ? '' : 'bad';
	const marks = [
		one.attempts.length ? chip(`${one.attempts.length} failed first`, 'warn') : null,
		one.cache ? chip(`${one.cache} cache`, 'good') : null,
		one.context ? chip('refit', 'warn', one.context) : null,
		one.id?.includes('-notes-') ? chip('notes for another') : null,
		one.stream ? chip('stream') : null,
	];
	const body = h('div.detail');
	const fold = h('details', {
		ontoggle() {
			if (fold.open && !body.childNodes.length) body.append(...detail(one));
		},
	}, h('summary', when(one.at), chip(String(one.status), tone),
		h('span.what', h('b', one.requestedModel), h('span.dim', ` → ${served(one)}`)),
		h('span.marks', marks.filter(Boolean)),
		h('span.num.tokens', { title: 'Tokens in and out' }, `${one.estimated ? '~' : ''}${count(one.tokensIn)} + ${count(one.tokensOut)}`),
		h('span.num.took', ms(one.ms))), body);
	return { node: h('li', { 'data-key': one.key }, fold) };
}

function detail(one) {
	const list = facts('pairs');
	list.update([
		['at', exact(one.at)], ['request', one.id], ['client', one.client], ['operation', one.operation],
		['understood as', one.resolution], ['served by', served(one)], ['key', one.keyId],
		['tokens in', count(one.tokensIn)], ['tokens out', count(one.tokensOut)], ['first token', one.firstTokenMs === null ? null : ms(one.firstTokenMs)],
		['whole time', ms(one.ms)], ['cache', one.cache], ['refit', one.context], ['error', one.error],
	]);
	const parts = [list.node];
	if (one.attempts.length) {
		parts.push(h('h3', 'Tried before'), h('ol.attempts', one.attempts.map((attempt) => h('li', null,
			chip(attempt.status === null ? 'no answer' : String(attempt.status), 'bad'), ' ', h('code', `${attempt.providerId}/${attempt.modelId}`),
			attempt.ms === null ? '' : ` after ${ms(attempt.ms)}`, attempt.error ? h('p.words', attempt.error) : null))));
	}
	for (const [name, said] of [['Prompt', one.preview?.prompt], ['Answer', one.preview?.response]]) {
		if (said) parts.push(h('h3', name), h('pre.said', { tabindex: 0 }, said));
	}
	return parts;
}
