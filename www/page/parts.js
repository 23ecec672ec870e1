// What several panels are made of.
import { attr, copy, freshId, h, show, text, toast } from './dom.js';

/** A button. */
export function button(words, onclick, properties) {
  return h('button', { type: 'button', onclick, ...properties }, words);
}

/** A button that is busy, and cannot be pressed twice, while its action runs; a failure is told in passing. */
export function actionButton(words, action, properties) {
  const node = button(words, async () => {
    if (node.getAttribute('aria-busy')) return;
    attr(node, 'aria-busy', 'true');
    try {
      await action();
    } catch (error) {
      toast(error.message, 'bad');
    } finally {
      attr(node, 'aria-busy', null);
    }
  }, properties);
  return node;
}

/** A button that asks again before it does what cannot be undone. */
export function confirmButton(words, question, action, properties) {
  let armed = null;
  const node = actionButton(words, async () => {
    if (!armed) {
      text(node, question);
      node.classList.add('armed');
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
    node.classList.remove('armed');
  }
  node.addEventListener('blur', disarm);
  return node;
}

/** Text in a box with a button that copies it. `update` changes the text. */
export function copyable(words, label, properties) {
  const code = h('code', null, words);
  const box = h('pre', { tabindex: 0, role: 'group', 'aria-label': label }, code);
  const node = h('div', { class: 'copyable', ...properties }, box, button('Copy', async () => {
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
  return h('div', { class: 'field' }, h('label', { for: control.id }, label), control, note);
}

/** A select of `[value, words]` pairs. */
export function choice(pairs, properties) {
  return h('select', properties, pairs.map(([value, words]) => h('option', { value }, words)));
}

/** A figure with its name. `update(value, note)` changes it. */
export function tile(label) {
  const value = h('dd', null, '–');
  const note = h('dd', { class: 'note' });
  const node = h('div', { class: 'tile' }, h('dt', null, label), value, note);
  return {
    node,
    update(words, more) {
      text(value, words);
      text(note, more ?? '');
      show(note, more);
    },
  };
}

/** A row of tiles: `{name: label}` gives `{node, name: tile}`. */
export function tiles(labels) {
  const made = Object.fromEntries(Object.entries(labels).map(([name, label]) => [name, tile(label)]));
  return { ...made, node: h('dl', { class: 'tiles' }, Object.values(made).map((one) => one.node)) };
}

/** A small mark with a meaning: good, warn, bad, or none. */
export function chip(words, tone = '', title) {
  return h('span', { class: `chip ${tone}`, title }, words);
}

/** Changes a chip. */
export function setChip(node, words, tone = '', title) {
  text(node, words);
  attr(node, 'class', `chip ${tone}`);
  attr(node, 'title', title);
}

/** What a list shows while there is nothing in it. */
export function empty(title, hint, ...more) {
  return h('div', { class: 'empty' }, h('strong', null, title), h('p', null, hint), ...more);
}

/** A disclosure. `fill(body)` makes its content when it is first opened. */
export function fold(summary, fill, properties) {
  const body = h('div', { class: 'fold' });
  const node = h('details', properties, h('summary', null, summary), body);
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
  node.addEventListener('click', async () => {
    if (node.getAttribute('aria-busy')) return;
    const on = node.getAttribute('aria-checked') !== 'true';
    attr(node, 'aria-busy', 'true');
    try {
      await act(on);
      attr(node, 'aria-checked', String(on));
    } catch (error) {
      toast(error.message, 'bad');
    } finally {
      attr(node, 'aria-busy', null);
    }
  });
  return { node, update: (on) => node.getAttribute('aria-busy') || attr(node, 'aria-checked', String(on)) };
}

/** A table that a phone can scroll sideways by itself. `update(rows)` keys rows by `keyOf`. */
export function table(label, columns) {
  const head = columns.map(([words, kind]) => h('th', { scope: 'col', class: kind }, words));
  const body = h('tbody');
  const node = h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label },
    h('table', null, h('thead', null, h('tr', null, head)), body));
  return { node, body };
}

/** A row of plain cells for [`table`]: texts or nodes; the first is the row's header. */
export function row(cells, columns) {
  return h('tr', null, cells.map((cell, at) => (at === 0
    ? h('th', { scope: 'row', class: columns[at][1] }, cell)
    : h('td', { class: columns[at][1] }, cell))));
}

/** A form that sends itself by script. */
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
  const trouble = h('div', { class: 'trouble', role: 'alert', hidden: true });
  const node = h('section', { class: `panel ${id}`, 'aria-labelledby': heading.id, hidden: true },
    h('div', { class: 'heading' }, heading, lead ? h('p', { class: 'lead' }, lead) : null,
      h('div', { class: 'actions' }, actions ?? [])),
    trouble, ...children);
  let running = null;
  async function refresh() {
    if (!load) return;
    if (running) return running;
    if (!node.dataset.loaded) attr(node, 'aria-busy', 'true');
    running = load();
    try {
      await running;
      node.dataset.loaded = 'yes';
      show(trouble, false);
    } catch (error) {
      if (!error.needsSignIn) {
        trouble.replaceChildren(h('span', null, error.message ?? String(error)), button('Try again', refresh, { class: 'small' }));
        show(trouble, true);
      }
      if (!error.status && error.code !== 'unreachable') console.error(error);
    } finally {
      running = null;
      attr(node, 'aria-busy', null);
    }
  }
  return { id, title, every, node, heading, refresh, ...more };
}

/** Buttons of which one is pressed. `picked(id)` is called when another one is. */
export function tabs(label, pairs, picked) {
  const node = h('div', { class: 'tabs', role: 'group', 'aria-label': label });
  pairs.forEach(([id, words], at) => node.append(button(words, () => {
    for (const other of node.children) attr(other, 'aria-pressed', String(other.dataset.id === id));
    picked(id);
  }, { 'data-id': id, 'aria-pressed': String(at === 0) })));
  return node;
}
