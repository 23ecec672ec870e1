// Kept conversations: which there are, what was said, and how to forget them.
import { api, part } from './api.js';
import { complain, h, show, text, toast } from './dom.js';
import { bytes, count, whenOf } from './format.js';
import { button, confirmButton, empty, panel, table } from './parts.js';

/** Messages that are shown of one conversation; the newest are. */
const MESSAGES_MAX = 200;

/** A session at the API: its id may be used by several owners. */
const path = (one) => `/api/sessions/${part(one.id)}?owner=${one.owner ?? 'none'}`;

export function sessions() {
	const list = table('Sessions', (one) => `${one.owner} ${one.id}`, [
		['session', (one) => h('span', button(one.id, () => read(one), { class: 'link' }), one.ownerName ? h('small.dim', ` ${one.ownerName}`) : '')],
		['messages', (one) => count(one.messages), 'num'],
		['tokens', (one) => count(one.tokens), 'num'],
		['size', (one) => bytes(one.bytes), 'num'],
		['used', () => whenOf((one) => one.updatedAt)],
	]);
	const nothing = empty('No session', 'A request whose body says "session": "a-name" is kept here, word for word.');
	const reading = h('section.box', { 'aria-label': 'The conversation', tabindex: -1, hidden: true });
	const totals = h('span.dim');

	async function read(one) {
		try {
			const answer = await api(`${path(one)}&images=0`);
			const last = answer.messages.slice(-MESSAGES_MAX);
			const forget = confirmButton('Delete', 'Delete it for good?', async () => {
				await api(path(one), { method: 'DELETE' });
				toast(`${one.id} is deleted`);
				show(reading, false);
				await self.refresh();
			}, { class: 'small' });
			const summaries = answer.summaries.map((summary) => h('details', h('summary', `Summary of messages ${summary.fromSeq} to ${summary.toSeq}`), said(summary.content)));
			reading.replaceChildren(
				h('div.heading', h('h2', one.id), h('div.actions', forget)),
				answer.session.model ? h('p.dim', `It stays with ${answer.session.model} for now.`) : '', ...summaries,
				answer.messages.length > last.length ? h('p.dim', `The last ${last.length} of ${answer.messages.length} messages.`) : '',
				h('div.talk', last.map(message)));
			show(reading, true);
			reading.focus();
		} catch (error) {
			complain(error);
		}
	}
	const self = panel({
		id: 'sessions',
		title: 'Sessions',
		every: 30_000,
		onRecords: () => true,
		async load() {
			const answer = await api('/api/sessions');
			list.update(answer.sessions);
			show(nothing, !answer.sessions.length);
			text(totals, `${count(answer.totals.sessions)} kept, ${bytes(answer.totals.bytes)}`);
		},
		actions: [totals],
		children: [nothing, h('div.split', list.node, reading)],
	});
	return self;
}

const said = (words) => h('pre.said', { tabindex: 0 }, words);

function message(one) {
	const extra = one.extra && h('details', h('summary.dim', Object.keys(one.extra).join(', ')), said(JSON.stringify(one.extra, null, 2)));
	return h('div', { class: `turn ${one.role === 'user' ? 'user' : ''}` }, h('div.who', `${one.role} · ${count(one.tokens)} tokens`), said(plain(one.content)), extra);
}

/** The words of a message's content: text, or a list of parts. */
function plain(content) {
	if (!Array.isArray(content)) return content ?? '';
	return content.map((piece) => piece.text ?? `[${piece.type}: ${(piece.image_url?.url ?? '').slice(0, 90)}]`).join('\n');
}
