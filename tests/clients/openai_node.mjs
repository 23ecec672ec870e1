// The official `openai` package for Node against a running server.
//
// The environment is that of `openai_python.py`, which has the same cases under the same names. CLIENTS_MODULES is the
// folder in which the package is installed, since that is not below this file.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const env = process.env;
const { OpenAI } = createRequire(join(env.CLIENTS_MODULES, "package.json"))("openai");
const { CLIENTS_MODEL: model, CLIENTS_EMBED_MODEL: embedModel, CLIENTS_MOCK: mock } = env;
const gateway = env.CLIENTS_GATEWAY === "1";

const client = new OpenAI({ baseURL: env.CLIENTS_BASE_URL, apiKey: env.CLIENTS_KEY, maxRetries: 0, timeout: 20_000 });
const hello = [{ role: "user", content: "say hello" }];
const tools = [{
  type: "function",
  function: {
    name: "weather",
    description: "Tells the weather of a town",
    parameters: { type: "object", properties: { town: { type: "string" } }, required: ["town"] },
  },
}];

/** Forgets what was, and answers the next requests so. What a gateway refuses by itself is refused here, too. */
async function script(...steps) {
  const refused = { keys: { "wrong-key": { status: 401 } }, byModel: { "no-such-model": { status: 404 } } };
  const body = JSON.stringify({ reset: true, ...refused, ...(steps.length ? { script: steps } : {}) });
  const answer = await fetch(`${mock}/__control`, { method: "POST", body });
  assert.equal(answer.status, 200, await answer.text());
}

async function upstreamCalls(path = "/chat/completions") {
  const { calls } = await (await fetch(`${mock}/__calls`)).json();
  return calls.filter((call) => call.path.endsWith(path));
}

async function eventually(what, condition, limitMs) {
  const deadline = Date.now() + limitMs;
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, `not within ${limitMs} ms: ${what}`);
    await sleep(20);
  }
}

const upstreamIsCut = () =>
  eventually("the upstream is cut", async () => (await upstreamCalls())[0]?.leftMs != null, 5_000);

/** The error of this kind that a promise ends with. */
async function raises(kind, promise) {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof kind, `${error} is no ${kind.name}`);
    return error;
  }
  assert.fail(`no ${kind.name}`);
}

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const ask = (more = {}, options) => client.chat.completions.create({ model, messages: hello, ...more }, options);
const text = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

const cases = {
  async chat() {
    const { data, response } = await ask().withResponse();
    assert.equal(data.object, "chat.completion");
    assert.match(data.choices[0].message.content, /say hello$/);
    assert.equal(data.choices[0].finish_reason, "stop");
    assert.ok(data.usage.prompt_tokens > 0);
    assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
    if (gateway) {
      assert.equal(response.headers.get("x-freeway-provider"), "alpha");
      assert.equal(response.headers.get("x-freeway-attempts"), "1");
      assert.ok(data._request_id);
    }
  },

  async stream_without_usage() {
    const chunks = await all(await ask({ stream: true }));
    assert.ok(chunks.every((chunk) => chunk.choices.length && !chunk.usage), "a chunk that nobody asked for");
    assert.match(text(chunks), /say hello$/);
    assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  },

  async stream_with_usage() {
    const chunks = await all(await ask({ stream: true, stream_options: { include_usage: true } }));
    assert.equal(chunks.filter((chunk) => chunk.usage).length, 1);
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.ok(chunks.at(-1).usage.total_tokens > 0);
    assert.equal(chunks.at(-2).choices[0].finish_reason, "stop");
  },

  async tools_round_trip() {
    const messages = [{ role: "user", content: "How is the weather in Ghent?" }];
    const first = await ask({ messages, tools });
    assert.equal(first.choices[0].finish_reason, "tool_calls");
    const asked = first.choices[0].message.tool_calls[0];
    assert.equal(asked.function.name, "weather");
    assert.ok("town" in JSON.parse(asked.function.arguments));
    const result = { role: "tool", tool_call_id: asked.id, content: "sunny, 21 degrees" };
    const second = await ask({ messages: [...messages, first.choices[0].message, result], tools });
    assert.equal(second.choices[0].finish_reason, "stop");
    assert.match(second.choices[0].message.content, /sunny, 21 degrees$/);
    const sent = (await upstreamCalls()).at(-1).body.messages;
    assert.equal(sent[1].tool_calls[0].id, sent[2].tool_call_id, "call and result belong together");
  },

  async tools_streamed() {
    const messages = [{ role: "user", content: "How is the weather in Ghent?" }];
    const chunks = await all(await ask({ messages, tools, stream: true }));
    const parts = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
    assert.deepEqual(parts.map((part) => part.function.name).filter(Boolean), ["weather"]);
    assert.ok("town" in JSON.parse(parts.map((part) => part.function.arguments ?? "").join("")));
    assert.equal(chunks.at(-1).choices[0].finish_reason, "tool_calls");
  },

  async embeddings() {
    // The package asks for base64 unless told otherwise, and gives numbers either way.
    const input = ["one", "two"];
    const packed = await client.embeddings.create({ model: embedModel, input });
    const plain = await client.embeddings.create({ model: embedModel, input, encoding_format: "float" });
    assert.deepEqual(packed.data.map((one) => one.index), [0, 1]);
    assert.equal(packed.data[0].embedding.length, 8);
    packed.data.forEach((one, at) =>
      one.embedding.forEach((value, i) => assert.ok(Math.abs(value - plain.data[at].embedding[i]) < 1e-6)));
    const wide = await client.embeddings.create({ model: embedModel, input: "one", dimensions: 16 });
    assert.equal(wide.data[0].embedding.length, 16);
    assert.ok(wide.usage.prompt_tokens > 0);
  },

  async embeddings_of_a_plain_upstream() {
    // This package decodes whatever it gets as base64, so a list of numbers would become other numbers.
    if (!gateway) return;
    const data = [{ object: "embedding", index: 0, embedding: [0.5, -0.25, 0.125] }];
    const usage = { prompt_tokens: 1, total_tokens: 1 };
    await script({ path: "/embeddings", body: { object: "list", model: "m", data, usage } });
    const answer = await client.embeddings.create({ model: embedModel, input: "one" });
    assert.deepEqual([...answer.data[0].embedding], [0.5, -0.25, 0.125]);
  },

  async models() {
    const ids = (await all(await client.models.list())).map((one) => one.id);
    assert.ok(ids.includes(model), ids.join(", "));
    if (gateway) {
      assert.ok(ids.includes("auto"));
      // The slash of the id reaches the server escaped.
      const found = await client.models.retrieve(model);
      assert.equal(found.id, model);
      assert.equal(found.object, "model");
      const error = await raises(OpenAI.NotFoundError, client.models.retrieve("no-such-model"));
      assert.equal(error.code, "model_not_found");
    }
  },

  async abort_mid_stream() {
    await script({ content: "a long story ".repeat(200), dripMs: 50 });
    const stream = await ask({ stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) stream.controller.abort();
    }
    await upstreamIsCut();
    await script();
    assert.ok((await ask()).choices.length, "nobody was blamed");
  },

  async abort_before_the_answer() {
    await script({ delayMs: 15_000 });
    await raises(OpenAI.APIUserAbortError, ask({}, { signal: AbortSignal.timeout(500) }));
    await upstreamIsCut();
    await script();
    assert.ok((await ask()).choices.length, "nobody was blamed");
  },

  async bad_request() {
    if (!gateway) return;
    const error = await raises(OpenAI.BadRequestError, ask({ messages: [] }));
    assert.equal(error.code, "missing_messages");
    assert.equal(error.type, "invalid_request_error");
  },

  async wrong_key() {
    const stranger = client.withOptions({ apiKey: "wrong-key" });
    const error = await raises(OpenAI.AuthenticationError,
      stranger.chat.completions.create({ model, messages: hello }));
    if (gateway) {
      assert.equal(error.code, "invalid_api_key");
      assert.deepEqual(await upstreamCalls(), []);
    }
  },

  async unknown_model() {
    const error = await raises(OpenAI.NotFoundError, ask({ model: "no-such-model" }));
    if (gateway) {
      assert.equal(error.code, "model_not_found");
      assert.deepEqual(await upstreamCalls(), []);
    }
  },

  async rate_limit() {
    await script({ status: 429, headers: { "retry-after": "1" }, repeat: 2 }, {});
    const error = await raises(OpenAI.RateLimitError, ask());
    assert.match(error.headers.get("retry-after"), /^[12]$/);
    if (gateway) assert.equal(error.type, "rate_limit_error");
    // The package waits for as long as it is told, and then is served.
    const started = Date.now();
    const answer = await ask({}, { maxRetries: 5 });
    assert.match(answer.choices[0].message.content, /say hello$/);
    assert.ok(Date.now() - started >= 900, "it did not wait");
    assert.equal((await upstreamCalls()).length, 3, "no call beside those that had to be");
  },

  async error_within_a_stream() {
    const errorFrame = { error: { message: "out of memory" } };
    await script({ content: "a long story ".repeat(20), errorFrame, errorAt: 5 });
    const seen = [];
    const read = async () => {
      for await (const chunk of await ask({ stream: true })) seen.push(chunk);
    };
    const error = await raises(OpenAI.APIError, read());
    assert.ok(text(seen) && !(error instanceof OpenAI.APIConnectionError), String(error));
    await script();
    const served = () => ask().then(() => true, (failure) => !(failure instanceof OpenAI.APIError));
    await eventually("the bench of the failed provider ends", served, 60_000);
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await script();
    await run();
    console.log(`ok ${name}`);
  } catch (error) {
    // Whatever it is, the other cases still run.
    failed += 1;
    console.log(`FAILED ${name}\n${error.stack}`);
  }
}
process.exit(failed ? 1 : 0);
