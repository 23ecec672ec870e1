"""The servers that are compared: the upstream itself, nginx before it, and Freeway before it."""
import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")) / "release"
RIG = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target")) / "release"
sys.path.insert(0, str(HERE.parent / "scripts"))
from processes import Program, gateway, provider  # noqa: E402

CLIENT_KEY = "bench-key"
START_LIMIT_S = 30


def upstream():
    return Program("upstream", [RIG / "upstream"])


def freeway(root, upstream_url, settings=None):
    """Freeway with every bundled provider, its limits counted and its rows written, below `root`."""
    root = pathlib.Path(root)
    (root / "providers").mkdir(parents=True, exist_ok=True)
    for file in sorted((TOP / "providers").glob("*.json")):
        shutil.copy(file, root / "providers")
    # Limits that are counted but never reached.
    limits = {"rpm": 1e9, "rpd": 1e9, "tpm": 1e12, "tpd": 1e12}
    provider(root, "bench", upstream_url + "/v1", ["mock-model"], priority=1, limits=limits)
    (root / "freeway.config.json").write_text(json.dumps(settings or {}))
    return gateway(TARGET / "freeway", root, {"FREEWAY_KEYS": CLIENT_KEY, "BENCH_KEY": "upstream-key"})


class Nginx:
    """nginx with one worker."""

    def __init__(self, root, upstream_url):
        root = pathlib.Path(root)
        root.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        filled = {"USER": "user root;" if os.geteuid() == 0 else "", "DIR": str(root), "PORT": str(port),
                  "UPSTREAM": urllib.parse.urlsplit(upstream_url).netloc}
        text = (HERE / "nginx.conf").read_text()
        for name, value in filled.items():
            text = text.replace(f"@{name}@", value)
        (root / "nginx.conf").write_text(text)
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"), "-p", root,
                                         "-c", root / "nginx.conf"], stdin=subprocess.DEVNULL)
        self.pid = self.process.pid
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    sys.exit(f"nginx did not start; see {root}/error.log")
                time.sleep(0.001)

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def chat(server):
    """One chat call that has to succeed."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=START_LIMIT_S)
    body = {"model": "auto", "messages": [{"role": "user", "content": f"hello {time.time_ns()}"}]}
    headers = {"content-type": "application/json", "authorization": f"Bearer {CLIENT_KEY}"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200:
        sys.exit(f"{server.url}: status {answer.status}: {text.decode()[:500]}")
