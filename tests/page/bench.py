"""How heavy the page is: its first paint in front of a large catalog, and a long look at a busy log.

Prints figures, and exits with 1 when one is beyond its bound. The page's figures are the browser's own; the gateway's
processor time is the kernel's.
"""
import http.client
import json
import os
import statistics
import sys
import threading
import time
import urllib.parse

from playwright.sync_api import sync_playwright

from visitor import Visitor, launch
from world import TOP, World, arguments

PROVIDERS, MODELS = 40, 1_500
# Requests that stream into the log.
REQUESTS_PER_S = 20
# Aim for the first paint, in milliseconds.
PAINT_AIM_MS = 200
# How much the page's heap may grow between the second minute (or the fifth part of a shorter run) and the end.
HEAP_GROWTH_MAX = 0.10
# Nodes that the document may have with the log open.
NODES_MAX = 12_000
# What a page that looks may cost the gateway, as a share of one core.
WATCH_MAX = 0.05
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def large_catalog(world):
    """Forty providers with fifteen hundred models between them; all are the same upstream."""
    url = next(iter(world.mocks.values())).url + "/v1"
    for number in range(PROVIDERS - len(world.mocks)):
        models = [{"id": f"vendor/model-{number:02}-{at:02}", "caps": ["chat", "tools"], "context": 131_072,
                   "limits": {"rpm": 30, "rpd": 1_000}} for at in range(MODELS // (PROVIDERS - len(world.mocks)) + 1)]
        file = {"id": f"p{number:02}", "label": f"Provider {number:02}", "baseUrl": url, "modelsEndpoint": None,
                "auth": {"type": "bearer", "envKeys": [f"P{number:02}_KEY"]}, "priority": 50,
                "limits": {"rpm": 30, "rpd": 14_400, "tpm": 60_000}, "models": models, "notes": "One of forty."}
        (world.root / "providers" / f"p{number:02}.json").write_text(json.dumps(file))
        world.env[f"P{number:02}_KEY"] = f"key-{number:02}-a,key-{number:02}-b,key-{number:02}-c"
    world.stop()
    world.start()
    stats = world.api("/api/stats")
    print(f"catalog: {stats['providers']['total']} providers, {stats['models']['total']} models")


def paint(browser, world, panel, ready):
    """First paint and the moment at which the panel is whole, in milliseconds, without anything cached."""
    with Visitor(browser, world.url, width=1440, height=900) as visitor:
        visitor.open(panel)
        whole = visitor.page.evaluate(f"""() => new Promise((done) => {{
          const look = () => ({ready} ? done(performance.now()) : requestAnimationFrame(look));
          look();
        }})""")
        first = visitor.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        return first, whole


def paints(browser, world):
    """Told, not judged: how soon a browser paints depends on what else the machine does."""
    for panel, ready in [("overview", "document.querySelectorAll('.strip .health').length >= 40"),
                         ("providers", "document.querySelectorAll('.card').length >= 40"),
                         ("models", "document.querySelectorAll('.models tbody tr').length >= 100")]:
        runs = [paint(browser, world, panel, ready) for _ in range(7)]
        first, whole = (statistics.median(run[at] for run in runs) for at in (0, 1))
        print(f"paint: {panel}: first after {first:.0f} ms (aim {PAINT_AIM_MS}), whole after {whole:.0f} ms")


def processor_s(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


class Load(threading.Thread):
    """An app that asks twenty times a second; one request in ten fails over, one in twenty means nothing."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.address, self.ended, self.sent = urllib.parse.urlsplit(url).netloc, threading.Event(), 0

    def run(self):
        line = http.client.HTTPConnection(self.address, timeout=10)
        due = time.monotonic()
        while not self.ended.is_set():
            model = "no-such-model" if self.sent % 20 == 7 else "fast"
            body = {"model": model, "messages": [{"role": "user", "content": f"request {self.sent} " + "word " * 40}]}
            line.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            line.getresponse().read()
            self.sent += 1
            due += 1 / REQUESTS_PER_S
            time.sleep(max(0, due - time.monotonic()))


def heap(session):
    session.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return metrics["JSHeapUsedSize"], int(metrics["Nodes"])


def watch(browser, world, seconds):
    load, pid = Load(world.url), world.gateway.pid
    load.start()
    time.sleep(3)
    alone_s = max(20, seconds // 10)
    before = processor_s(pid)
    time.sleep(alone_s)
    alone = (processor_s(pid) - before) / alone_s
    with Visitor(browser, world.url, width=1440, height=900) as visitor:
        visitor.open("requests")
        visitor.shown("requests")
        session = visitor.context.new_cdp_session(visitor.page)
        session.send("Performance.enable")
        begun, before, early = time.monotonic(), processor_s(pid), None
        mark = min(120, seconds / 5)
        while (passed := time.monotonic() - begun) < seconds:
            visitor.page.wait_for_timeout(min(5, max(0.1, seconds - passed)) * 1000)
            if early is None and time.monotonic() - begun >= mark:
                early = heap(session)
        watched = (processor_s(pid) - before) / (time.monotonic() - begun)
        late = heap(session)
        rows = visitor.page.locator("ol.log > li:visible").count()
    load.ended.set()
    load.join()
    growth = late[0] / early[0] - 1
    cost = watched - alone
    print(f"log: {load.sent} requests, {rows} rows shown")
    print(f"log: heap {early[0] / 2**20:.2f} MiB after {mark:.0f} s, {late[0] / 2**20:.2f} MiB after {seconds} s ({growth:+.1%}, bound {HEAP_GROWTH_MAX:.0%})")
    print(f"log: {early[1]} nodes, then {late[1]} (bound {NODES_MAX})")
    print(f"log: gateway {alone:.2%} of a core serving, {watched:.2%} watched: {cost:+.2%} (bound {WATCH_MAX:.0%})")
    return growth <= HEAP_GROWTH_MAX and late[1] <= NODES_MAX and cost <= WATCH_MAX


def main():
    given = arguments(__seconds={"type": int, "default": 600})
    with sync_playwright() as playwright, World(upstreams=["alpha"], keyed=["alpha"], binaries=TOP / "target" / "release") as world:
        browser = launch(playwright, given.browser, "--enable-precise-memory-info")
        large_catalog(world)
        paints(browser, world)
        good = watch(browser, world, given.seconds)
        browser.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
