// Every setting with its value and where that value comes from; and what was changed on this page.
import { api } from './api.js';
import { h, show, toast, words } from './dom.js';
import { box, chipOf, confirmButton, copyable, empty, facts, finder, fold, panel, table } from './parts.js';

const SOURCES = { default: ['default', ''], file: ['configuration', 'good'], environment: ['variable', 'good'], '.env': ['.env', 'good'], override: ['this page', 'warn'] };

function told(one, value) {
	if (one.hidden) return one.set ? 'set, not shown' : 'not set';
	if (value === null || value === undefined) return '–';
	const whole = typeof value === 'string' ? value : JSON.stringify(value);
	return whole.length > 200 ? `${whole.slice(0, 200)}…` : whole;
}

export function settings() {
	const search = finder('Find a setting', paint);
	const changed = h('input', { type: 'checkbox', onchange: paint });
	const list = table('Settings', (one) => one.name, [
		['setting', (one) => h('span', h('code', one.name), restart.includes(one.name) ? h('small.dim', ' needs a restart') : '')],
		['value', () => words((one) => told(one, one.value), 'code')],
		['comes from', () => chipOf((one) => [...(SOURCES[one.source] ?? [one.source, '']), one.variable])],
		['default', (one) => h('code.dim', told(one, one.default))],
		['meaning', (one) => h('span', one.text, one.variables.length ? h('small.dim', ` ${one.variables.join(', ')}`) : '')],
	]);
	const nothing = empty('No such setting', 'None fits what you look for.');
	const paths = facts('pairs');
	const own = copyable('', 'the changes made here');
	const ownBox = box('Changed on this page', confirmButton('Undo all', 'Really undo all?', async () => {
		await api('/api/overrides', { method: 'DELETE' });
		toast('Everything is as the files say');
		await self.refresh();
	}, { class: 'small' }), h('p.dim', 'Kept in data/overrides.json. Provider files and the configuration stay as they were.'), own.node);
	let known = [];
	let restart = [];

	function paint() {
		const wanted = search.value.trim().toLowerCase();
		const fits = known.filter((one) => (!changed.checked || one.source !== 'default') && `${one.name} ${one.text} ${one.variables.join(' ')}`.toLowerCase().includes(wanted));
		list.update(fits);
		show(nothing, known.length && !fits.length);
	}

	const self = panel({
		id: 'settings',
		title: 'Settings',
		lead: 'A real variable beats .env, which beats the configuration file, which beats the default. Files are read again when they change.',
		every: 60_000,
		async load() {
			const answer = await api('/api/settings');
			[known, restart] = [answer.settings, answer.restart];
			paths.update(Object.entries(answer.paths));
			paint();
			const { overrides } = await api('/api/overrides');
			const some = Object.values(overrides).some((part) => part === null || Object.keys(part).length);
			own.update(JSON.stringify(overrides, null, 2));
			show(ownBox, some);
		},
		children: [
			h('div.bar', search, h('label.row', changed, 'Only what is set')), list.node, nothing, ownBox,
			fold('Where things are', (body) => body.append(paths.node), { class: 'wide' }),
		],
	});
	return self;
}
