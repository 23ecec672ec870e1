"""The official `openai` package for Python against a running server.

Environment: CLIENTS_BASE_URL (ends in /v1), CLIENTS_KEY, CLIENTS_MODEL, CLIENTS_EMBED_MODEL, and CLIENTS_MOCK, the
address of the mock upstream that answers in the end. CLIENTS_GATEWAY=1 says that a gateway stands between the two,
so its headers and codes are checked as well. `openai_node.mjs` has the same cases under the same names.
"""
import json
import math
import os
import sys
import time
import traceback

import openai

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
from processes import call, eventually  # noqa: E402

BASE_URL = os.environ["CLIENTS_BASE_URL"]
MODEL = os.environ["CLIENTS_MODEL"]
EMBED_MODEL = os.environ["CLIENTS_EMBED_MODEL"]
MOCK = os.environ["CLIENTS_MOCK"]
GATEWAY = os.environ.get("CLIENTS_GATEWAY") == "1"

client = openai.OpenAI(base_url=BASE_URL, api_key=os.environ["CLIENTS_KEY"], max_retries=0, timeout=20)
HELLO = [{"role": "user", "content": "say hello"}]
TOOLS = [{
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a town",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}]


def script(*steps):
    """Forgets what was, and answers the next requests so. What a gateway refuses by itself is refused here, too."""
    changes = {"reset": True, "keys": {"wrong-key": {"status": 401}}, "byModel": {"no-such-model": {"status": 404}}}
    if steps:
        changes["script"] = list(steps)
    status, _, body = call("POST", MOCK + "/__control", changes)
    assert status == 200, body


def upstream_calls(path="/chat/completions"):
    seen = json.loads(call("GET", MOCK + "/__calls")[2])["calls"]
    return [one for one in seen if one["path"].endswith(path)]


def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def chat():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
    answer = raw.parse()
    assert answer.object == "chat.completion" and answer.id
    assert answer.choices[0].message.content.endswith("say hello"), answer
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    if GATEWAY:
        assert raw.headers["x-freeway-provider"] == "alpha" and raw.headers["x-freeway-attempts"] == "1", raw.headers
        assert raw.headers["x-request-id"]


def stream_without_usage():
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks), "a chunk that nobody asked for"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).endswith("say hello")
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


def stream_with_usage():
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options=options))
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0
    assert chunks[-2].choices[0].finish_reason == "stop"


def tools_round_trip():
    messages = [{"role": "user", "content": "How is the weather in Ghent?"}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert first.choices[0].finish_reason == "tool_calls"
    asked = first.choices[0].message.tool_calls[0]
    assert asked.function.name == "weather" and "town" in json.loads(asked.function.arguments)
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": asked.id, "content": "sunny, 21 degrees"}]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content.endswith("sunny, 21 degrees"), second
    sent = upstream_calls()[-1]["body"]["messages"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"], "call and result belong together"


def tools_streamed():
    messages = [{"role": "user", "content": "How is the weather in Ghent?"}]
    names, arguments, finish = [], "", None
    for chunk in client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            assert part.index == 0
            names += [part.function.name] if part.function.name else []
            arguments += part.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert names == ["weather"] and "town" in json.loads(arguments) and finish == "tool_calls"


def embeddings():
    # The package asks for base64 unless told otherwise, and gives numbers either way.
    packed = client.embeddings.create(model=EMBED_MODEL, input=["one", "two"])
    plain = client.embeddings.create(model=EMBED_MODEL, input=["one", "two"], encoding_format="float")
    assert [one.index for one in packed.data] == [0, 1] and len(packed.data[0].embedding) == 8
    for one, other in zip(packed.data, plain.data):
        assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(one.embedding, other.embedding))
    wide = client.embeddings.create(model=EMBED_MODEL, input="one", dimensions=16)
    assert len(wide.data[0].embedding) == 16 and wide.usage.prompt_tokens > 0


def embeddings_of_a_plain_upstream():
    # Many upstreams know only lists of numbers; the package must get what it asked for all the same.
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, -0.25, 0.125]}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    script({"path": "/embeddings", "body": {"object": "list", "model": "m", "data": [vector], "usage": usage}})
    assert client.embeddings.create(model=EMBED_MODEL, input="one").data[0].embedding == [0.5, -0.25, 0.125]


def models():
    ids = [one.id for one in client.models.list()]
    assert MODEL in ids, ids
    if GATEWAY:
        assert "auto" in ids
        # The slash of the id reaches the server escaped.
        found = client.models.retrieve(MODEL)
        assert found.id == MODEL and found.object == "model"
        assert raises(openai.NotFoundError, lambda: client.models.retrieve("no-such-model")).code == "model_not_found"


def abort_mid_stream():
    script({"content": "a long story " * 200, "dripMs": 50})
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    next(chunk for chunk in stream if chunk.choices[0].delta.content)
    stream.close()
    eventually("the upstream is cut", lambda: upstream_calls()[0]["leftMs"] is not None, limit_s=5)
    script()
    assert client.chat.completions.create(model=MODEL, messages=HELLO).choices, "nobody was blamed"


def abort_before_the_answer():
    script({"delayMs": 15000})
    impatient = client.with_options(timeout=0.5)
    raises(openai.APITimeoutError, lambda: impatient.chat.completions.create(model=MODEL, messages=HELLO))
    eventually("the upstream is cut", lambda: upstream_calls()[0]["leftMs"] is not None, limit_s=5)
    script()
    assert client.chat.completions.create(model=MODEL, messages=HELLO).choices, "nobody was blamed"


def error_within_a_stream():
    script({"content": "a long story " * 20, "errorFrame": {"error": {"message": "out of memory"}}, "errorAt": 5})
    text = []

    def read():
        for chunk in client.chat.completions.create(model=MODEL, messages=HELLO, stream=True):
            text.append(chunk.choices[0].delta.content or "")

    error = raises(openai.APIError, read)
    assert "".join(text) and not isinstance(error, openai.APIConnectionError), error
    script()
    eventually("the bench of the failed provider ends", lambda: not failing(), limit_s=60)


def failing():
    try:
        client.chat.completions.create(model=MODEL, messages=HELLO)
        return False
    except openai.APIStatusError:
        return True


def bad_request():
    if GATEWAY:
        error = raises(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=[]))
        assert error.code == "missing_messages" and error.type == "invalid_request_error", error.body


def wrong_key():
    stranger = client.with_options(api_key="wrong-key")
    error = raises(openai.AuthenticationError, lambda: stranger.chat.completions.create(model=MODEL, messages=HELLO))
    if GATEWAY:
        assert error.code == "invalid_api_key" and upstream_calls() == []


def unknown_model():
    error = raises(openai.NotFoundError,
                   lambda: client.chat.completions.create(model="no-such-model", messages=HELLO))
    if GATEWAY:
        assert error.code == "model_not_found" and upstream_calls() == []


def rate_limit():
    script({"status": 429, "headers": {"retry-after": "1"}, "repeat": 2}, {})
    error = raises(openai.RateLimitError, lambda: client.chat.completions.create(model=MODEL, messages=HELLO))
    assert 1 <= int(error.response.headers["retry-after"]) <= 2, error.response.headers
    if GATEWAY:
        assert error.type == "rate_limit_error"
    # The package waits for as long as it is told, and then is served.
    started = time.monotonic()
    answer = client.with_options(max_retries=5).chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content.endswith("say hello")
    assert time.monotonic() - started >= 0.9, "it did not wait"
    assert len(upstream_calls()) == 3, "no call beside those that had to be"


CASES = [chat, stream_without_usage, stream_with_usage, tools_round_trip, tools_streamed, embeddings,
         embeddings_of_a_plain_upstream, models, abort_mid_stream, abort_before_the_answer, bad_request, wrong_key,
         unknown_model, rate_limit, error_within_a_stream]

failed = 0
for case in CASES:
    try:
        script()
        case()
        print(f"ok {case.__name__}", flush=True)
    except Exception:  # Whatever it is, the other cases still run.
        failed += 1
        print(f"FAILED {case.__name__}\n{traceback.format_exc()}", flush=True)
sys.exit(1 if failed else 0)
