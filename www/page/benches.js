// Who is not called for a while, why, and how to let them back.
import { api, clock, part } from './api.js';
import { h, show, toast } from './dom.js';
import { setWhen, when } from './format.js';
import { actionButton, chip, confirmButton, empty, panel, table } from './parts.js';

/** A bench's end moves by the way of the answer; less than this is no news, in milliseconds. */
const JITTER_MS = 1500;

export function benches() {
	const list = table('Benches', (one) => one.id, [
		['who', (one) => `${one.name} (${one.scope})`],
		['model', (one) => one.model ?? '–'],
		['key', (one) => (one.key ? h('code', one.key) : '–')],
		['because', (one) => chip(one.cause, 'warn')],
		['strikes', (one) => one.strikes, 'num'],
		['back', end],
		['', (one) => actionButton('Let back', async () => {
			await api(`/api/benches/${part(one.id)}`, { method: 'DELETE' });
			toast(`${one.name} may be called again`);
			await self.refresh();
		}, { class: 'small', 'aria-label': `Let back ${one.name} ${one.model ?? ''}` })],
	]);
	const nothing = empty('Nobody sits out', 'Every key, model and provider may be called.');
	const all = confirmButton('Let all back', 'Really all?', async () => {
		const { lifted } = await api('/api/benches', { method: 'DELETE' });
		toast(`${lifted} may be called again`);
		await self.refresh();
	});
	const self = panel({
		id: 'benches',
		title: 'Benches',
		lead: 'After a failure a key, a model or a provider is left alone for a while. A bench ends by itself.',
		every: 10_000,
		async load() {
			const { benches: known } = await api('/api/benches');
			list.update(known);
			show(nothing, !known.length);
			show(all, known.length);
		},
		onRecords: (fresh) => fresh.some((one) => one.attempts.length || one.status !== 200),
		actions: [all],
		children: [list.node, nothing],
	});
	return self;
}

function end() {
	const node = when(null);
	return {
		node,
		update(one) {
			const at = clock.now() + one.remainingMs;
			if (!node.at || Math.abs(node.at - at) > JITTER_MS) setWhen(node, at);
		},
	};
}
