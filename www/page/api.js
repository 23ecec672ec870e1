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

export class Failure extends Error {
	constructor(message, status, code) {
		super(message);
		this.status = status;
		this.code = code;
	}

	get needsSignIn() {
		return this.status === 401 || this.code === 'admin_required';
	}
}

/** Called with a failure that signing in would cure. */
export const doors = { shut: () => {} };

/** Tells in words for people that nothing came, unless somebody stopped it. */
export function unreachable(error) {
	if (error.name === 'AbortError') throw error;
	throw new Failure('The gateway does not answer. Is it running, and is this machine on its network?', 0, 'unreachable');
}

/** One JSON request; `body` makes it a POST. Throws a [`Failure`] with words for people. */
export async function api(path, { method, body, quiet } = {}) {
	const json = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } };
	const answer = await fetch(path, method ? { ...json, method } : json).catch(unreachable);
	clock.learn(answer.headers.get('date'));
	const parsed = await answer.json().catch(() => null);
	if (answer.ok && parsed) return parsed;
	const failure = failed(answer.status, parsed);
	if (failure.needsSignIn && !quiet) doors.shut(failure);
	throw failure;
}

export function failed(status, body) {
	const told = body?.error;
	return new Failure(told?.message ?? `The gateway answered ${status}.`, status, told?.code);
}

export const part = encodeURIComponent;
