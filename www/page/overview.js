// The first panel: how things are, what needs a hand, what happened last, and how to connect an app.
import { api } from './api.js';
import { h, keyed, show, text } from './dom.js';
import { feed } from './feed.js';
import { count, duration, ms, percent } from './format.js';
import { guide } from './guide.js';
import { line } from './log.js';
import { chip, empty, panel, setChip, tiles } from './parts.js';
import { state } from './providers.js';
import { snippets } from './snippets.js';

/** Requests that are shown here. */
const LAST_SHOWN = 8;
const LEVELS = { exhausted: 'bad', critical: 'bad', warn: 'warn', ok: 'good' };

/** The panel. */
export function overview(shared) {
  const figures = tiles({ ready: 'providers ready', served: 'requests served', success: 'success', speed: 'typical latency', free: 'from the cache' });
  const alerts = h('ul', { class: 'plain alerts', tabindex: -1 });
  const calm = h('p', { class: 'calm' }, 'Nothing needs your attention.');
  const strip = h('div', { class: 'strip', tabindex: -1 });
  const last = h('ol', { class: 'log', tabindex: -1, 'aria-label': 'Last requests' });
  const none = empty('No request yet', 'The playground sends one; so does any app that you point here.');
  const clients = snippets(shared);
  const inGuide = snippets(shared);
  const start = guide(shared, inGuide.node, () => self.refresh());

  function paintRecords() {
    keyed(last, feed.records.slice(0, LAST_SHOWN), (one) => one.key, line);
    show(none, !feed.records.length);
    const done = feed.records.filter((one) => one.status === 200).map((one) => one.ms).sort((a, b) => a - b);
    const cached = feed.records.filter((one) => one.cache).length;
    figures.speed.update(done.length ? ms(done[done.length >> 1]) : '–', done.length ? `median of the last ${done.length}` : '');
    figures.free.update(feed.records.length ? percent((100 * cached) / feed.records.length) : '–', feed.records.length ? `of the last ${feed.records.length}` : '');
  }
  let due = null;
  feed.listeners.add((what) => {
    if (what !== 'records' || self.node.hidden) return;
    due ??= setTimeout(() => {
      due = null;
      paintRecords();
    }, 250);
  });

  async function load() {
    const [, { providers, issues }] = await Promise.all([shared.refreshStats(), api('/api/providers?models=0')]);
    const { requests, providers: counts, uptimeSec } = shared.stats;
    figures.ready.update(`${counts.usable} of ${counts.total}`);
    figures.served.update(count(requests.ok), `in ${duration(uptimeSec * 1000)}`);
    figures.success.update(requests.requests ? percent((100 * requests.ok) / requests.requests) : '–', requests.fail ? `${count(requests.fail)} failed` : '');
    const used = providers.filter((one) => one.enabled && (one.configured || one.ok + one.fail > 0));
    keyed(strip, used, (one) => one.id, health);
    show(strip, used.length);
    start.update(shared.stats, providers);
    clients.update(shared.stats);
    inGuide.update(shared.stats);
    paintRecords();
    const told = await api('/api/alerts');
    const raised = [
      ...issues.map((one) => ({ level: one.level === 'error' ? 'critical' : 'warn', source: one.file, message: one.message })),
      ...told.alerts.filter((one) => one.level !== 'ok' && one.source !== 'registry'),
    ];
    keyed(alerts, raised, (one) => `${one.source} ${one.providerId ?? ''} ${one.message}`, (one) => ({
      node: h('li', null, chip(one.level, LEVELS[one.level] ?? ''), h('span', null, one.providerId ? h('b', null, `${one.providerId} `) : '', one.message), h('small', { class: 'dim' }, one.source)),
    }));
    show(calm, !raised.length);
  }
  const box = (title, ...children) => h('section', { class: 'box', 'aria-label': title }, h('h2', null, title), ...children);
  const self = panel({
    id: 'overview',
    title: 'Overview',
    every: 15_000,
    load,
    shown: paintRecords,
    onRecords: () => true,
    children: [
      start.node, figures.node,
      h('div', { class: 'columns' },
        box('Alerts', calm, alerts),
        box('Providers', strip, h('p', null, h('a', { href: '#providers' }, 'All providers')))),
      box('Last requests', last, none, h('p', null, h('a', { href: '#requests' }, 'All requests'))),
      box('Connect an app', clients.node),
    ],
  });
  return self;
}

/** A provider as a word with a dot, and how full its fullest limit is. */
function health(first) {
  const dot = h('i', { class: 'dot', 'aria-hidden': 'true' });
  const word = chip('');
  const full = h('span', { class: 'num dim' });
  const node = h('a', { class: 'health', href: '#providers' }, dot, h('b', null, first.label), word, full);
  const update = (one) => {
    const [words, tone] = state(one);
    node.dataset.state = tone;
    setChip(word, words, tone === 'off' ? '' : tone);
    const fullest = one.bars.reduce((most, bar) => Math.max(most, bar.pct), 0);
    text(full, one.bars.length ? `${percent(fullest)} used` : '');
  };
  update(first);
  return { node, update };
}
