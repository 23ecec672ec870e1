"""A small world for the page: a gateway, three upstreams behind it, and somebody who looks."""
import argparse
import json
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "scripts"))
from processes import Mock, call, gateway, provider  # noqa: E402

BINARIES = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")) / "debug"
ADMIN_KEY = "admin-key-of-the-page-test"
CLIENT_KEY = "fw-client-of-the-page-test"
# Longest that anything on the page may take to happen, in milliseconds.
PATIENCE_MS = 30_000


def arguments(**more):
    """The command line of each part: the browser, axe-core, and what else the part takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--browser", required=True)
    parser.add_argument("--axe", required=True)
    for name, settings in more.items():
        parser.add_argument(name.replace("_", "-"), **settings)
    return parser.parse_args()


class World:
    """`alpha` comes before `beta`; `gamma` has no key yet. All three serve the same alias `fast`."""

    def __init__(self, env=None, upstreams=("alpha", "beta", "gamma"), keyed=("alpha", "beta"), files=None, config=None,
                 binaries=BINARIES):
        self.binaries = binaries
        self._folder = tempfile.TemporaryDirectory(prefix="freeway-page-")
        self.root = pathlib.Path(self._folder.name)
        self.mocks = {name: Mock(binaries / "mock-upstream", name) for name in upstreams}
        for priority, (name, mock) in enumerate(self.mocks.items(), 1):
            models = [{"id": f"{name}-fast", "label": f"{name.title()} fast", "alias": ["fast"], "context": 32_768,
                       "caps": ["chat", "tools", "json"], "paidEquivalent": {"inPerM": 2, "outPerM": 8}},
                      {"id": f"{name}-small", "context": 2_048, "caps": ["chat"], "priority": 90}]
            provider(self.root, name, mock.url + "/v1", models, label=name.title(), priority=priority * 10,
                     modelsEndpoint="/models", limits={"rpm": 600, "rpd": 5000}, signup="https://example.com/keys",
                     docs="https://example.com/docs", notes=f"The upstream {name} of a test.",
                     terms={"verdict": "ok", "note": "A test may do everything."})
            mock.control(models=[f"{name}-fast", f"{name}-small"])
        for name, text in (files or {}).items():
            (self.root / name).write_text(text)
        if config:
            (self.root / "freeway.config.json").write_text(json.dumps(config))
        keys = {f"{name.upper()}_KEY": f"{name}-upstream-key-0001" for name in keyed}
        # Whoever works on the page looks at the files themselves; everybody else at those that are built in.
        www = {name: os.environ[name] for name in ["FREEWAY_WWW"] if name in os.environ}
        self.env = keys | www | (env or {})
        self.gateway = None
        self.start()

    def bend(self, name, *steps):
        """How an upstream answers chats with its first model from now on; the last step stays."""
        self.mocks[name].control(byModel={f"{name}-fast": list(steps)})

    def start(self):
        self.gateway = gateway(self.binaries / "freeway", self.root, self.env)
        self.url = self.gateway.url

    def stop(self):
        """Stops the gateway alone, so that its files can be read; says if it did not end well."""
        code = self.gateway.stop()
        assert code == 0, f"the gateway ended with {code}:\n{self.gateway.log()}"

    def close(self):
        try:
            if self.gateway.process.poll() is None:
                self.stop()
        finally:
            for mock in self.mocks.values():
                mock.stop()
            self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def headers(self, admin=False):
        key = self.env.get("FREEWAY_ADMIN_KEY" if admin else "FREEWAY_KEYS")
        return {"authorization": f"Bearer {key}"} if key else {}

    def chat(self, words="hello", model="fast", **body):
        """One chat request as an app sends it: status, headers, body."""
        body = {"model": model, "messages": [{"role": "user", "content": words}], **body}
        return call("POST", self.url + "/v1/chat/completions", body, self.headers())

    def api(self, path, method="GET", body=None):
        """One request of the owner; what came back, which must be a success."""
        status, _, answer = call(method, self.url + path, body, self.headers(admin=True))
        assert status < 300, f"{method} {path}: {status} {answer}"
        return json.loads(answer)
