// Makes and updates elements. Words only ever become text nodes, so that nothing a provider or a client says can turn
// into markup; nodes are kept and changed in place, so that focus, scrolling and half-typed words survive.

const SVG = 'http://www.w3.org/2000/svg';
const SVG_TAGS = new Set(['svg', 'path', 'line', 'rect', 'circle', 'polyline', 'g']);

/**
 * An element: `h('p.dim', {title}, 'text', node)`. Classes may follow the tag; properties may be left out. Those named
 * `on...` are listeners, all others attributes; null and false leave one out, of children too.
 */
export function h(name, ...parts) {
	const [tag, ...classes] = name.split('.');
	const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
	if (classes.length) node.classList.add(...classes);
	const first = parts[0];
	const properties = first && typeof first === 'object' && !(first instanceof Node) && !Array.isArray(first) ? parts.shift() : {};
	for (const [key, value] of Object.entries(properties)) {
		if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
		else attr(node, key, value);
	}
	node.append(...parts.flat().filter((child) => child !== null && child !== undefined && child !== false));
	return node;
}

/** Sets an attribute if it differs; null and false remove it. */
export function attr(node, name, value) {
	if (value === null || value === undefined || value === false) {
		if (node.hasAttribute(name)) node.removeAttribute(name);
		return;
	}
	const text = value === true ? '' : String(value);
	if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

export function text(node, value) {
	const words = value === null || value === undefined ? '' : String(value);
	if (node.textContent !== words) node.textContent = words;
}

export function show(node, visible) {
	if (node.hidden === Boolean(visible)) node.hidden = !visible;
}

export function words(of, tag = 'span', properties = null) {
	const node = h(tag, properties);
	return { node, update: (item) => text(node, of(item)) };
}

/** A link to another site, for addresses that come from files: anything but http(s) is shown as text only. */
export function away(url, words) {
	if (!/^https?:\/\//i.test(url ?? '')) return h('span', words);
	return h('a', { href: url, target: '_blank', rel: 'noreferrer noopener' }, words);
}

const kept = new WeakMap();

/**
 * Makes the children of `parent` those of `items`: `make(item)` gives a view, `{node, update(item)}`, once per key;
 * `update` follows each time. Nodes that stay in order are never moved, and what else stands in `parent` is not touched.
 */
export function keyed(parent, items, keyOf, make) {
	const before = kept.get(parent) ?? new Map();
	const views = new Map();
	for (const item of items) {
		const key = keyOf(item);
		if (views.has(key)) continue;
		const view = before.get(key) ?? make(item);
		view.update?.(item);
		views.set(key, view);
	}
	let refocus = false;
	for (const [key, view] of before) {
		if (views.has(key)) continue;
		refocus ||= view.node.contains(document.activeElement);
		view.node.remove();
	}
	let cursor = before.size ? firstKept(parent, views) : null;
	for (const view of views.values()) {
		if (view.node === cursor) cursor = cursor.nextSibling;
		else moveBefore(parent, view.node, cursor);
	}
	kept.set(parent, views);
	// Whoever sat on what has gone goes on from its place, not from the top of the page.
	if (refocus) parent.closest('[tabindex]')?.focus({ preventScroll: true });
}

function firstKept(parent, views) {
	const nodes = new Set([...views.values()].map((view) => view.node));
	for (let node = parent.firstChild; node; node = node.nextSibling) if (nodes.has(node)) return node;
	return null;
}

function moveBefore(parent, node, cursor) {
	const focused = node.contains(document.activeElement) ? document.activeElement : null;
	parent.insertBefore(node, cursor);
	focused?.focus({ preventScroll: true });
}

let ids = 0;

export function freshId(stem) {
	ids += 1;
	return `${stem}-${ids}`;
}

/** Puts text on the clipboard; on plain HTTP, where browsers refuse the modern way, by a selection. */
export async function copy(words) {
	if (window.isSecureContext && navigator.clipboard) {
		try {
			await navigator.clipboard.writeText(words);
			return true;
		} catch {
			// Refused, as without focus; the old way may still work.
		}
	}
	const focused = document.activeElement;
	const area = h('textarea.offscreen', { readonly: true, 'aria-hidden': 'true', tabindex: -1 });
	area.value = words;
	document.body.append(area);
	area.select();
	const done = document.execCommand('copy');
	area.remove();
	focused?.focus({ preventScroll: true });
	return done;
}

export const complain = (error) => toast(error.message, 'bad');

/** Tells something in passing; screen readers hear it. */
export function toast(words, tone = 'good') {
	const note = h('p', { class: `toast ${tone}` }, words);
	const home = document.getElementById('toasts');
	home.append(note);
	while (home.children.length > 4) home.firstChild.remove();
	setTimeout(() => note.remove(), tone === 'bad' ? 9000 : 4000);
}
