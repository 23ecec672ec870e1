// The first run: from no key to a first answer in three steps, on one screen.
import { away, h, show, text } from './dom.js';
import { pasteBox } from './keys.js';
import { button, choice, field } from './parts.js';
import { ask } from './stream.js';

/** Providers whose sign-up is quick and whose free tier is wide, best first. */
const EASY = ['groq', 'cerebras', 'google-ai', 'mistral', 'openrouter', 'cloudflare'];

/** The guide. `update(stats, providers)` tells it how far things are; it goes when all is done, or when it is sent away. */
export function guide(shared, snippetsNode, done) {
	const steps = [1, 2, 3].map((number) => h('li.step', h('span.number', { 'aria-hidden': 'true' }, String(number))));
	const title = (words) => h('h3', words);
	const pick = choice([]);
	const place = h('div');
	const link = h('p.row');
	let known = [];
	let shownFor = null;

	function choose() {
		const one = known.find((each) => each.id === pick.value);
		if (!one || shownFor === one.id) return;
		shownFor = one.id;
		link.replaceChildren(one.signup ? away(one.signup, `Get a free key from ${one.label}`) : '', one.terms?.note ? h('small', one.terms.note) : '');
		place.replaceChildren(pasteBox(one.id, one.label, done));
	}
	pick.addEventListener('change', choose);
	steps[0].append(h('div', title('Add a key'), h('p', 'A free tier needs an account at a provider, mostly without a card. One is enough to begin; more make it last longer.'),
		field('Provider', pick), link, place));

	const answer = h('p.said', { role: 'status' });
	const route = h('p.dim');
	const first = button('Ask “Say hello in five words.”', async () => {
		first.disabled = true;
		answer.textContent = '';
		text(route, 'Waiting…');
		try {
			const { headers } = await ask({ model: 'auto', messages: [{ role: 'user', content: 'Say hello in five words.' }] }, {
				onText: (piece) => answer.append(piece),
			});
			text(route, `Served by ${headers['x-freeway-provider'] ?? '?'} / ${headers['x-freeway-model'] ?? '?'}`);
			done();
		} catch (error) {
			text(route, error.message);
		} finally {
			first.disabled = false;
		}
	}, { class: 'primary' });
	steps[1].append(h('div', title('Ask something'), first, answer, route));
	steps[2].append(h('div', title('Point an app at it'), h('p', 'Any OpenAI client works: give it this base URL, a client key, and the model auto.'), snippetsNode));

	const node = h('section.box.guide', { 'aria-labelledby': 'guide-title', hidden: true },
		h('div.heading', h('h2', { id: 'guide-title' }, 'From nothing to a first answer'),
			button('Hide', () => show(node, false), { class: 'small' })), h('ol.plain', steps));
	let decided = false;
	return {
		node,
		update(stats, providers) {
			const ready = stats.providers.usable > 0;
			const served = stats.requests.ok > 0;
			// It comes when there is something to do, and stays to the end of this visit.
			if (!decided) show(node, !(ready && served));
			decided = true;
			steps[0].classList.toggle('done', ready);
			steps[1].classList.toggle('done', served);
			first.disabled = !ready;
			const open = providers.filter((one) => !one.keyless && one.enabled);
			if (!providers.length) text(link, 'There is no provider. Put one into providers/, or take the empty folder away: then the built-in ones count.');
			const order = (one) => (EASY.includes(one.id) ? EASY.indexOf(one.id) : EASY.length);
			if (!known.length && open.length) {
				known = open.toSorted((a, b) => order(a) - order(b));
				pick.append(...known.map((one) => h('option', { value: one.id }, one.label)));
				choose();
			}
		},
	};
}
