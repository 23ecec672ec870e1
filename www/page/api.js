// Asks the gateway. The right to ask is a cookie that no script can read, so no key is ever kept here.

/** The gateway's clock, as far as its answers tell; browsers of other machines may be minutes off. */
export const clock = {
	skewMs: 0,
	now: () => Date.now() + clock.skewMs,
	learn(date) {
		const told = Date.parse(date ?? '');
		if (Number.isNaN(told)) return;
		// The header has whole seconds; less than that is no skew.
		const skew = told - Date.now();
		clock.skewMs = Math.abs(skew) > 3000 ? skew : 0;
	},
};

/** A request that was refused or did not arrive. */
export class Failure extends Error {
	constructor(message, status, code, more) {
		super(message);
		this.status = status;
		this.code = code;
		this.more = more ?? {};
	}

	get needsSignIn() {
		return this.status === 401 || this.code === 'admin_required';
	}
}

/** Called with a failure that signing in would cure. */
export const doors = { shut: () => {} };

/** One JSON request; `body` makes it a POST. Throws a [`Failure`] with words for people. */
export async function api(path, { method, body, signal, quiet } = {}) {
	const json = body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } };
	let answer;
	try {
		answer = await fetch(path, { method: method ?? (body === undefined ? 'GET' : 'POST'), signal, ...json });
	} catch (error) {
		if (error.name === 'AbortError') throw error;
		throw new Failure('The gateway does not answer. Is it running, and is this machine on its network?', 0, 'unreachable');
	}
	clock.learn(answer.headers.get('date'));
	const parsed = await answer.json().catch(() => null);
	if (answer.ok && parsed) return parsed;
	const failure = failed(answer.status, parsed);
	if (failure.needsSignIn && !quiet) doors.shut(failure);
	throw failure;
}

/** The failure that an answer tells of. */
export function failed(status, body) {
	const told = body?.error;
	return new Failure(told?.message ?? `The gateway answered ${status}.`, status, told?.code ?? null, body?.freeway);
}

/** An id as a part of a path. */
export const part = encodeURIComponent;
