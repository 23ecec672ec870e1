"""`make bench`: every row of the budget table, beside a direct call and beside nginx as a plain proxy.

Direct, nginx and Freeway take turns within each measurement, so that their ratios mean something on a noisy machine.
A measurement during which other programs took more than 5 % of the machine is void. Exits with 1 when a "must" is
missed. See README.md for what each row means.

    BENCH_SECONDS   time for one turn (6); 2 gives a quick, rough look
"""
import contextlib
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time

import stored
import servers
from budget import Row, table
from machine import Gauge, cpu_s, memory_mib, wake_ups, writes_are_counted, written_bytes
from servers import CLIENT_KEY, HERE, RIG, TARGET, TOP

SECONDS = max(1, int(os.environ.get("BENCH_SECONDS", "6")))
QUICK = SECONDS < 4
ROUNDS = 1 if QUICK else 3
STARTS = 3 if QUICK else 7
OUT = HERE / "out"
TRICKLE_EVERY_S = 10
# Fewer requests than this say little about a day.
TRICKLE_REQUESTS_MIN = 12
REQUESTS_A_DAY = 24 * 3600 // TRICKLE_EVERY_S
# Rows wait for at most a minute before they are written.
FLUSH_S = 65
MIB = 1024 * 1024


def say(text):
    print(f"bench: {text}", flush=True)


def prepare():
    """Installs what is missing when that is possible, and builds all programs."""
    path = os.environ["PATH"] + ":/usr/sbin"
    missing = [name for name in ("nginx", "wrk") if not shutil.which(name, path=path)]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"installing {' and '.join(missing)}")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = ["nginx-light" if name == "nginx" else name for name in missing]
        subprocess.run(["apt-get", "update", "-qq"], env=env, check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=env, check=True,
                       stdout=subprocess.DEVNULL)
        # Debian starts nginx right away; only the one that this rig starts may run.
        subprocess.run(["service", "nginx", "stop"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    elif missing:
        sys.exit(f"bench: install {' and '.join(missing)} first (they are Debian packages), or run this as root")
    say("building")
    for folder in (TOP, HERE):
        subprocess.run(["cargo", "build", "--quiet", "--locked", "--release"], cwd=folder, check=True)
    # 500 streams are a thousand sockets and more, so all programs get what the machine allows.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def load(mode, *options):
    """Runs the load generator and reads its line of JSON."""
    ran = subprocess.run([RIG / "load", mode, "--key", CLIENT_KEY, *map(str, options)], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if ran.returncode != 0:
        sys.exit(f"bench: {ran.stderr.strip()}")
    return json.loads(ran.stdout)


def wrk(url, clients, seconds):
    env = {**os.environ, "BENCH_MODEL": "auto", "BENCH_KEY": CLIENT_KEY}
    ran = subprocess.run(["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "20s", "--latency", "-s",
                          HERE / "chat.lua", url + "/v1/chat/completions"], env=env, text=True, stdout=subprocess.PIPE)
    line = next((line for line in ran.stdout.splitlines() if line.startswith("JSON ")), None)
    if line is None:
        sys.exit(f"bench: wrk failed:\n{ran.stdout}")
    return json.loads(line.removeprefix("JSON "))


class Bench:
    """The three sides, and the rows found so far. `running` ends all that is started here."""

    def __init__(self, folder, running):
        self.folder = folder
        self.rows, self.notes, self.figures = [], [], {}
        self.upstream = running.enter_context(servers.upstream())
        self.nginx = running.enter_context(servers.Nginx(folder / "nginx", self.upstream.url))
        self.trickle = running.enter_context(servers.freeway(folder / "trickle", self.upstream.url))
        self.freeway = running.enter_context(servers.freeway(folder / "freeway", self.upstream.url))
        self.counted = writes_are_counted(folder)

    @property
    def sides(self):
        return {"direct": self.upstream, "nginx": self.nginx, "freeway": self.freeway}

    def turns(self):
        """All sides in every round, each of them first as often as the others."""
        sides = list(self.sides.items())
        for number in range(ROUNDS):
            first = number % len(sides)
            yield from sides[first:] + sides[:first]

    def gauge(self, *more):
        return Gauge([self.upstream, self.nginx, self.trickle, self.freeway, *more])

    def row(self, *args, **kwargs):
        self.rows.append(Row(*args, **kwargs))


def idle(bench, when, settle_s):
    """Wake-ups and writes of the gateway while nobody asks for anything."""
    say(f"idle, {when}")
    time.sleep(settle_s)
    pid, seconds = bench.freeway.pid, 5 if QUICK else 30
    with bench.gauge() as gauge:
        woken, written = wake_ups(pid), written_bytes(pid)
        time.sleep(seconds)
        woken, written = (wake_ups(pid) - woken) / seconds, written_bytes(pid) - written
    bench.row(f"wake-ups when idle, {when}", "1/s", woken, 2, 1, gauge=gauge)
    bench.row(f"written when idle, {when}", "bytes", written if bench.counted else None, 0, 0, gauge=gauge,
              why_not="the disk here does not count")


def idle_memory(bench):
    servers.chat(bench.freeway)
    time.sleep(1 if QUICK else 5)
    bench.row("resident memory, idle", "MiB", memory_mib(bench.freeway.pid), 10, 8, memory_mib(bench.nginx.pid))


def starts(bench):
    """From starting the program to the first answered chat call; the two take turns."""
    say("starts")
    taken = {"nginx": [], "freeway": []}
    with bench.gauge() as gauge:
        for number in range(STARTS):
            for name, start in (("nginx", servers.Nginx), ("freeway", servers.freeway)):
                root = bench.folder / f"start-{name}"
                began = time.monotonic()
                with start(root, bench.upstream.url) as server:
                    servers.chat(server)
                    taken[name].append((time.monotonic() - began) * 1000)
    # The first start makes the data folder and reads the program from the disk; all count alike.
    bench.row("start to first answer", "ms", statistics.median(taken["freeway"]), 60, 25,
              statistics.median(taken["nginx"]), gauge=gauge)
    bench.figures["starts_ms"] = taken


def one_client(bench):
    say("one client")
    targets = [part for name, server in bench.sides.items() for part in ("--target", f"{name}={server.url}")]
    with bench.gauge() as gauge:
        seen = load("pair", "--seconds", SECONDS, "--model", "auto", *targets)
    bench.figures["pair_us"] = seen
    for share, judged in (("p50", True), ("p99", False)):
        direct, nginx, freeway = (seen[name][share] / 1000 for name in ("direct", "nginx", "freeway"))
        bounds = {"must": 3 * (nginx - direct), "aim": 1.6 * (nginx - direct)} if judged else {}
        bench.row(f"added to a chat call, one client, {'median' if judged else '99 %'}", "ms", freeway - direct,
                  nginx=nginx - direct, direct=f"({direct:.3f})", gauge=gauge, **bounds)


def exact_hits(bench):
    """What one client waits for an answer that the cache has, beside a call of the upstream itself."""
    say("exact hits")
    targets = [part for name in ("direct", "freeway") for part in ("--target", f"{name}={bench.sides[name].url}")]
    with bench.gauge() as gauge:
        seen = load("pair", "--same", 1, "--seconds", max(1, SECONDS // 2), "--model", "auto", *targets)
    direct, freeway = (seen[name]["p50"] / 1000 for name in ("direct", "freeway"))
    bench.row("an exact hit of the cache, one client, median", "ms", freeway, 2 * direct + 0.05, direct=f"({direct:.3f})",
              gauge=gauge)


def many_clients(bench):
    """64 clients as fast as they can: processor time, calls a second, bytes written."""
    say("64 clients")
    calls, seconds, used, failed = ({name: 0 for name in bench.sides} for _ in range(4))
    for name, server in bench.sides.items():
        wrk(server.url, 64, 1)
    written = written_bytes(bench.freeway.pid)
    with bench.gauge() as gauge:
        for name, server in bench.turns():
            before = cpu_s(server.pid)
            seen = wrk(server.url, 64, max(1, SECONDS // 2))
            used[name] += cpu_s(server.pid) - before
            calls[name] += seen["requests"]
            seconds[name] += seen["seconds"]
            failed[name] += seen["failed"]
    per_call = (written_bytes(bench.freeway.pid) - written) / max(1, calls["freeway"]) / 1024
    cost = {name: used[name] / max(1, calls[name]) * 10_000 for name in used}
    bench.row("processor time of 10,000 chat calls, 64 clients", "s", cost["freeway"], 6 * cost["nginx"],
              3 * cost["nginx"], cost["nginx"], gauge=gauge)
    rate = {name: calls[name] / seconds[name] for name in calls}
    bench.row("chat calls a second, 64 clients", "1/s", rate["freeway"], nginx=rate["nginx"], direct=rate["direct"])
    bench.row("failed calls, 64 clients", "calls", failed["freeway"], 0, 0, failed["nginx"], failed["direct"])
    bench.row("written for each request under load", "KiB", per_call if bench.counted else None, 1, 0.5, gauge=gauge,
              why_not="the disk here does not count")


def streams(bench, clients, must_ms, aim_ms):
    """First tokens and processor time with so many streams at once."""
    say(f"{clients} streams")
    first, delay, chunks, used, failed = ({name: [] for name in bench.sides} for _ in range(5))
    with bench.gauge() as gauge:
        for name, server in bench.turns():
            before = cpu_s(server.pid)
            seen = load("stream", "--target", f"{name}={server.url}", "--model", "auto", "--clients", clients,
                        "--repeats", max(1, SECONDS // 2), "--chunks", 50, "--delay-ms", 20)
            used[name].append(cpu_s(server.pid) - before)
            first[name].append(seen["first_token"]["p50"] / 1000)
            delay[name].append(seen["chunk_delay"]["p50"] / 1000)
            chunks[name].append(seen["chunks"])
            failed[name].append(seen["failed"])
            if seen["failure"]:
                bench.notes.append(f"{name}, {clients} streams: {seen['failure']}")
    median = {name: statistics.median(values) for name, values in first.items()}
    bench.row(f"first token, {clients} streams, added median", "ms", median["freeway"] - median["direct"], must_ms, aim_ms,
              median["nginx"] - median["direct"], f"({median['direct']:.3f})", gauge)
    late = {name: statistics.median(values) for name, values in delay.items()}
    bench.row(f"delay of a chunk, {clients} streams, added median", "ms", late["freeway"] - late["direct"],
              nginx=late["nginx"] - late["direct"], direct=f"({late['direct']:.3f})")
    bench.row(f"failed streams of {clients}", "streams", sum(failed["freeway"]), 0, 0, sum(failed["nginx"]),
              sum(failed["direct"]))
    if clients == 64:
        cost = {name: sum(used[name]) / max(1, sum(chunks[name])) * 100_000 for name in used}
        bench.row("processor time of 100,000 chunks, 64 streams", "s", cost["freeway"], 2 * cost["nginx"],
                  1.4 * cost["nginx"], cost["nginx"], gauge=gauge)


def five_hundred_streams(bench):
    """500 streams at once on a gateway with a worker for each."""
    say("500 streams")
    with servers.freeway(bench.folder / "wide", bench.upstream.url, {"server": {"workers": 512}}) as wide:
        all_at_once(bench, wide)


def all_at_once(bench, wide):
    sides = {"direct": bench.upstream, "nginx": bench.nginx, "freeway": wide}
    chunks, delay_ms = (20, 100) if QUICK else (50, 200)
    incomplete, first = {}, {}
    with bench.gauge(wide) as gauge:
        for name, server in sides.items():
            seen = load("stream", "--target", f"{name}={server.url}", "--model", "auto", "--clients", 500, "--repeats", 1,
                        "--chunks", chunks, "--delay-ms", delay_ms, "--spread-ms", 1000)
            incomplete[name], first[name] = 500 - seen["complete"], seen["first_token"]["p50"] / 1000
            if seen["failure"]:
                bench.notes.append(f"{name}, 500 streams: {seen['failure']}")
    bench.row("resident memory, 500 streams at once", "MiB", memory_mib(wide.pid, "VmHWM"), 64, 40,
              memory_mib(bench.nginx.pid, "VmHWM"))
    bench.row("incomplete of 500 streams", "streams", incomplete["freeway"], 0, 0, incomplete["nginx"], incomplete["direct"])
    bench.row("first token, 500 streams, added median", "ms", first["freeway"] - first["direct"],
              nginx=first["nginx"] - first["direct"], direct=f"({first['direct']:.3f})", gauge=gauge)


def example(bench, name):
    """Runs one of examples/, and reads the figures that it prints, a name and a number in each line."""
    say(name)
    with bench.gauge() as gauge:
        ran = subprocess.run(["cargo", "run", "--quiet", "--locked", "--release", "--example", name], cwd=TOP,
                             text=True, stdout=subprocess.PIPE, check=True)
    lines = (line.split() for line in ran.stdout.splitlines())
    return {words[0]: float(words[1]) for words in lines if len(words) == 2}, gauge


def planning(bench):
    """The time to plan one request over a large catalogue: the slowest strategy."""
    found, gauge = example(bench, "plan_cost")
    bench.row("planning one request, slowest strategy, 40 providers, 1,500 models, 120 keys", "µs", found["plan_us"], 20, 10,
              gauge=gauge)


def refitting(bench):
    """The time to make a long conversation fit a small window, with a summary."""
    found, gauge = example(bench, "refit_cost")
    bench.row("refitting a conversation of 2,000 messages", "ms", found["refit_ms"], 20, 5, gauge=gauge)


def history(bench):
    """90 days of one request in ten seconds: the slowest view, and the file."""
    found, gauge = example(bench, "history_cost")
    bench.row("the slowest view over 90 days of one request in 10 s", "ms", found["history_view_ms"], 150, gauge=gauge)
    bench.row("the file of these 90 days", "MiB", found["history_file_mib"], 256)


def scanning(bench):
    """The semantic cache's scan beside one reading of the same bytes, as examples/scan_cost.rs prints them."""
    say("scan_cost")
    with bench.gauge() as gauge:
        ran = subprocess.run(["cargo", "run", "--quiet", "--locked", "--release", "--example", "scan_cost"], cwd=TOP,
                             text=True, stdout=subprocess.PIPE, check=True)
    found = {tuple(line.split()[:2]): float(line.split()[2]) for line in ran.stdout.splitlines()}
    for count in (5_000, 50_000):
        def figure(name):
            return found[name, str(count)]

        bench.row(f"scan of {count:,} vectors of 1,024", "ms", figure("scan_us") / 1000)
        bench.row(f"scan of {count:,} vectors, in readings of the same bytes", "x", figure("scan_ratio"), 1.5, 1.2, gauge=gauge)
        bench.row(f"memory of {count:,} vectors, in what their numbers take", "x", figure("scan_memory_ratio"), 1.05, 1.02)
    bench.figures["scan"] = {" ".join(key): value for key, value in found.items()}


def stored_conversations(bench):
    say("stored conversations")
    with bench.gauge() as gauge:
        answers = stored.answers_beyond_content(bench.folder / "answers", bench.upstream.url)
        written = stored.turns_beyond_content(bench.folder / "turns", bench.upstream.url)
        added = stored.long_conversation_ms(bench.folder / "long", bench.upstream.url, 5 if QUICK else 25)
    bench.row("written for each of 10,000 cached answers beyond them", "KiB", answers if bench.counted else None, 1,
              gauge=gauge, why_not="the disk here does not count")
    bench.row("written for each of 1,000 turns beyond their text", "KiB", written if bench.counted else None, 1,
              gauge=gauge, why_not="the disk here does not count")
    bench.row("added by a conversation of 2,000 messages, median", "ms", added, 20, gauge=gauge)


class Trickle(threading.Thread):
    """One request in ten seconds to a gateway of its own, beside all other measurements."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.ended, self.requests = server, threading.Event(), 0
        # Making the database is not part of a day.
        servers.chat(server)
        time.sleep(1)
        self.written = written_bytes(server.pid)
        self.start()

    def run(self):
        while not self.ended.wait(TRICKLE_EVERY_S):
            servers.chat(self.server)
            self.requests += 1

    def tell(self, bench):
        self.ended.set()
        written = written_bytes(self.server.pid) - self.written
        enough = bench.counted and self.requests >= TRICKLE_REQUESTS_MIN
        a_day = written / max(1, self.requests) * REQUESTS_A_DAY / MIB
        bench.row("written a day at one request in 10 s", "MiB", a_day if enough else None, 30, 15,
                  why_not=f"{self.requests} requests are too few" if bench.counted else "the disk here does not count")


def run(bench):
    trickle = Trickle(bench.trickle)
    idle(bench, "fresh", settle_s=3)
    idle_memory(bench)
    starts(bench)
    one_client(bench)
    exact_hits(bench)
    many_clients(bench)
    streams(bench, 16, 1.0, 0.4)
    streams(bench, 64, 1.5, 0.6)
    bench.row("resident memory, peak of all the above", "MiB", memory_mib(bench.freeway.pid, "VmHWM"), 24, 18,
              memory_mib(bench.nginx.pid, "VmHWM"))
    five_hundred_streams(bench)
    stored_conversations(bench)
    if not QUICK:
        idle(bench, "after load", settle_s=FLUSH_S)
    trickle.tell(bench)
    planning(bench)
    scanning(bench)
    refitting(bench)
    history(bench)
    bench.row("stripped binary", "MiB", (TARGET / "freeway").stat().st_size / MIB, 8, 6.5)


def report(bench, taken_s):
    text = table(bench.rows)
    notes = [f"{SECONDS} s for one turn, {ROUNDS} round(s), {taken_s:.0f} s in all"]
    notes += ["quick and rough: BENCH_SECONDS=6 is the real one"] if QUICK else []
    notes += bench.notes
    print(f"\n{text}\n\n" + "\n".join(f"- {note}" for note in notes))
    (OUT / "bench.md").write_text(f"{text}\n\n" + "".join(f"- {note}\n" for note in notes))
    rows = [{"name": row.name, "unit": row.unit, "freeway": row.freeway, "nginx": row.nginx, "direct": row.direct,
             "must": row.must, "aim": row.aim, "verdict": row.verdict()} for row in bench.rows]
    (OUT / "bench.json").write_text(json.dumps({"rows": rows, "notes": notes, **bench.figures}, indent=1) + "\n")
    missed = [row.name for row in bench.rows if row.missed]
    void = [row.name for row in bench.rows if row.void and row.must is not None]
    if void:
        say(f"void, to be run again on a quiet machine: {'; '.join(void)}")
    say(f"missed: {'; '.join(missed)}" if missed else "every must that was measured holds")
    return 1 if missed else 0


def main():
    prepare()
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "work").mkdir(parents=True)
    began = time.monotonic()
    with contextlib.ExitStack() as running:
        bench = Bench(OUT / "work", running)
        run(bench)
    shutil.rmtree(OUT / "work", ignore_errors=True)
    sys.exit(report(bench, time.monotonic() - began))


if __name__ == "__main__":
    main()
