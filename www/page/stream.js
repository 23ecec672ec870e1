// One chat request of the page itself, streamed. The cookie is its right, as everywhere on the page.
import { failed, unreachable } from './api.js';

/**
 * Asks, and hands over each piece of the answer as it comes. Resolves to the route headers and the usage, if told.
 * Throws a failure with words for people; `signal` stops it.
 */
export async function ask(body, { onHead, onText, onThought, signal, headers = {} } = {}) {
	const answer = await fetch('/v1/chat/completions', {
		method: 'POST',
		signal,
		headers: { 'content-type': 'application/json', ...headers },
		body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
	}).catch(unreachable);
	const told = Object.fromEntries([...answer.headers].filter(([name]) => name.startsWith('x-')));
	onHead?.(told);
	if (!answer.ok) throw failed(answer.status, await answer.json().catch(() => null));
	let usage = null;
	for await (const data of events(answer.body)) {
		if (data === '[DONE]') break;
		const chunk = JSON.parse(data);
		if (chunk.error) throw failed(answer.status, chunk);
		usage = chunk.usage ?? usage;
		const delta = chunk.choices?.[0]?.delta ?? {};
		const thought = delta.reasoning_content ?? delta.reasoning;
		if (thought) onThought?.(thought);
		if (delta.content) onText?.(delta.content);
		for (const call of delta.tool_calls ?? []) onText?.(`${call.function?.name ?? ''}${call.function?.arguments ?? ''}`);
	}
	return { headers: told, usage };
}

async function* events(stream) {
	const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
	let rest = '';
	try {
		for (;;) {
			const { value, done } = await reader.read().catch(unreachable);
			if (done) return;
			const parts = (rest + value).split(/\r?\n\r?\n/);
			rest = parts.pop();
			for (const event of parts) {
				const data = event.split(/\r?\n/).filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trimStart());
				if (data.length) yield data.join('\n');
			}
		}
	} finally {
		reader.cancel().catch(() => {});
	}
}
