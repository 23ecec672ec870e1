// A place to ask something and see who answers, how fast, and by which way.
import { api } from './api.js';
import { attr, freshId, h, show, text } from './dom.js';
import { count, ms } from './format.js';
import { STRATEGIES, button, choice, empty, field, fold, form, number, panel } from './parts.js';
import { ask } from './stream.js';

/** Turns that are kept, in the document and in what is sent. */
const TURNS_MAX = 60;
const OFFERED_MAX = 400;

export function playground() {
	const offers = h('datalist', { id: freshId('models') });
	const model = h('input', { list: offers.id, value: 'auto', spellcheck: 'false', autocomplete: 'off' });
	const strategy = choice(STRATEGIES);
	const cache = choice([['', 'as set'], ['on', 'on'], ['off', 'off'], ['refresh', 'ask anew']]);
	const system = h('textarea', { rows: 2 });
	const heat = number({ min: 0, max: 2, step: 0.1 });
	const limit = number();
	const words = h('textarea', { rows: 3, 'aria-label': 'Your message', placeholder: 'Ask something. Ctrl+Enter sends it.' });
	const send = h('button.primary', 'Send');
	const stop = button('Stop', () => running?.abort(), { hidden: true });
	const fresh = button('New conversation', () => {
		running?.abort();
		messages = [];
		talk.replaceChildren();
		show(nothing, true);
		words.focus();
	});
	const talk = h('div.talk');
	const nothing = empty('Nothing asked yet', 'The answer comes as it is written, with the route that it took.');
	let messages = [];
	let running = null;

	words.addEventListener('keydown', (event) => {
		if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
			event.preventDefault();
			asking.requestSubmit();
		}
	});

	async function turn() {
		const said = words.value.trim();
		if (!said || running) return words.focus();
		words.value = '';
		show(nothing, false);
		messages.push({ role: 'user', content: said });
		talk.append(h('div.turn.user', h('div.said', said)));
		const answer = reply();
		talk.append(answer.node);
		while (talk.children.length > TURNS_MAX) talk.firstChild.remove();
		messages = messages.slice(-TURNS_MAX);
		// A new conversation may begin meanwhile; what is still said is no part of it.
		const mine = messages;
		answer.node.scrollIntoView({ block: 'nearest' });
		running = new AbortController();
		show(stop, true);
		attr(send, 'aria-busy', 'true');
		const body = { model: model.value.trim() || 'auto', messages: [...(system.value.trim() ? [{ role: 'system', content: system.value.trim() }] : []), ...messages] };
		if (heat.value) body.temperature = Number(heat.value);
		if (limit.value) body.max_tokens = Number(limit.value);
		const headers = { ...(strategy.value && { 'x-freeway-strategy': strategy.value }), ...(cache.value && { 'x-freeway-cache': cache.value }) };
		const whole = await answer.run(body, headers, running.signal);
		if (whole) mine.push({ role: 'assistant', content: whole });
		else mine.pop();
		running = null;
		show(stop, false);
		attr(send, 'aria-busy', null);
	}

	const asking = form(turn, { class: 'box' },
		words,
		h('div.row', send, stop, fresh),
		h('div.fields', field('Model', model, 'A model, an alias, a profile, or auto'), offers),
		fold('More settings', (body) => body.append(h('div.fields', field('Strategy', strategy), field('Cache', cache),
			field('Temperature', heat), field('Most tokens', limit)), field('System message', system))));

	return panel({
		id: 'playground',
		title: 'Playground',
		async load() {
			if (offers.children.length) return;
			const { data } = await api('/v1/models?available=1');
			offers.append(...data.slice(0, OFFERED_MAX).map((one) => h('option', { value: one.id })));
		},
		children: [talk, nothing, asking],
	});
}

/** One answer as it grows. `run` asks, and gives the whole text, or nothing when there is none. */
function reply() {
	const said = document.createTextNode('');
	const thought = document.createTextNode('');
	const thinking = h('details', { hidden: true }, h('summary.dim', 'Reasoning'), h('div.thought', thought));
	const who = h('div.who', 'waiting…');
	const route = h('div.route');
	const error = h('p.bad', { role: 'alert' });
	const box = h('div.said', { 'aria-busy': 'true' }, said);
	const node = h('div.turn', who, thinking, box, error, route);

	async function run(body, headers, signal) {
		const begun = performance.now();
		let first = null;
		try {
			const { usage } = await ask(body, {
				signal,
				headers,
				onHead: (told) => tellRoute(route, told),
				onThought(piece) {
					thought.appendData(piece);
					show(thinking, true);
				},
				onText(piece) {
					first ??= performance.now();
					said.appendData(piece);
					text(who, `${(first - begun).toFixed(0)} ms to the first word`);
				},
			});
			const took = performance.now() - begun;
			text(who, [first ? `${ms(first - begun)} to the first word` : null, `${ms(took)} in all`,
				usage ? `${count(usage.prompt_tokens)} + ${count(usage.completion_tokens)} tokens` : null].filter(Boolean).join(' · '));
		} catch (fault) {
			text(who, fault.name === 'AbortError' ? 'stopped' : `after ${ms(performance.now() - begun)}`);
			if (fault.name !== 'AbortError') text(error, fault.message);
		} finally {
			attr(box, 'aria-busy', null);
		}
		return said.data;
	}
	return { node, run };
}

function tellRoute(node, headers) {
	const told = Object.entries(headers).filter(([name]) => name.startsWith('x-freeway-') || name === 'x-request-id');
	node.replaceChildren(...told.map(([name, value]) => h('code', `${name}: ${value}`)));
}
