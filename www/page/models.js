// The catalog: every model at every provider, a page at a time.
import { api } from './api.js';
import { complain, h, keyed, show, text } from './dom.js';
import { count, ms } from './format.js';
import { actionButton, button, chip, chipOf, choice, empty, finder, panel, table, toggle } from './parts.js';

const PAGE = 100;
const REASONS = { disabled: 'off', no_key: 'needs a key' };
/** A model's reference as a part of a path: its slashes stay. */
const path = (reference) => reference.split('/').map(encodeURIComponent).join('/');

export function models(shared) {
	const search = finder('Find a model', again);
	const provider = choice([['', 'Every provider']], { 'aria-label': 'Provider', onchange: again });
	const cap = choice([['', 'Any ability']], { 'aria-label': 'Ability', onchange: again });
	const profile = choice([['', 'anything that can serve']], { onchange: activate });
	const list = table('Models', (one) => one.ref, [
		['model', (one) => h('span', h('code', one.id), one.alias.length ? h('small.dim', ` ${one.alias.join(', ')}`) : '')],
		['provider', (one) => one.provider],
		['can', (one) => h('span.tags', one.caps.map((each) => chip(each)))],
		['context', (one) => (one.context ? count(one.context) : '–'), 'num'],
		['first token', (one) => ms(one.firstTokenMs), 'num'],
		['whole answer', (one) => ms(one.wholeMs), 'num'],
		['state', () => chipOf(state)],
		['use', (one) => use(one, () => self.refresh())],
	]);
	const nothing = empty('No such model', 'No model fits this search.');
	const told = h('span.dim', { role: 'status' });
	const back = button('‹ Before', () => turn(-PAGE));
	const on = button('Next ›', () => turn(PAGE));
	let offset = 0;
	let sent = 0;

	async function load() {
		const mine = sent += 1;
		const query = new URLSearchParams({ q: search.value.trim(), provider: provider.value, cap: cap.value, limit: PAGE, offset });
		for (const [name, value] of [...query]) if (!value) query.delete(name);
		const answer = await api(`/api/models?${query}`);
		// An answer that was overtaken by a newer search is no longer wanted.
		if (mine !== sent) return;
		if (offset && !answer.models.length) return again();
		list.update(answer.models);
		text(told, answer.matched ? `${count(offset + 1)}–${count(offset + answer.models.length)} of ${count(answer.matched)}` : '');
		show(nothing, !answer.matched);
		back.disabled = offset === 0;
		on.disabled = offset + PAGE >= answer.matched;
	}
	async function choices() {
		const [{ providers }, catalog] = await Promise.all([api('/api/providers?models=0'), api('/api/catalog')]);
		options(provider, providers, (one) => one.id, (one) => one.label);
		options(cap, catalog.caps, String, String);
		options(profile, catalog.profiles, (one) => one.name, (one) => `the profile ${one.name}`);
		profile.value = catalog.activeProfile ?? '';
		show(profile.parentNode, catalog.profiles.length);
	}
	async function activate() {
		try {
			// None is a choice, too, whatever the configuration names.
			await api('/api/overrides/activeProfile', { method: 'PUT', body: { name: profile.value || null } });
			await shared.refreshStats();
		} catch (error) {
			complain(error);
		}
		self.refresh();
	}
	function turn(by) {
		offset = Math.max(0, offset + by);
		seek();
	}
	let timer = null;
	function seek() {
		clearTimeout(timer);
		timer = setTimeout(() => load().catch(complain), 150);
	}
	function again() {
		offset = 0;
		seek();
	}
	const self = panel({
		id: 'models',
		title: 'Models',
		every: 60_000,
		async load() {
			await load();
			await choices();
		},
		actions: h('label.row', { hidden: true }, 'auto means', profile),
		children: [
			h('div.bar', search, provider, cap, told, back, on), list.node, nothing,
		],
	});
	return self;
}

function options(select, items, value, label) {
	keyed(select, items, value, (one) => ({ node: h('option', { value: value(one) }, label(one)) }));
}

function state(one) {
	if (!one.available) return [REASONS[one.unavailableReason] ?? one.unavailableReason ?? 'off', '', one.offReason];
	if (one.cooldownMsRemaining > 0) return ['resting', 'bad'];
	return [one.source === 'discovered' ? 'ready, found' : 'ready', 'good'];
}

/** The switch of a model, and the way back to what its file says. */
function use(first, done) {
	const change = async (how) => {
		await api(`/api/overrides/models/${path(first.ref)}`, how);
		await done();
	};
	const enabled = toggle(`Use ${first.ref}`, (on) => change({ method: 'PATCH', body: { enabled: on } }));
	const reset = actionButton('As in the file', () => change({ method: 'DELETE' }), { class: 'small', 'aria-label': `As in the file: ${first.ref}` });
	const update = (one) => {
		enabled.update(one.enabled);
		show(reset, one.override);
	};
	return { node: h('span.row', enabled.node, reset), update };
}
