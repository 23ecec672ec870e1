// Client keys: who may ask, with what rights; and what to type into an app.
import { api, part } from './api.js';
import { h, show, toast } from './dom.js';
import { count, whenOf } from './format.js';
import { STRATEGIES, box, busy, chip, choice, confirmButton, copyable, empty, field, fold, form, number, panel, table } from './parts.js';
import { snippets } from './snippets.js';

const SOURCES = { clients: 'made here', config: 'configuration', env: 'variable' };
const LIMITS = { rpm: 'Requests a minute', tpm: 'Tokens a minute', rpd: 'Requests a day', concurrency: 'At once' };

export function clients(shared) {
	const list = table('Client keys', (one) => `${one.source} ${one.id}`, [
		['name', (one) => one.name],
		['id', (one) => h('code', one.id)],
		['from', (one) => chip(SOURCES[one.source] ?? one.source)],
		['may use', rights],
		['limits', (one) => Object.entries(one.limits ?? {}).filter(([, limit]) => limit !== null).map(([each, limit]) => `${each} ${limit}`).join(', ') || '–'],
		['made', () => whenOf((one) => one.createdAt)],
		['', (one) => (one.revocable ? confirmButton('Revoke', 'Revoke it for good?', async () => {
			await api(`/api/clients/${part(one.id)}`, { method: 'DELETE' });
			toast(`The key of ${one.name} no longer works`);
			await self.refresh();
		}, { class: 'small', 'aria-label': `Revoke the key of ${one.name}` }) : '')],
	]);
	const busiest = table('Callers of the last minute', (one) => one.id, [
		['caller', (one) => names[one.id] ?? one.id],
		['requests a minute', (one) => one.rpm, 'num'],
		['tokens a minute', (one) => count(one.tpm), 'num'],
		['at once', (one) => one.inFlight, 'num'],
	]);
	let names = {};
	const nothing = empty('No client key', 'Every program on this machine may ask. The first key closes that: from then on each app needs one.');
	const code = snippets(shared);
	const name = h('input', { required: true, maxlength: 64, autocomplete: 'off', placeholder: 'laptop' });
	const models = h('input', { autocomplete: 'off', spellcheck: 'false', placeholder: 'auto, fast' });
	const strategy = choice(STRATEGIES);
	const cache = choice([['', 'as set'], ['true', 'on'], ['false', 'off']]);
	const limits = Object.fromEntries(Object.keys(LIMITS).map((one) => [one, number()]));
	const told = h('div.told', { role: 'status' });
	const make = h('button.primary', 'Make a key');
	const fresh = h('div.box', { role: 'group', 'aria-label': 'The new key', tabindex: -1, hidden: true });

	async function create() {
		if (!name.value.trim()) {
			told.replaceChildren(h('p.bad', 'Give the key a name, such as the app or machine that will use it.'));
			return name.focus();
		}
		const odd = Object.keys(limits).find((each) => !limits[each].validity.valid);
		if (odd) return told.replaceChildren(h('p.bad', `${LIMITS[odd]}: a whole number from 1 on, or nothing.`));
		const body = { name: name.value.trim() };
		const listed = models.value.split(',').map((one) => one.trim()).filter(Boolean);
		if (listed.length) body.models = listed;
		if (strategy.value) body.strategy = strategy.value;
		if (cache.value) body.cache = cache.value === 'true';
		const set = Object.entries(limits).filter(([, input]) => input.value).map(([each, input]) => [each, Number(input.value)]);
		if (set.length) body.limits = Object.fromEntries(set);
		await busy(make, async () => {
			const answer = await api('/api/clients', { body });
			// The first key closes the door behind it, unless there is an admin key; this one opens it again.
			const session = await api('/api/session', { quiet: true });
			if (!session.signedIn) await api('/api/session', { body: { key: answer.key }, quiet: true });
			making.reset();
			told.replaceChildren();
			fresh.replaceChildren(h('h2', `The key of ${answer.client.name}`), h('p.warn', 'It is shown this once. Copy it now; only its hash is kept.'), copyable(answer.key, 'the new key').node);
			show(fresh, true);
			fresh.focus();
			code.key(answer.key);
			await self.refresh();
		}, (error) => told.replaceChildren(h('p.bad', error.message)));
	}
	const making = form(create, { class: 'box', 'aria-label': 'A new client key' }, h('h2', 'A new client key'),
		h('div.fields', field('Name', name, 'Shown in the log and in usage')),
		fold('Rights and limits', (body) => body.append(h('div.fields', field('Models', models, 'Separated by commas; empty means all'),
			field('Strategy', strategy), field('Cache', cache), Object.entries(limits).map(([each, input]) => field(LIMITS[each], input))))),
		told, h('div.row', make));

	const self = panel({
		id: 'clients',
		title: 'Clients',
		every: 15_000,
		async load() {
			const answer = await api('/api/clients');
			list.update(answer.clients);
			names = Object.fromEntries(answer.clients.map((one) => [one.id, one.name]));
			busiest.update((await api('/api/alerts')).callers);
			show(nothing, !answer.clients.length);
			code.update(shared.stats);
		},
		children: [nothing, list.node, busiest.node, fresh, making, box('Connect an app', [], code.node)],
	});
	return self;
}

function rights(one) {
	return [one.models ? one.models.join(', ') : 'every model', one.strategy, one.cache === false ? 'no cache' : null].filter(Boolean).join('; ');
}
