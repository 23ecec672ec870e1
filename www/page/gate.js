// The way in: asks for the admin key once; what comes back is a cookie.
import { api } from './api.js';
import { h, show, text } from './dom.js';
import { busy, field, form } from './parts.js';

/** The sign-in. `entered` is called when the gateway lets us in. */
export function gate(entered) {
	const key = h('input', { type: 'password', name: 'key', autocomplete: 'current-password', spellcheck: 'false', required: true });
	const place = field('Admin key', key, ' ');
	const told = h('p.told', { role: 'alert' });
	const send = h('button.primary', 'Sign in');
	const enter = form(async () => {
		if (!key.value.trim()) {
			text(told, 'Type the key first.');
			key.focus();
			return;
		}
		text(told, '');
		await busy(send, async () => {
			await api('/api/session', { body: { key: key.value.trim() }, quiet: true });
			key.value = '';
			entered();
		}, (error) => {
			text(told, error.status === 401 ? 'That is not the key of this gateway.' : error.message);
			key.select();
		});
	}, null, h('input', { type: 'text', name: 'username', value: 'admin', autocomplete: 'username', hidden: true }),
	place, told, send);
	const closed = h('p', null);
	const node = h('section.gate', { 'aria-labelledby': 'gate-title', hidden: true },
		h('h1', { id: 'gate-title' }, 'Sign in to Freeway'), closed, enter);

	/** Shows what the gateway asks for; `session` is its answer to `GET /api/session`. */
	function ask(session) {
		const possible = session.how !== 'set_admin_key';
		show(enter, possible);
		const own = session.how === 'client_key';
		text(place.firstChild, own ? 'Client key' : 'Admin key');
		text(place.lastChild, `${own ? 'Any client key, since no admin key is set.' : 'The value of FREEWAY_ADMIN_KEY.'} It is exchanged for a cookie of 12 hours and kept nowhere.`);
		text(closed, possible
			? 'This page steers the gateway, so it is for its owner.'
			: session.message ?? 'Set FREEWAY_ADMIN_KEY on the gateway to use this page from another machine.');
		show(node, true);
		if (possible) key.focus();
	}
	return { node, ask, hide: () => show(node, false) };
}
