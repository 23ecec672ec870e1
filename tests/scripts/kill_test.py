"""`make kill-test ROUNDS=200`: load, SIGKILL at a random moment, restart; again and again on one data folder.

    python3 tests/scripts/kill_test.py FOLDER_OF_THE_BINARIES [ROUNDS [SEED]]

After every kill the database is whole, whatever was confirmed to the owner is still there (client keys, pasted keys,
overrides), and counters are at most 10 s and one commit behind the upstream's own log. Exits with 1 at the first round
where that does not hold, and says with which seed.
"""
import json
import pathlib
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time

from processes import Mock, call, gateway, provider

OWN = "fw-kill-test"
ADMIN = {"authorization": "Bearer admin-of-the-kill-test"}
CHAT = {"model": "alpha/m", "messages": [{"role": "user", "content": "hello"}]}
ASKING = 4
# What a kill may cost of the counters, and how long one commit may take on a busy machine.
LOST_MAX_S = 10
COMMIT_MAX_S = 3
# Keys that are pasted before others are removed again: a pool has a bound.
PASTED_MAX = 30
# Most kills come within moments, where everything is young; every fifth after the first state was written.
EARLY_S, LATE_S = (0.05, 1.5), (9.0, 14.0)


class Load:
    """Clients that ask as fast as they are answered, until the gateway is gone."""

    def __init__(self, url):
        self.url, self.over = url, threading.Event()
        self.threads = [threading.Thread(target=self.ask, daemon=True) for _ in range(ASKING)]
        for thread in self.threads:
            thread.start()

    def ask(self):
        while not self.over.is_set():
            try:
                call("POST", self.url + "/v1/chat/completions", CHAT, {"authorization": f"Bearer {OWN}"}, 10)
            except OSError:
                return  # It was killed.

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()


class Owner:
    """Changes something every now and then; what was confirmed must never be lost."""

    def __init__(self, rng):
        self.rng, self.clients, self.pasted, self.aliases = rng, set(), set(), {}
        self.number, self.removed, self.refused = 0, set(), []

    def change(self, url):
        self.number += 1
        name = f"thing-{self.number}"
        kind = self.rng.choice(["client", "key", "alias"])
        try:
            if kind == "client":
                status, _, body = call("POST", url + "/api/clients", {"name": name}, ADMIN, 10)
                if status == 201:
                    self.clients.add(json.loads(body)["client"]["id"])
            elif kind == "key" and len(self.pasted) >= PASTED_MAX:
                # Until it is confirmed it may be there or not.
                which = self.pasted.pop()
                status, _, body = call("DELETE", url + "/api/providers/beta/key", {"keyId": which}, ADMIN, 10)
                if status == 200:
                    self.removed.add(which)
            elif kind == "key":
                key = f"pasted-{name}-0123456789"
                status, _, body = call("POST", url + "/api/providers/beta/key", {"key": key}, ADMIN, 10)
                if status == 200:
                    self.pasted.add(json.loads(body)["keyId"])
            else:
                changes = {"aliases": {name: "alpha/m"}}
                status, _, body = call("PATCH", url + "/api/overrides", changes, ADMIN, 10)
                if status == 200:
                    self.aliases[name] = "alpha/m"
            if status not in (200, 201):
                self.refused.append(f"{kind}: {status} {body[:300]}")
        except OSError:
            pass  # The kill came first: it may be there or not.

    def expect_everything(self, url):
        assert not self.refused, self.refused

        def view(path):
            return json.loads(call("GET", url + path, headers=ADMIN)[2])

        clients = {one["id"] for one in view("/api/clients")["clients"]}
        assert self.clients <= clients, f"client keys are lost: {self.clients - clients}"
        keys = {one["keyId"] for one in view("/api/keys")["keys"]}
        assert self.pasted <= keys, f"pasted keys are lost: {self.pasted - keys}"
        assert not self.removed & keys, f"removed keys are back: {self.removed & keys}"
        aliases = view("/api/overrides")["overrides"].get("aliases", {})
        assert self.aliases.items() <= aliases.items(), f"overrides are lost: {set(self.aliases) - set(aliases)}"


def used(url):
    """Requests that count against the daily limit."""
    body = json.loads(call("GET", url + "/api/providers", headers=ADMIN)[2])
    alpha = next(one for one in body["providers"] if one["id"] == "alpha")
    return sum(bar["used"] for key in alpha["keys"] for bar in key["bars"] if bar["key"] == "rpd")


def expect_whole(data):
    """Looks at every page of a copy, so that the program meets the files as the kill left them."""
    with tempfile.TemporaryDirectory() as folder:
        for file in data.glob("freeway.db*"):
            shutil.copy(file, folder)
        database = sqlite3.connect(pathlib.Path(folder, "freeway.db"))
        verdict = database.execute("PRAGMA integrity_check").fetchall()
        database.close()
    assert verdict == [("ok",)], verdict


def one_round(binary, root, env, mock, owner, rng, before):
    """Starts, loads, kills, looks, and gives what counts after the next start."""
    late = rng.random() < 0.2
    lasts_s = rng.uniform(*(LATE_S if late else EARLY_S))
    mock.control(reset=True)
    program = gateway(binary, root, env)
    try:
        load = Load(program.url)
        killed_at = time.monotonic() + lasts_s
        while (left := killed_at - time.monotonic()) > 0:
            time.sleep(min(left, rng.uniform(0.05, 2.0 if late else 0.4)))
            if time.monotonic() < killed_at:
                # Beside the clock, so that a kill may come in the middle of a change.
                threading.Thread(target=owner.change, args=(program.url,), daemon=True).start()
        killed_ms = time.time() * 1000
    finally:
        program.kill()
    load.end()
    expect_whole(root / "data")
    calls = mock.calls("/chat/completions")
    old = sum(one["at"] <= killed_ms - (LOST_MAX_S + COMMIT_MAX_S) * 1000 for one in calls)
    with gateway(binary, root, env) as program:
        after = used(program.url)
        owner.expect_everything(program.url)
        reasons = json.loads(call("GET", program.url + "/readyz")[2])["reasons"]
        log = program.log()
        # An orderly stop would write what the next round is to lose.
        program.kill()
    assert reasons == [], f"{reasons}\n{log}"
    assert not list((root / "data").glob("*.damaged-*")), f"something was set aside\n{log}"
    most = before + len(calls) + ASKING
    assert before + old <= after <= most, f"{after} count, it should be {before + old} to {most}\n{log}"
    return after, len(calls), lasts_s


def main():
    folder = pathlib.Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}, {rounds} rounds", flush=True)
    rng = random.Random(seed)
    owner, count, served = Owner(rng), 0, 0
    env = {"ALPHA_KEY": "key-of-alpha", "FREEWAY_KEYS": OWN, "FREEWAY_ADMIN_KEY": ADMIN["authorization"].split()[1],
           "FREEWAY_LOG": "warn"}
    with tempfile.TemporaryDirectory() as root, Mock(folder / "mock-upstream", "alpha") as mock:
        root = pathlib.Path(root)
        # A window that slides does not begin anew at midnight.
        limits = {"rpd": {"max": 100_000_000, "window": "rolling"}}
        provider(root, "alpha", mock.url + "/v1", ["m"], limits=limits)
        # Keys are pasted here: one that is removed takes what was counted for it along.
        provider(root, "beta", mock.url + "/v1", ["m"])
        for number in range(1, rounds + 1):
            try:
                count, calls, lasts_s = one_round(folder / "freeway", root, env, mock, owner, rng, count)
            except AssertionError as error:
                print(f"round {number} of seed {seed} FAILED: {error}")
                sys.exit(1)
            served += calls
            print(f"round {number}: killed after {lasts_s:.2f} s and {calls} calls, {count:.0f} of {served} count",
                  flush=True)
    kept = len(owner.clients) + len(owner.pasted) + len(owner.aliases)
    print(f"{rounds} kills: the database was whole each time, none of {kept} confirmed changes was lost")


main()
