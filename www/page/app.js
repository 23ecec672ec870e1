// Puts the page together: who may see it, which panel shows, and when anything is asked again.
import { api, doors } from './api.js';
import { attr, complain, h, show, text } from './dom.js';
import { feed, start, stop } from './feed.js';
import { count, duration, tick } from './format.js';
import { gate } from './gate.js';
import { facts } from './parts.js';

/** Panels in the order of the navigation. Each is the file of its name, which comes when it is first shown. */
const PANELS = {
	overview: 'Overview', providers: 'Providers', requests: 'Requests', usage: 'Usage', models: 'Models', benches: 'Benches',
	playground: 'Playground', sessions: 'Sessions', cache: 'Cache', clients: 'Clients', settings: 'Settings',
};
/** How often the figures of the header are asked for, in milliseconds. */
const STATS_EVERY_MS = 10_000;
/** What a change waits for others of its kind, and the least pause between refreshes that requests cause. */
const CHANGE_PAUSE_MS = 1000;
const RECORDS_PAUSE_MS = 5000;

const shared = { stats: null, go: (id) => { location.hash = id; }, refreshStats };

const main = document.getElementById('main');
const nav = document.getElementById('nav');
const open = new Map();
let current = null;
let inside = false;

const entry = gate(() => {
	entry.hide();
	enter();
});

// -- the header --

const vitals = facts('vitals');
document.getElementById('vitals').replaceWith(vitals.node);
attr(vitals.node, 'aria-label', 'The gateway at a glance');
const pulse = document.getElementById('pulse');
const PULSE = { live: 'live', retrying: 'reconnecting', lost: 'disconnected', off: 'paused' };
let startedAt = null;

function paintStats() {
	const { stats } = shared;
	vitals.update([
		['providers ready', `${stats.providers.usable} / ${stats.providers.total}`, null, stats.providers.usable > 0 ? null : 'warn'],
		['models', count(stats.models.enabled)],
		['served', count(stats.requests.ok)],
		['failed', count(stats.requests.fail)],
		['strategy', stats.activeProfile ? `profile ${stats.activeProfile}` : stats.strategy],
		['up', duration(Date.now() - startedAt)],
	]);
}

async function refreshStats() {
	shared.stats = await api('/api/stats');
	startedAt = Date.now() - shared.stats.uptimeSec * 1000;
	paintStats();
}

function paintPulse() {
	attr(pulse, 'data-state', feed.state);
	text(pulse.lastElementChild, PULSE[feed.state]);
}

document.getElementById('theme').addEventListener('click', () => {
	const root = document.documentElement;
	const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
	root.dataset.theme = dark ? 'light' : 'dark';
	try {
		localStorage.setItem('freeway.theme', root.dataset.theme);
	} catch {
		// It holds for this visit, then.
	}
});

const leave = document.getElementById('leave');
leave.addEventListener('click', async () => {
	await api('/api/session', { method: 'DELETE', quiet: true }).catch(complain);
	shut();
});

// -- panels --

/** The panel that the address names; any other address, such as that of the skip link, leaves things as they are. */
function wanted() {
	const name = location.hash.slice(1) || 'overview';
	return Object.hasOwn(PANELS, name) ? name : current?.id ?? 'overview';
}

/** A browser never asks again for a module that did not come. So the page does, as soon as the gateway answers. */
async function again(error) {
	await api('/api/session', { quiet: true });
	// Right after the start that would go on for ever.
	if (performance.now() > 5000) location.reload();
	throw error;
}

async function showPanel() {
	const id = wanted();
	if (current?.id === id) return;
	if (!open.has(id)) {
		const module = await import(`./${id}.js`).catch(again);
		if (!open.has(id)) open.set(id, module[id](shared));
	}
	const panel = open.get(id);
	// Somebody may have gone on while it came.
	if (wanted() !== id || panel === current) return;
	const byHand = current !== null;
	if (current) {
		current.scroll = scrollY;
		show(current.node, false);
	}
	for (const link of nav.children) {
		attr(link, 'aria-current', link.hash === `#${id}` ? 'page' : null);
		if (link.hash === `#${id}`) nav.scrollLeft = link.offsetLeft - nav.clientWidth / 2;
	}
	document.title = `${PANELS[id]} · Freeway`;
	current = panel;
	if (!panel.node.parentNode) main.append(panel.node);
	show(panel.node, true);
	scrollTo(0, panel.scroll ?? 0);
	tick(panel.node);
	if (byHand) panel.heading.focus({ preventScroll: true });
	panel.shown?.();
	poll();
}

let pollTimer = null;

/** Asks for what the visible panel shows, and again after its pause. Nothing is asked while the page is hidden. */
async function poll() {
	clearTimeout(pollTimer);
	if (!inside || document.hidden || !current) return;
	const panel = current;
	await panel.refresh();
	if (panel === current && panel.every) {
		clearTimeout(pollTimer);
		pollTimer = setTimeout(poll, panel.every);
	}
}

let changeTimer = null;
let changedAt = 0;

/** Something happened that the visible panel may show. */
function changed(pause) {
	changeTimer ??= setTimeout(() => {
		changeTimer = null;
		changedAt = Date.now();
		if (document.hidden || !inside) return;
		poll();
		refreshStats().catch(() => {});
	}, Math.max(CHANGE_PAUSE_MS, changedAt + pause - Date.now()));
}

feed.listeners.add((what, data) => {
	if (what === 'state') paintPulse();
	if (data === 'live') {
		showPanel().catch(complain);
		if (current?.node.querySelector('.trouble:not([hidden])')) poll();
	}
	if (what === 'change') changed(CHANGE_PAUSE_MS);
	if (what === 'records' && current?.onRecords?.(data)) changed(RECORDS_PAUSE_MS);
});

// -- coming and going --

function shut() {
	inside = false;
	stop();
	show(nav, false);
	show(vitals.node, false);
	show(leave, false);
	if (current) show(current.node, false);
	current = null;
	api('/api/session', { quiet: true }).then((session) => entry.ask(session), (error) => {
		entry.ask({ how: 'admin_key', message: error.message });
	});
}

function enter() {
	inside = true;
	show(nav, true);
	show(vitals.node, true);
	start();
	refreshStats().catch(() => {});
	api('/api/session', { quiet: true }).then((session) => show(leave, session.by === 'cookie'), () => {});
	showPanel().catch(complain);
}

function wake() {
	if (!inside) return;
	if (document.hidden) {
		stop();
		clearTimeout(pollTimer);
		return;
	}
	start();
	refreshStats().catch(() => {});
	poll();
}

async function begin() {
	doors.shut = () => inside && shut();
	for (const [id, title] of Object.entries(PANELS)) nav.append(h('a', { href: `#${id}` }, title));
	paintPulse();
	main.replaceChildren(entry.node);
	// A link to where the address is already; it did not come before.
	nav.addEventListener('click', () => showPanel().catch(complain));
	addEventListener('hashchange', () => inside && showPanel().catch(complain));
	document.addEventListener('visibilitychange', wake);
	setInterval(() => {
		if (document.hidden || !current) return;
		tick(current.node);
		if (shared.stats) paintStats();
	}, 1000);
	setInterval(() => !document.hidden && inside && refreshStats().catch(() => {}), STATS_EVERY_MS);
	const session = await api('/api/session', { quiet: true }).catch(() => ({ signedIn: true }));
	if (session.signedIn) enter();
	else shut();
}

begin();
