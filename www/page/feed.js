// The last requests, live: one event stream for all panels, closed while nobody looks.
import { api, clock } from './api.js';

/** Requests that are kept, as many as the gateway keeps. */
const RECORDS_MAX = 500;
/** The longest pause between two tries to connect, in milliseconds. */
const PAUSE_MAX_MS = 15_000;

export const feed = {
	/** Newest first. */
	records: [],
	/** `live`, `retrying`, `off` (hidden or signed out), or `lost` when it has not come back for a while. */
	state: 'off',
	listeners: new Set(),
};

let source = null;
let pause = 1000;
let timer = null;
let lostAt = 0;
let tail = null;
let run;
let runs = 0;
const seen = new Set();

const keyOf = (record) => `${runs} ${record.seq ?? record.id}`;

function tell(what, data) {
	for (const listener of feed.listeners) listener(what, data);
}

function become(state) {
	if (feed.state === state) return;
	feed.state = state;
	tell('state', state);
}

/** Takes in records, wherever they come from. Tells the listeners once for all of them. */
function take(records) {
	const fresh = records.filter((record) => !seen.has(keyOf(record)));
	if (!fresh.length) return;
	for (const record of fresh) {
		record.key = keyOf(record);
		seen.add(record.key);
		feed.records.unshift(record);
	}
	feed.records.sort((a, b) => b.at - a.at || (b.seq ?? 0) - (a.seq ?? 0));
	for (const old of feed.records.splice(RECORDS_MAX)) seen.delete(old.key);
	tell('records', fresh);
}

/** Reads what the gateway still has; the stream brings only what is new. */
export async function readBack() {
	const { logs } = await api(`/api/logs?limit=${RECORDS_MAX}`);
	take(logs.reverse());
}

export function start() {
	clearTimeout(timer);
	if (source) return;
	become(lostAt && Date.now() - lostAt > PAUSE_MAX_MS ? 'lost' : 'retrying');
	source = new EventSource(tail ? `/api/events?lastEventId=${encodeURIComponent(tail)}` : '/api/events');
	source.addEventListener('open', () => {
		pause = 1000;
		lostAt = 0;
		become('live');
	});
	source.addEventListener('hello', (event) => {
		const told = JSON.parse(event.data);
		const skew = told.at - Date.now();
		clock.skewMs = Math.abs(skew) > 3000 ? skew : 0;
		const before = run;
		run = told.run;
		if (!before || before === run) return;
		// A restarted gateway numbers its requests anew; those of before have their ids now.
		runs += 1;
		seen.clear();
		feed.records = [];
		readBack().catch(() => {});
	});
	source.addEventListener('log', (event) => {
		if (event.lastEventId) tail = event.lastEventId;
		take([JSON.parse(event.data)]);
	});
	source.addEventListener('change', (event) => tell('change', JSON.parse(event.data).what));
	// What did not reach us is still in the log.
	source.addEventListener('lagged', () => readBack().catch(() => {}));
	source.addEventListener('error', () => {
		lostAt ||= Date.now();
		stop('retrying');
		timer = setTimeout(start, pause);
		pause = Math.min(pause * 2, PAUSE_MAX_MS);
		if (Date.now() - lostAt > PAUSE_MAX_MS) become('lost');
	});
}

export function stop(state = 'off') {
	clearTimeout(timer);
	source?.close();
	source = null;
	become(state);
}
