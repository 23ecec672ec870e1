"""Starts the programs under test on free loopback ports, and ends them again, each by its own process id.

Python's standard library only. Whoever uses it says which binaries to run; nothing here builds anything.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

# Everything here talks to this machine, whatever proxy the environment names.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
START_LIMIT_S = 30
# The gateway gives answers in flight 20 s when it is told to stop.
STOP_LIMIT_S = 25
LOG_LINES_SHOWN = 40


class Program:
    """A running server. Its address is read from the first line that names one on its standard output."""

    def __init__(self, name, command, env=None, cwd=None):
        self.name = name
        # A clean environment, so that keys and settings of whoever runs this cannot change what is seen.
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
        self._log = tempfile.TemporaryFile("w+")
        self._found = threading.Event()
        self.url = None
        self.lines = []
        self.process = subprocess.Popen(
            [str(part) for part in command], env={**kept, **(env or {})}, cwd=cwd, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log)
        threading.Thread(target=self._read, daemon=True).start()
        if not self._found.wait(START_LIMIT_S) or not self.url:
            self.kill()
            raise SystemExit(f"{name} did not start:\n{self.log()}")

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            match = re.search(r"http://(?:127\.0\.0\.1|\[::1\]|localhost):\d+", line)
            if match and not self.url:
                self.url = match.group(0)
                self._found.set()
        self._found.set()

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        """The end of what it wrote to its standard error."""
        self._log.seek(0)
        return "".join(self._log.readlines()[-LOG_LINES_SHOWN:])

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self):
        """Asks it to end; the exit code, or None when it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Mock(Program):
    """A scripted upstream."""

    def __init__(self, binary, name):
        super().__init__(name, [binary, "--name", name, "--port", "0"])

    def control(self, **changes):
        """Replaces what it does; see mock/src/lib.rs for the fields."""
        status, _, body = call("POST", self.url + "/__control", changes)
        assert status == 200, f"{self.name} refused its script: {body}"

    def calls(self, path=""):
        """What it was asked, without the calls of its control plane."""
        seen = json.loads(call("GET", self.url + "/__calls")[2])["calls"]
        return [one for one in seen if "/__" not in one["path"] and one["path"].endswith(path)]


def gateway(binary, root, env=None, arguments=("serve",)):
    """Freeway on a free port, with everything it reads and writes below `root`."""
    env = {"FREEWAY_ROOT": str(root), "FREEWAY_PORT": "0", **(env or {})}
    # It starts in `root`, from where a relative path would lead elsewhere.
    return Program("freeway", [pathlib.Path(binary).resolve(), *arguments], env, cwd=root)


def provider(root, name, base_url, models, **fields):
    """Writes a provider file below `root`. `models` are entries of its list, or plain ids of chat models."""
    folder = pathlib.Path(root, "providers")
    folder.mkdir(parents=True, exist_ok=True)
    entries = [{"id": one, "caps": ["chat", "tools", "json"]} if isinstance(one, str) else one for one in models]
    file = {"id": name, "baseUrl": base_url, "auth": {"type": "bearer", "envKeys": [f"{name.upper()}_KEY"]},
            "modelsEndpoint": None, "models": entries, **fields}
    (folder / f"{name}.json").write_text(json.dumps(file, indent=2) + "\n")


def call(method, url, body=None, headers=None, timeout_s=30):
    """One request: status, headers with lower-case names, body as text. A status is never an exception.

    `body` is sent as JSON, or as it is when it is bytes.
    """
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})}, method=method)
    try:
        answer = _direct.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        names = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, names, answer.read().decode()


def eventually(what, condition, limit_s=10):
    """Waits until `condition` holds; fails with `what` after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)
