// Provider keys: the paste box with its probe, and a whole `.env` at once with a look before anything is kept.
import { api, part } from './api.js';
import { h, keyed, show, text, toast } from './dom.js';
import { ms } from './format.js';
import { actionButton, busy, chip, chipOf, choice, field, fold, form } from './parts.js';

/** How each verdict on a key is told: words, tone. */
const VERDICTS = {
	healthy: ['working', 'good'],
	unknown: ['not tried yet', ''],
	limited: ['resting', 'warn'],
	invalid: ['refused', 'bad'],
	forbidden: ['not allowed', 'bad'],
	unreachable: ['unreachable', 'bad'],
	disabled: ['off', ''],
};

const verdict = (one) => VERDICTS[one] ?? [one];

/** Asks a provider what each of its keys can do. The answer's lines are for people. */
export async function probe(id, validate) {
	const { results } = await api(`/api/providers/${part(id)}/probe`, { body: { validate } });
	return results;
}

export function probeReport(results) {
	return results.map((result) => {
		const working = result.models.filter((model) => model.status === 'ok').length;
		const told = result.models.filter((model) => model.error && model.status !== 'ok');
		const limits = Object.entries(result.observedLimits ?? {}).map(([name, limit]) => `${name} ${limit}`);
		const lines = [
			result.discovered.length ? `${result.discovered.length} models listed` : null,
			result.validated || result.models.some((model) => model.ms !== null) ? `${working} of ${result.models.length} answered` : null,
			limits.length ? `limits seen: ${limits.join(', ')}` : null,
		].filter(Boolean);
		return h('div.report',
			h('p', chip(...verdict(result.auth)), ' ', h('code', result.keyMasked ?? 'no key'),
				` in ${ms(result.ms)}`, lines.length ? `, ${lines.join('; ')}` : ''),
			result.errors.map((words) => h('p.bad', words)),
			told.length ? fold(`${told.length} models did not answer`, (body) => body.append(h('ul.plain',
				told.map((model) => h('li', h('code', model.id), ` ${model.status}: ${model.error}`))))) : null);
	});
}

/** The paste box of one provider: keeps the key, tries it at once, and tells what came of it. */
export function pasteBox(id, label, done) {
	const key = h('input', { type: 'password', name: 'key', autocomplete: 'off', spellcheck: 'false', 'aria-label': `Key for ${label}`, placeholder: 'Paste a key' });
	const send = h('button.primary', 'Add');
	const told = h('div.told', { role: 'status' });
	const node = form(async () => {
		const words = key.value.trim();
		if (!words) return key.focus();
		told.replaceChildren('Keeping the key…');
		await busy(send, async () => {
			const kept = await api(`/api/providers/${part(id)}/key`, { body: { key: words } });
			key.value = '';
			told.replaceChildren(kept.known ? 'That key was there already. Trying it…' : `Kept ${kept.masked}. Trying it…`);
			done();
			if (kept.configError) throw new Error(kept.configError);
			told.replaceChildren(...probeReport(await probe(id, false)));
		}, (error) => told.replaceChildren(h('p.bad', error.message)));
		done();
	}, { class: 'paste' }, key, send, told);
	return node;
}

const STATES = {
	new: ['new', 'good'],
	known: ['there already', ''],
	duplicate: ['twice here', ''],
	unknown: ['which provider?', 'warn'],
	invalid: ['not usable', 'bad'],
};

/** Takes a whole `.env`, JSON or CSV: a preview with a choice, then the chosen keys. */
export function importBox(done) {
	const area = h('textarea', { rows: 6, spellcheck: 'false', autocomplete: 'off', placeholder: 'GROQ_API_KEY=gsk_…\nMISTRAL_API_KEY=…' });
	const list = h('ul.plain.picks');
	const told = h('div.told', { role: 'status' });
	const add = actionButton('Add the chosen keys', async () => {
		const select = [...picks.values()].filter((pick) => pick.box.checked).map((pick) => pick.index);
		if (!select.length) throw new Error('Choose at least one key.');
		const named = [...picks.values()].filter((pick) => pick.provider?.value).map((pick) => [pick.index, pick.provider.value]);
		const result = await api('/api/keys/import', { body: { text: area.value, select, providers: Object.fromEntries(named) } });
		area.value = '';
		reset();
		const skipped = result.skipped.map((one) => h('li', one.reason));
		told.replaceChildren(`${result.added.length} added. They are tried when they are first used; the probe of a card tries them now.`,
			skipped.length ? h('ul', skipped) : '');
		done();
	}, { class: 'primary', hidden: true });
	let picks = new Map();
	function reset() {
		picks = new Map();
		list.replaceChildren();
		show(add, false);
	}
	async function preview() {
		reset();
		if (!area.value.trim()) return area.focus();
		const seen = await api('/api/keys/import', { body: { text: area.value, preview: true } });
		const { providers } = await api('/api/providers?models=0');
		for (const entry of seen.entries) list.append(pick(entry, providers));
		show(add, seen.entries.length);
		told.replaceChildren(seen.entries.length ? `${seen.entries.length} found, ${seen.counts.new} new. Nothing is kept yet.` : 'There is no key in this text.',
			...seen.faults.map((fault) => h('p.warn', fault)));
	}
	function pick(entry, providers) {
		const box = h('input', { type: 'checkbox', disabled: entry.state === 'invalid' });
		box.checked = entry.state === 'new';
		const provider = entry.state === 'unknown'
			? choice([['', 'choose…'], ...providers.map((one) => [one.id, one.label])], { 'aria-label': `Provider of ${entry.name ?? entry.masked}` })
			: null;
		provider?.addEventListener('change', () => { box.checked = Boolean(provider.value); });
		picks.set(entry.index, { index: entry.index, box, provider });
		return h('li', h('label', box, h('code', entry.name ?? 'key'), ' ', h('code.dim', entry.masked)),
			provider ?? h('span', entry.provider ?? ''), chip(...(STATES[entry.state] ?? [entry.state])),
			entry.note ? h('small', entry.note) : null);
	}
	area.addEventListener('input', reset);
	return h('div.import',
		field('A whole .env, or an export of keys', area, 'Lines such as NAME=key; also JSON or CSV. You see what was found before anything is kept.'),
		h('div.row', actionButton('Look what is in it', preview), add), told, list,
		fold('Export the keys', (body) => body.append(
			h('p.warn', 'An export holds every provider key as plain text. Keep it like a password.'),
			h('p.row', ['env', 'json', 'csv'].map((format) => h('a', { href: `/api/keys/export?format=${format}`, download: `freeway-keys.${format}` }, format === 'env' ? '.env' : format.toUpperCase()))))));
}

export function keyRows(done) {
	const node = h('ul.plain.keys');
	const update = (next) => {
		keyed(node, next.keys, (key) => key.id, (key) => keyRow(next, key, done));
		show(node, next.keys.length);
	};
	return { node, update };
}

function keyRow(provider, first, done) {
	const state = chipOf((key) => verdict(key.status));
	const facts = h('span.dim');
	const error = h('small.bad');
	const removable = ['vault', 'runtime'].includes(first.source);
	const node = h('li', h('code', first.masked), h('span.dim', removable ? 'pasted' : first.source),
		state.node, facts, removable ? actionButton('Remove', async () => {
			await api(`/api/providers/${part(provider.id)}/key`, { method: 'DELETE', body: { keyId: first.id } });
			toast(`${first.masked} is removed`);
			done();
		}, { class: 'small', 'aria-label': `Remove the key ${first.masked} of ${provider.label}` }) : null, error);
	const update = (key) => {
		state.update(key);
		const tried = key.ok + key.fail;
		text(facts, [tried ? `${key.ok} of ${tried} served` : null, key.latencyMs ? ms(key.latencyMs) : null,
			key.cooldownMsRemaining ? `rests ${ms(key.cooldownMsRemaining)}` : null].filter(Boolean).join(' · '));
		const trouble = ['invalid', 'forbidden', 'unreachable'].includes(key.status) ? key.lastError ?? key.checkDetail : null;
		text(error, trouble);
		show(error, trouble);
	};
	return { node, update };
}
