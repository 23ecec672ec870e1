"""`make smoke`: walks every route of the gateway once, against two mock upstreams.

    python3 tests/scripts/smoke.py FOLDER_OF_THE_BINARIES

One line a check; the last line counts them. Exits with 1 when a check fails.
"""
import gzip
import http.client
import json
import pathlib
import sys
import tempfile
import urllib.parse

from processes import Mock, call, eventually, gateway, provider

KEY = "fw-smoke"
BEARER = {"authorization": f"Bearer {KEY}"}
CHAT = {"model": "fast", "messages": [{"role": "user", "content": "hello"}]}
# One byte more than `server.bodyBytes` allows by default.
TOO_LARGE_BYTES = 8 * 1024 * 1024 + 1


class Walk:
    """The gateway under test, its upstreams, and what was found so far."""

    def __init__(self, url, alpha, beta):
        self.url, self.alpha, self.beta = url, alpha, beta
        self.passed = self.failed = 0

    def check(self, name, act):
        self.alpha.control(reset=True)
        self.beta.control(reset=True)
        try:
            act()
            self.passed += 1
            print(f"ok      {name}")
        except Exception as error:  # Whatever it is, the walk goes on.
            self.failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}")

    def get(self, path, headers=BEARER, method="GET"):
        return call(method, self.url + path, headers=headers)

    def post(self, path, body, headers=BEARER):
        return call("POST", self.url + path, body, headers)

    def announce(self, path, length):
        """Sends a head that promises so many bytes, and none of them: a refusal must not wait for the body."""
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=10)
        connection.putrequest("POST", path)
        for name, value in {**BEARER, "content-type": "application/json", "content-length": length}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body

    def ok(self, answer):
        status, headers, body = answer
        assert status == 200, f"{status} {body[:300]}"
        return headers, json.loads(body) if body.startswith(("{", "[")) else body

    def refused(self, answer, status, code):
        seen, headers, body = answer
        assert seen == status, f"{seen} {body[:300]}"
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == code, error
        return headers


def control_routes(walk):
    def healthz():
        _, body = walk.ok(walk.get("/healthz", headers={}))
        assert set(body) == {"ok", "version", "uptimeSec"} and body["ok"] is True, body

    def head():
        status, headers, body = walk.get("/healthz", headers={}, method="HEAD")
        assert status == 200 and body == "" and int(headers["content-length"]) > 0

    def readyz():
        _, body = walk.ok(walk.get("/readyz", headers={}))
        assert body["ready"] is True, body

    def options():
        status, _, body = walk.get("/v1/chat/completions", headers={"origin": "http://localhost"}, method="OPTIONS")
        assert status == 204 and body == "", status

    walk.check("GET /healthz", healthz)
    walk.check("HEAD /healthz", head)
    walk.check("GET /readyz", readyz)
    walk.check("OPTIONS /v1/chat/completions", options)


def model_routes(walk):
    def listed():
        _, body = walk.ok(walk.get("/v1/models"))
        ids = [one["id"] for one in body["data"]]
        assert body["object"] == "list" and {"alpha/mock-small", "beta/mock-small", "fast", "auto"} <= set(ids), ids

    def one(path, wanted):
        def act():
            _, body = walk.ok(walk.get(path))
            assert body["id"] == wanted and body["object"] == "model", body
        return act

    walk.check("GET /v1/models", listed)
    walk.check("GET /v1/models/{provider}/{model}", one("/v1/models/alpha/mock-small", "alpha/mock-small"))
    walk.check("GET /v1/models/{alias}", one("/v1/models/fast", "fast"))
    walk.check("GET /v1/models/{unknown}", lambda: walk.refused(walk.get("/v1/models/nobody"), 404, "model_not_found"))


def inference_routes(walk):
    def chat():
        headers, body = walk.ok(walk.post("/v1/chat/completions", CHAT))
        assert body["choices"][0]["message"]["content"] == "[alpha] hello", body
        assert headers["x-freeway-provider"] == "alpha" and headers["x-freeway-attempts"] == "1", headers
        assert walk.alpha.calls()[0]["key"] == "key-of-alpha"

    def streamed():
        status, headers, body = walk.post("/v1/chat/completions", {**CHAT, "stream": True})
        assert status == 200 and headers["content-type"].startswith("text/event-stream"), headers
        events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]" and events.count("[DONE]") == 1, events[-3:]
        deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "[alpha] hello", deltas

    def failover():
        walk.alpha.control(script=[{"status": 500}])
        headers, body = walk.ok(walk.post("/v1/chat/completions", CHAT))
        assert headers["x-freeway-provider"] == "beta" and headers["x-freeway-attempts"] == "2", headers
        assert headers["x-freeway-trail"].startswith("alpha/mock-small:"), headers
        assert len(walk.alpha.calls()) == 1 and len(walk.beta.calls()) == 1

    def embeddings():
        body = {"model": "beta/mock-embed", "input": ["a", "b"]}
        headers, answer = walk.ok(walk.post("/v1/embeddings", body))
        assert len(answer["data"]) == 2 and headers["x-freeway-provider"] == "beta", answer

    def zipped():
        body = gzip.compress(json.dumps(CHAT).encode())
        walk.ok(walk.post("/v1/chat/completions", body, {**BEARER, "content-encoding": "gzip"}))

    walk.check("POST /v1/chat/completions", chat)
    walk.check("POST /v1/chat/completions, streamed", streamed)
    walk.check("POST /v1/chat/completions, gzip body", zipped)
    walk.check("POST /v1/chat/completions/ under /v1/v1", lambda: walk.ok(walk.post("/v1/v1/chat/completions/", CHAT)))
    walk.check("POST /v1/embeddings", embeddings)
    walk.check("POST /v1/chat/completions, failover", failover)


def refusals(walk):
    chat = "/v1/chat/completions"

    def without_key():
        headers = walk.refused(walk.post(chat, CHAT, {}), 401, "invalid_api_key")
        assert headers["www-authenticate"].startswith("Bearer")

    def wrong_method():
        headers = walk.refused(walk.get(chat), 405, "method_not_allowed")
        assert "POST" in headers["allow"]

    def unasked(name, answer, status, code):
        def act():
            walk.refused(answer(), status, code)
            assert walk.alpha.calls() == [] and walk.beta.calls() == [], "an upstream was called"
        walk.check(name, act)

    walk.check("401 without a key", without_key)
    walk.check("401 with two keys that differ", lambda: walk.refused(
        walk.post(chat, CHAT, {**BEARER, "x-api-key": "another"}), 401, "invalid_api_key"))
    walk.check("200 with x-api-key", lambda: walk.ok(walk.post(chat, CHAT, {"x-api-key": KEY})))
    walk.check("405 with the methods allowed", wrong_method)
    unasked("404 of an unknown route", lambda: walk.get("/nowhere"), 404, "not_found")
    unasked("404 of a route that OpenAI has", lambda: walk.post("/v1/moderations", {}), 404, "not_found")
    unasked("404 of an unknown model", lambda: walk.post(chat, {**CHAT, "model": "nobody"}), 404, "model_not_found")
    unasked("400 of a body that is no JSON", lambda: walk.post(chat, b"{"), 400, "invalid_json")
    unasked("400 without messages", lambda: walk.post(chat, {"model": "fast"}), 400, "missing_messages")
    unasked("400 without input", lambda: walk.post("/v1/embeddings", {"model": "auto"}), 400, "missing_input")
    unasked("413 of a body too large", lambda: walk.announce(chat, TOO_LARGE_BYTES), 413, "payload_too_large")


def operator_routes(walk):
    def providers():
        _, body = walk.ok(walk.get("/api/providers"))
        assert {"alpha", "beta"} <= {one["id"] for one in body["providers"]}, body

    def logs():
        def rows():
            return walk.ok(walk.get("/api/logs?limit=5"))[1]["logs"]
        eventually("the log shows requests", rows)
        assert len(rows()) <= 5

    def route():
        _, body = walk.ok(walk.get("/api/route?model=fast"))
        assert body["route"] == "alias:fast" and body["candidates"][0]["ref"] == "beta/mock-small", body

    walk.check("GET /api/providers", providers)
    walk.check("GET /api/logs", logs)
    walk.check("GET /api/route", route)

    def backups():
        _, body = walk.ok(walk.get("/api/backups"))
        assert body["on"] is False and body["backups"] == [], body
        walk.refused(walk.post("/api/backup", {}), 400, "not_configured")

    walk.check("GET /api/backups, POST /api/backup without a target", backups)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: smoke.py FOLDER_OF_THE_BINARIES")
    folder = pathlib.Path(sys.argv[1])
    mock = folder / "mock-upstream"
    with (tempfile.TemporaryDirectory(prefix="freeway-smoke-") as root,
          Mock(mock, "alpha") as alpha, Mock(mock, "beta") as beta):
        chat = {"id": "mock-small", "caps": ["chat", "tools", "json"], "alias": ["fast"]}
        for priority, one in enumerate((alpha, beta), start=1):
            provider(root, one.name, one.url + "/v1", [chat, {"id": "mock-embed", "caps": ["embed"]}], priority=priority)
        env = {"FREEWAY_KEYS": KEY, "ALPHA_KEY": "key-of-alpha", "BETA_KEY": "key-of-beta"}
        with gateway(folder / "freeway", root, env) as served:
            walk = Walk(served.url, alpha, beta)
            # The failover benches alpha, so it comes last among those that alpha serves; refusals need nobody.
            for part in (control_routes, model_routes, inference_routes, refusals, operator_routes):
                part(walk)

            def stopped():
                assert served.stop() == 0, "exit code of the stop"

            walk.check("SIGTERM ends it with exit code 0", stopped)
            if walk.failed:
                print(f"the gateway's log ends:\n{served.log()}")
    print(f"smoke: {walk.passed} passed, {walk.failed} failed")
    sys.exit(1 if walk.failed else 0)


if __name__ == "__main__":
    main()
