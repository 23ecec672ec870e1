// Puts the page together: who may see it, which panel shows, and when anything is asked again.
import { api, doors } from './api.js';
import { attr, h, show, text, toast } from './dom.js';
import { feed, start, stop } from './feed.js';
import { count, duration, tick } from './format.js';
import { gate } from './gate.js';
import { overview } from './overview.js';
import { providers } from './providers.js';
import { log } from './log.js';
import { facts } from './parts.js';

/** Panels by the order of the navigation. Those that are not imported here come when they are first shown. */
const PANELS = [
	['overview', 'Overview', () => overview(shared)],
	['providers', 'Providers', () => providers(shared)],
	['requests', 'Requests', () => log(shared)],
	['usage', 'Usage', async () => (await import('./usage.js')).usage(shared)],
	['models', 'Models', async () => (await import('./models.js')).models(shared)],
	['benches', 'Benches', async () => (await import('./benches.js')).benches(shared)],
	['playground', 'Playground', async () => (await import('./playground.js')).playground(shared)],
	['sessions', 'Sessions', async () => (await import('./sessions.js')).sessions(shared)],
	['cache', 'Cache', async () => (await import('./cache.js')).cache(shared)],
	['clients', 'Clients', async () => (await import('./clients.js')).clients(shared)],
	['settings', 'Settings', async () => (await import('./settings.js')).settings(shared)],
];
/** How often the figures of the header are asked for, in milliseconds. */
const STATS_EVERY_MS = 10_000;
/** The least pause between two refreshes that events ask for. */
const CHANGE_PAUSE_MS = 1500;

/** What panels share. */
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
	await api('/api/session', { method: 'DELETE', quiet: true }).catch((error) => toast(error.message, 'bad'));
	shut();
});

// -- panels --

async function showPanel() {
	const wanted = location.hash.slice(1).split('/')[0];
	const [id, title, make] = PANELS.find(([known]) => known === wanted) ?? PANELS[0];
	const byHand = current !== null;
	if (current?.id === id) return;
	if (current) {
		current.scroll = scrollY;
		show(current.node, false);
	}
	for (const link of nav.children) attr(link, 'aria-current', link.hash === `#${id}` ? 'page' : null);
	document.title = `${title} · Freeway`;
	let panel = open.get(id);
	if (!panel) {
		panel = await make();
		open.set(id, panel);
		main.append(panel.node);
	}
	if (location.hash.slice(1) && location.hash.slice(1).split('/')[0] !== id && wanted) return;
	current = panel;
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

/** Something happened that the visible panel may show. */
function changed() {
	changeTimer ??= setTimeout(() => {
		changeTimer = null;
		if (!document.hidden && inside) {
			poll();
			refreshStats().catch(() => {});
		}
	}, CHANGE_PAUSE_MS);
}

feed.listeners.add((what, data) => {
	if (what === 'state') paintPulse();
	if (what === 'change') changed();
	if (what === 'records' && current?.onRecords?.(data)) changed();
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

async function enter() {
	inside = true;
	show(nav, true);
	show(vitals.node, true);
	start();
	refreshStats().catch(() => {});
	api('/api/session', { quiet: true }).then((session) => show(leave, session.by === 'cookie'), () => {});
	await showPanel();
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
	for (const [id, title] of PANELS) nav.append(h('a', { href: `#${id}` }, title));
	paintPulse();
	main.replaceChildren(entry.node);
	addEventListener('hashchange', () => inside && showPanel());
	document.addEventListener('visibilitychange', wake);
	setInterval(() => {
		if (document.hidden || !current) return;
		tick(current.node);
		if (shared.stats) paintStats();
	}, 1000);
	setInterval(() => !document.hidden && inside && refreshStats().catch(() => {}), STATS_EVERY_MS);
	const session = await api('/api/session', { quiet: true }).catch(() => ({ signedIn: true }));
	if (session.signedIn) await enter();
	else shut();
}

begin();
