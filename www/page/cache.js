// What the answer cache saves, and how to empty it.
import { api } from './api.js';
import { h, show, text, toast } from './dom.js';
import { bytes, count, duration, percent, whenOf } from './format.js';
import { box, chipOf, confirmButton, empty, facts, panel, table } from './parts.js';

export function cache() {
	const mode = chipOf((one) => (one.enabled ? [one.mode, 'good'] : ['off']));
	const rule = h('p.dim');
	const exact = facts('tiles');
	const semantic = facts('tiles');
	const alike = box('Alike questions', [], semantic.node);
	const list = table('Answers kept last', (one) => `${one.key} ${one.createdAt}`, [
		['entry', (one) => h('code', one.key)],
		['answered by', (one) => `${one.providerId}/${one.modelId}`],
		['tokens', (one) => `${count(one.tokensIn)} + ${count(one.tokensOut)}`, 'num'],
		['size', (one) => bytes(one.bytes), 'num'],
		['hits', (one) => count(one.hits), 'num'],
		['kept', () => whenOf((one) => one.createdAt)],
		['until', () => whenOf((one) => one.expiresAt)],
	]);
	const nothing = empty('Nothing kept', 'Answers to requests with a low temperature or a seed are kept and given again.');
	const clear = confirmButton('Empty the cache', 'Really empty it?', async () => {
		const { removed } = await api('/api/cache', { method: 'DELETE' });
		toast(`${count(removed)} answers are forgotten`);
		await self.refresh();
	});
	const self = panel({
		id: 'cache',
		title: 'Cache',
		every: 15_000,
		onRecords: (fresh) => fresh.some((one) => one.cache),
		async load() {
			const answer = await api('/api/cache');
			const { exact: same, semantic: like } = answer;
			mode.update(answer);
			text(rule, `Answers live for ${duration(answer.ttlMs)}; ${answer.scope === 'key' ? 'each client has its own' : 'all clients share them'}. At most ${count(answer.maxEntries)}, ${bytes(answer.maxBytes)}.`);
			exact.update([
				['hit rate', percent(100 * same.hitRate), `${count(same.misses)} misses`],
				['hits', count(same.hits)],
				['joined a call', count(same.joined), 'shared with another client'],
				['tokens saved', count(same.tokensSaved)],
				['entries', count(same.entries), same.evicted ? `${count(same.evicted)} pushed out` : ''],
				['memory', bytes(same.bytes)],
			]);
			show(alike, like);
			if (like) {
				semantic.update([
					['hit rate', percent(100 * like.hitRate), `threshold ${answer.threshold}`],
					['hits', count(like.hits), `${count(like.misses)} misses`],
					['entries', count(like.entries), like.dims ? `${like.dims} dimensions` : ''],
					['memory', bytes(like.bytes)],
				]);
			}
			list.update(answer.recent);
			show(nothing, !answer.recent.length);
		},
		actions: [mode.node, clear],
		children: [rule, exact.node, alike, list.node, nothing],
	});
	return self;
}
