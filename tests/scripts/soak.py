"""`make soak MINUTES=60`: mixed traffic for a long time, and whether the gateway grows by it.

    python3 tests/scripts/soak.py FOLDER_OF_THE_BINARIES [--minutes N] [--rate N]

Chats, streams, clients that leave, upstreams that fail and recover, embeddings, reloads, a page whose live log stays
open, bodies that are refused, broken requests. A line a minute gives resident memory, descriptors and threads. Judged
over the last two thirds, by a straight line through all samples: resident memory may rise by less than 1 MiB an hour,
descriptors and threads not at all. Runs of less than 45 minutes are too short to tell such a rise from what an allocator
does by itself, and may rise by half a MiB in all. The last line says whether it may; exits with 1 when not. Python's standard library.
"""
import argparse
import http.client
import json
import pathlib
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.parse

from processes import Mock, call, gateway, provider

CLIENT, OWNER = "fw-soak", "fw-soak-owner"
SAMPLE_EVERY_S = 2
# More than one sample moves up and down by itself: idle connections and threads of pools come and go.
RSS_RISE_MAX_KIB_H = 1024
RSS_NOISE_KIB = 512
COUNT_RISE_MAX = 4
PEAK_MAX_KIB = 64 * 1024
CLIENTS = 8
# How an upstream fails, one after the other; the last one lasts.
FAILURES = [{"status": 503}, {"end": "reset"}, {"status": 429}, {"cutAt": 40}, {"body": "<html>busy</html>"}, {}]


class Soak:
    """The gateway under test, its upstreams, and what has been done to it so far."""

    def __init__(self, url, alpha, beta, root, rate):
        self.url, self.alpha, self.beta, self.root, self.rate = url, alpha, beta, root, rate
        self.place = urllib.parse.urlsplit(url)
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.done, self.wrong = {}, []

    def note(self, what, fine=True, detail=""):
        with self.lock:
            self.done[what] = self.done.get(what, 0) + 1
            if not fine and len(self.wrong) < 20:
                self.wrong.append(f"{what}: {detail}")

    # What clients do.

    def connection(self):
        return http.client.HTTPConnection(self.place.netloc, timeout=60)

    def ask(self, connection, body, path="/v1/chat/completions", key=CLIENT, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
        connection.request("POST", path, data, headers)
        return connection.getresponse()

    def prompt(self, dice, stream=False, model="m"):
        # Of sizes that differ a lot, and never the same twice.
        words = " ".join(f"word{dice.randrange(10_000)}" for _ in range(dice.choice([3, 30, 300, 3_000])))
        return {"model": model, "stream": stream, "messages": [{"role": "user", "content": words}]}

    def chat(self, dice, connection):
        answer = self.ask(connection, self.prompt(dice))
        body = answer.read()
        self.note("chat", answer.status == 200, f"{answer.status} {body[:300]!r}")

    def stream(self, dice, connection):
        answer = self.ask(connection, self.prompt(dice, stream=True))
        body = answer.read()
        fine = answer.status == 200 and body.endswith(b"data: [DONE]\n\n")
        self.note("stream", fine, f"{answer.status} {body[-300:]!r}")

    def abort(self, dice, _):
        """Leaves at some moment: before the answer, or in the middle of it; with a farewell or a reset."""
        connection = self.connection()
        try:
            answer = None
            connection.connect()
            sock = connection.sock
            body = json.dumps(self.prompt(dice, stream=dice.random() < 0.7)).encode()
            head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self.place.netloc}\r\nauthorization: Bearer {CLIENT}\r\n"
                    f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n").encode()
            sent = head + body
            sock.sendall(sent[:dice.choice([10, len(head), len(sent) // 2, len(sent)])])
            time.sleep(dice.random() * 0.05)
            if dice.random() < 0.5:
                sock.settimeout(0.2)
                try:
                    answer = sock.recv(200)
                except OSError:
                    pass
            if dice.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        finally:
            connection.close()
        self.note("abort" if answer is None else "abort amid an answer")

    def fail(self, dice, connection):
        """An upstream that fails; the other one serves."""
        answer = self.ask(connection, self.prompt(dice, model=dice.choice(["flaky", "beta/flaky"])))
        body = answer.read()
        self.note("failing upstream", answer.status in (200, 429, 502, 503, 504), f"{answer.status} {body[:300]!r}")

    def refused(self, dice, _):
        """Requests that are not let in; each ends its connection."""
        connection = self.connection()
        try:
            kind = dice.randrange(4)
            if kind == 0:
                answer = self.ask(connection, b"{" * dice.randrange(1, 500))
            elif kind == 1:
                answer = self.ask(connection, self.prompt(dice), key=f"wrong-{dice.randrange(1000)}")
            elif kind == 2:
                answer = self.ask(connection, b"x" * 100, **{"content-encoding": "zstd"})
            else:
                answer = self.ask(connection, self.prompt(dice), path="/v1/nothing")
            answer.read()
            self.note("refused", answer.status in (400, 401, 404, 415, 429), str(answer.status))
        finally:
            connection.close()

    def embed(self, dice, connection):
        body = {"model": "e", "input": [f"text {dice.randrange(10_000)}"]}
        answer = self.ask(connection, body, path="/v1/embeddings")
        body = answer.read()
        self.note("embeddings", answer.status == 200, f"{answer.status} {body[:300]!r}")

    def look(self, dice, connection):
        path = dice.choice(["/v1/models", "/healthz", "/readyz", "/api/providers", "/api/logs", "/api/stats", "/metrics",
                            "/api/usage", "/api/alerts", "/"])
        connection.request("GET", path, headers={"authorization": f"Bearer {OWNER}"})
        answer = connection.getresponse()
        answer.read()
        self.note("views", answer.status == 200, f"{path} {answer.status}")

    def client(self, number):
        dice, connection = random.Random(number), self.connection()
        acts = [self.chat] * 6 + [self.stream] * 6 + [self.abort] * 3 + [self.fail] * 2 + [self.refused] + [self.embed] * 2 \
            + [self.look] * 2
        while not self.over.is_set():
            began = time.monotonic()
            act = dice.choice(acts)
            try:
                act(dice, connection)
            except (OSError, http.client.HTTPException) as error:
                # The server may close a connection behind any answer, and clients connect anew.
                connection.close()
                connection = self.connection()
                self.note(f"{act.__name__} on a connection that had ended", True, str(error))
            self.over.wait(max(0, CLIENTS / self.rate - (time.monotonic() - began)))
        connection.close()

    # What the owner does.

    def page(self):
        """The live log as the page reads it, opened anew now and then."""
        while not self.over.is_set():
            connection = self.connection()
            try:
                connection.request("GET", "/api/events", headers={"authorization": f"Bearer {OWNER}"})
                answer, until = connection.getresponse(), time.monotonic() + 45
                while time.monotonic() < until and not self.over.is_set() and answer.readline():
                    pass
                self.note("live log", answer.status == 200, str(answer.status))
            except (OSError, http.client.HTTPException) as error:
                self.note("live log", False, str(error))
                self.over.wait(1)
            finally:
                connection.close()

    def owner(self):
        """Reloads, with a provider file that comes and goes; lets upstreams fail anew, and lifts benches so that they are
        asked. The upstreams forget what they were asked, or they would be what grows."""
        spare = self.root / "providers" / "spare.json"
        turn = 0
        while True:
            turn += 1
            self.alpha.control(reset=True, byModel={"flaky": FAILURES})
            self.beta.control(reset=True, byModel={"flaky": [{}, {"status": 500}, {}]})
            if self.over.wait(5):
                break
            if spare.exists():
                spare.unlink()
            else:
                provider(self.root, "spare", self.beta.url + "/v1", ["spare-model"])
            headers = {"authorization": f"Bearer {OWNER}"}
            status, _, body = call("POST", self.url + "/api/reload", {}, headers)
            self.note("reload", status == 200, body[:200])
            if turn % 4 == 0:
                call("DELETE", self.url + "/api/benches", headers=headers)


def sample(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    number = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    descriptors = len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))
    return int(number["VmRSS"]), descriptors, int(number["Threads"]), int(number["VmHWM"])


def slope_an_hour(samples):
    """How much a value rises in an hour, by the straight line that lies closest to all samples."""
    mean_t = sum(t for t, _ in samples) / len(samples)
    mean_v = sum(v for _, v in samples) / len(samples)
    spread = sum((t - mean_t) ** 2 for t, _ in samples)
    return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in samples) / spread if spread else 0.0


def judge(samples, minutes, wrong):
    """What is not as it should be over the last two thirds."""
    late = [one for one in samples if one[0] >= minutes * 60 / 3]
    faults = list(wrong)
    rise = slope_an_hour([(t, rss) for t, rss, *_ in late])
    print(f"resident memory over the last {minutes * 2 / 3:.0f} minutes: {rise / 1024:+.2f} MiB an hour; "
          f"peak {samples[-1][4] / 1024:.1f} MiB")
    hours = minutes * 2 / 3 / 60
    if rise * hours >= max(RSS_RISE_MAX_KIB_H * hours, RSS_NOISE_KIB):
        faults.append(f"resident memory rises by {rise / 1024:.2f} MiB an hour")
    if samples[-1][4] > PEAK_MAX_KIB:
        faults.append(f"the peak of resident memory is {samples[-1][4] / 1024:.1f} MiB")
    for place, name in ((2, "descriptors"), (3, "threads")):
        values = [one[place] for one in late]
        half = len(values) // 2
        # The load is the same throughout, so that the highest of each half must be, too.
        first, second = max(values[:half]), max(values[half:])
        print(f"{name}: at most {first}, then {second}")
        if second > first + COUNT_RISE_MAX:
            faults.append(f"{name} rise from {first} to {second}")
    return faults


def main():
    arguments = argparse.ArgumentParser(description="mixed traffic for a long time, and whether the gateway grows by it")
    arguments.add_argument("binaries", type=pathlib.Path)
    arguments.add_argument("--minutes", type=float, default=60)
    arguments.add_argument("--rate", type=float, default=40, help="requests a second, of all clients together")
    options = arguments.parse_args()
    mock = options.binaries / "mock-upstream"
    with tempfile.TemporaryDirectory() as folder, Mock(mock, "alpha") as alpha, Mock(mock, "beta") as beta:
        root = pathlib.Path(folder)
        chat = [{"id": name, "caps": ["chat", "tools", "json"], "context": 128_000} for name in ("m", "flaky")]
        provider(root, "alpha", alpha.url + "/v1", [*chat, {"id": "e", "caps": ["embed"]}], priority=1)
        provider(root, "beta", beta.url + "/v1", chat, priority=2)
        env = {"ALPHA_KEY": "alpha-key", "BETA_KEY": "beta-key", "FREEWAY_KEYS": CLIENT, "FREEWAY_ADMIN_KEY": OWNER,
               "FREEWAY_LOG": "error"}
        with gateway(options.binaries / "freeway", root, env) as freeway:
            faults = watch(Soak(freeway.url, alpha, beta, root, options.rate), freeway, options.minutes)
    if faults:
        print("\n".join(f"FAILED  {fault}" for fault in faults))
        sys.exit("soak: failed")
    print("soak: passed")


def watch(soak, freeway, minutes):
    threads = [threading.Thread(target=soak.client, args=(number,)) for number in range(CLIENTS)]
    threads += [threading.Thread(target=soak.page) for _ in range(2)] + [threading.Thread(target=soak.owner)]
    for thread in threads:
        thread.start()
    samples, began, told = [], time.monotonic(), 0
    print("minute   resident KiB   descriptors   threads   requests", flush=True)
    try:
        while (passed := time.monotonic() - began) < minutes * 60:
            time.sleep(SAMPLE_EVERY_S)
            if freeway.process.poll() is not None:
                return [f"the gateway ended with {freeway.process.returncode}:\n{freeway.log()}"]
            samples.append((time.monotonic() - began, *sample(freeway.pid)))
            if passed // 60 >= told:
                told = passed // 60 + 1
                _, rss, descriptors, count, _ = samples[-1]
                print(f"{passed / 60:6.0f} {rss:14,} {descriptors:13} {count:9} {sum(soak.done.values()):10,}", flush=True)
    finally:
        soak.over.set()
        for thread in threads:
            thread.join()
    print("done: " + ", ".join(f"{count:,} x {what}" for what, count in sorted(soak.done.items())))
    return judge(samples, minutes, soak.wrong)


if __name__ == "__main__":
    main()
