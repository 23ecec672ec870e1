// What several panels are made of.
import { attr, complain, copy, freshId, h, keyed, show, text, toast } from './dom.js';

export const STRATEGIES = [['', 'as set'], ...['priority', 'round-robin', 'least-used', 'fastest'].map((one) => [one, one])];

export function button(words, onclick, properties) {
	return h('button', { type: 'button', onclick, ...properties }, words);
}

/** Runs an action once while `node` says that it is busy; `failed` hears of a failure, which else is told in passing. */
export async function busy(node, action, failed = complain) {
	if (node.getAttribute('aria-busy')) return;
	attr(node, 'aria-busy', 'true');
	try {
		await action();
	} catch (error) {
		failed(error);
	} finally {
		attr(node, 'aria-busy', null);
	}
}

/** A button that cannot be pressed twice while its action runs. */
export function actionButton(words, action, properties) {
	return button(words, (event) => busy(event.currentTarget, action), properties);
}

export function finder(words, oninput) {
	return h('input', { type: 'search', placeholder: words, 'aria-label': words, oninput });
}

export function number(properties) {
	return h('input', { type: 'number', min: 1, step: 1, inputmode: 'decimal', ...properties });
}

/** A button that asks again before it does what cannot be undone. */
export function confirmButton(words, question, action, properties) {
	const label = properties?.['aria-label'];
	let armed = null;
	const node = actionButton(words, async () => {
		if (!armed) {
			text(node, question);
			if (label) attr(node, 'aria-label', `${question} ${label}`);
			node.classList.add('bad');
			armed = setTimeout(disarm, 5000);
			return;
		}
		disarm();
		await action();
	}, properties);
	function disarm() {
		clearTimeout(armed);
		armed = null;
		text(node, words);
		attr(node, 'aria-label', label);
		node.classList.remove('bad');
	}
	node.addEventListener('blur', disarm);
	// The rest of a double click and a key held down have not read the question.
	node.addEventListener('click', (event) => event.detail > 1 && event.stopImmediatePropagation(), true);
	node.addEventListener('keydown', (event) => event.repeat && event.preventDefault());
	return node;
}

/** Text in a box with a button that copies it. `update` changes the text. */
export function copyable(words, label) {
	const code = h('code', words);
	const box = h('pre', { tabindex: 0, role: 'group', 'aria-label': label }, code);
	const node = h('div.copyable', box, button('Copy', async () => {
		const done = await copy(code.textContent);
		toast(done ? 'Copied' : 'Select the text and copy it by hand', done ? 'good' : 'bad');
	}, { class: 'small', 'aria-label': `Copy ${label}` }));
	return { node, update: (next) => text(code, next) };
}

/** A labelled field. `control` is an input, a select or a textarea. */
export function field(label, control, hint) {
	control.id ||= freshId('field');
	const note = hint ? h('small', { id: `${control.id}-hint` }, hint) : null;
	if (note) control.setAttribute('aria-describedby', note.id);
	return h('div.field', h('label', { for: control.id }, label), control, note);
}

export function choice(pairs, properties) {
	return h('select', properties, pairs.map(([value, words]) => h('option', { value }, words)));
}

/** A small mark with a meaning: good, warn, bad, or none. */
export function chip(words, tone = '', title) {
	return h('span', { class: `chip ${tone}`, title }, words);
}

/** A view of a chip: `of(item)` gives its words, tone and title. */
export function chipOf(of) {
	const node = chip('');
	const update = (item) => {
		const [words, tone, title] = of(item);
		text(node, words);
		attr(node, 'class', `chip ${tone ?? ''}`);
		attr(node, 'title', title);
	};
	return { node, update };
}

/** What a list shows while there is nothing in it. */
export function empty(title, hint) {
	return h('div.empty', h('strong', title), h('p', hint));
}

export function box(title, actions, ...children) {
	return h('section.box', { 'aria-label': title }, h('div.heading', h('h2', title), h('div.actions', actions)), ...children);
}

/** A disclosure. `fill(body)` makes its content when it is first opened. */
export function fold(summary, fill, properties) {
	const body = h('div.fold');
	const node = h('details', properties, h('summary', summary), body);
	let filled = false;
	const ensure = () => {
		if (node.open && !filled) {
			filled = true;
			fill(body);
		}
	};
	node.addEventListener('toggle', ensure);
	ensure();
	return node;
}

/** A switch. `act(on)` must resolve before it moves. */
export function toggle(label, act) {
	const node = h('button', { type: 'button', class: 'switch', role: 'switch', 'aria-label': label });
	node.addEventListener('click', () => busy(node, async () => {
		const on = node.getAttribute('aria-checked') !== 'true';
		await act(on);
		attr(node, 'aria-checked', String(on));
	}));
	return { node, update: (on) => node.getAttribute('aria-busy') || attr(node, 'aria-checked', String(on)) };
}

/**
 * A table that a phone scrolls sideways by itself. A column is `[title, of, kind]`: what `of(item)` gives is shown: text
 * (asked for again at each update), a view (updated), or a node (left alone). The first column heads its row.
 */
export function table(label, keyOf, columns) {
	const head = columns.map(([title, , kind]) => h('th', { scope: 'col', class: kind }, title));
	const body = h('tbody');
	const node = h('div.scroll', { tabindex: 0, role: 'region', 'aria-label': label },
		h('table', h('thead', h('tr', head)), body));
	const row = (first) => {
		const cells = columns.map(([, of]) => of(first));
		const line = h('tr', { 'data-key': keyOf(first) }, cells.map((cell, at) => h(at ? 'td' : 'th', { scope: at ? null : 'row', class: columns[at][2] }, cell?.node ?? cell)));
		const update = (item) => cells.forEach((cell, at) => {
			if (cell?.update) cell.update(item);
			else if (!(cell instanceof Node)) text(line.children[at], columns[at][1](item));
		});
		return { node: line, update };
	};
	return {
		node,
		update(items) {
			keyed(body, items, keyOf, row);
			show(node, items.length);
		},
	};
}

/** Facts by name: `update([[name, value, more, tone]])`. What is more to say is a title, or with tiles a line below. */
export function facts(kind) {
	const node = h('dl', { class: kind });
	const fact = ([label]) => {
		const value = h('dd');
		const note = kind === 'tiles' ? h('dd.note') : null;
		return {
			node: h('div', { 'data-fact': label }, h('dt', label), value, note),
			update([, words, more, tone]) {
				text(value, words);
				attr(value, 'class', tone);
				if (note) text(note, more);
				else attr(value, 'title', more);
			},
		};
	};
	return { node, update: (pairs) => keyed(node, pairs.filter(([, value]) => value !== null && value !== undefined), ([label]) => label, fact) };
}

export function form(onsubmit, properties, ...children) {
	return h('form', {
		...properties,
		novalidate: true,
		onsubmit(event) {
			event.preventDefault();
			onsubmit(event.currentTarget);
		},
	}, ...children);
}

/**
 * A panel: a section with a heading. `load` is called when it is shown, when `every` milliseconds have passed, and
 * when something has changed; what it throws is told above the content, which stays.
 */
export function panel({ id, title, lead, every, load, children, actions, ...more }) {
	const heading = h('h1', { id: `title-${id}`, tabindex: -1 }, title);
	const trouble = h('div.trouble.bad', { role: 'alert', hidden: true });
	const node = h('section', { class: `panel ${id}`, 'aria-labelledby': heading.id, hidden: true },
		h('div.heading', heading, lead ? h('p.lead', lead) : null,
			h('div.actions', actions ?? [])),
		trouble, ...children);
	let running = null;
	let next = null;
	/** What is under way was asked before what has just changed: it is asked once more, after it. */
	function refresh() {
		if (running) {
			return next ??= running.then(() => {
				next = null;
				return refresh();
			});
		}
		return running = once().finally(() => { running = null; });
	}
	async function once() {
		if (!load) return;
		if (!node.dataset.loaded) attr(node, 'aria-busy', 'true');
		try {
			await load();
			node.dataset.loaded = 'yes';
			show(trouble, false);
		} catch (error) {
			if (!error.needsSignIn) {
				trouble.replaceChildren(h('span', error.message ?? String(error)), button('Try again', refresh, { class: 'small' }));
				show(trouble, true);
			}
			if (!error.status && error.code !== 'unreachable') console.error(error);
		} finally {
			attr(node, 'aria-busy', null);
		}
	}
	return { id, title, every, node, heading, refresh, ...more };
}

/** Buttons of which one is pressed. `picked(id)` is called when another one is. */
export function tabs(label, pairs, picked) {
	const node = h('div.tabs', { role: 'group', 'aria-label': label });
	pairs.forEach(([id, words], at) => node.append(button(words, () => {
		for (const other of node.children) attr(other, 'aria-pressed', String(other.dataset.id === id));
		picked(id);
	}, { 'data-id': id, 'aria-pressed': String(at === 0) })));
	return node;
}
