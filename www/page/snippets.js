// What to type into an app: the address, the key, and the few lines for common clients.
import { h, keyed, show } from './dom.js';
import { choice, copyable, field, tabs as tabsOf } from './parts.js';

const SNIPPETS = {
	curl: ['curl', (base, key, model) => `curl ${base}/chat/completions \\\n  -H 'content-type: application/json' \\\n  -H 'authorization: Bearer ${key}' \\\n  -d '{"model": "${model}", "messages": [{"role": "user", "content": "hello"}]}'`],
	python: ['Python', (base, key, model) => `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}", api_key="${key}")\nanswer = client.chat.completions.create(\n    model="${model}", messages=[{"role": "user", "content": "hello"}])\nprint(answer.choices[0].message.content)`],
	node: ['Node', (base, key, model) => `import OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: '${base}', apiKey: '${key}' });\nconst answer = await client.chat.completions.create({\n  model: '${model}', messages: [{ role: 'user', content: 'hello' }] });\nconsole.log(answer.choices[0].message.content);`],
	env: ['Variables', (base, key) => `OPENAI_BASE_URL=${base}\nOPENAI_API_KEY=${key}`],
};

/** The box. `update(stats)` learns the addresses; `key(text)` puts in a fresh key. */
export function snippets(shared) {
	let key = 'YOUR_CLIENT_KEY';
	let kind = 'curl';
	const address = choice([[`${location.origin}/v1`, `${location.origin}/v1 (as you came here)`]]);
	const code = copyable('', 'the client snippet');
	const hint = h('p.dim', 'This gateway listens on this machine only. ', h('code', 'freeway init --lan'), ' opens it to your network and makes a key.');
	const tabs = tabsOf('Client', Object.entries(SNIPPETS).map(([id, [label]]) => [id, label]), (id) => {
		kind = id;
		paint();
	});
	address.addEventListener('change', paint);
	function paint() {
		code.update(SNIPPETS[kind][1](address.value, key, 'auto'));
	}
	function update(stats) {
		const listen = stats?.listen;
		const near = !listen || ['127.0.0.1', '::1', 'localhost'].includes(listen.host);
		const bases = near ? [] : listen.lan.map((ip) => `http://${ip.includes(':') ? `[${ip}]` : ip}:${listen.port}/v1`);
		keyed(address, bases.filter((base) => base !== `${location.origin}/v1`), (base) => base, (base) => ({
			node: h('option', { value: base }, `${base} (on your network)`),
		}));
		show(hint, near);
		paint();
	}
	paint();
	update(shared.stats);
	return {
		node: h('div.snippets', field('Base URL', address), tabs, code.node, hint),
		update,
		key(words) {
			key = words;
			paint();
		},
	};
}
