"""Runs the checks of `checks/`: every function there whose name begins with `check_`, in its own world.

A check takes a `Stage`. One line a check; the last counts them. Exits with 1 when one fails.
"""
import importlib
import pathlib
import sys
import time
import traceback

from playwright.sync_api import sync_playwright

from visitor import Visitor, launch
from world import World, arguments

HERE = pathlib.Path(__file__).resolve().parent


class Stage:
    """What a check works with: worlds and visitors, which end with it."""

    def __init__(self, browser, executable, axe):
        self.browser, self.executable, self.axe = browser, executable, axe
        self._open = []

    def world(self, **options):
        world = World(**options)
        self._open.append(world)
        return world

    def visitor(self, world, **options):
        visitor = Visitor(self.browser, world.url, **options)
        self._open.append(visitor)
        return visitor

    def close(self, failed):
        for one in reversed(self._open):
            if isinstance(one, Visitor):
                one.close()
                if not failed:
                    assert not one.faults, "\n".join(one.faults)
            else:
                one.close()


def checks(wanted):
    for file in sorted((HERE / "checks").glob("*.py")):
        module = importlib.import_module(f"checks.{file.stem}")
        for name, check in list(vars(module).items()):
            short = f"{file.stem}.{name.removeprefix('check_')}"
            if name.startswith("check_") and (not wanted or any(one in short for one in wanted)):
                yield short, check


def run(name, check, stage):
    begun, fault = time.monotonic(), None
    try:
        check(stage)
    except Exception:
        fault = traceback.format_exc()
    try:
        stage.close(fault is not None)
    except Exception:
        fault = fault or traceback.format_exc()
    print(f"{'FAILED ' if fault else 'ok     '} {name} ({time.monotonic() - begun:.1f} s)", flush=True)
    if fault:
        print(fault, flush=True)
    return fault is None


def main():
    given = arguments(names={"nargs": "*"})
    axe = pathlib.Path(given.axe).read_text()
    with sync_playwright() as playwright:
        browser = launch(playwright, given.browser)
        results = [run(name, check, Stage(browser, given.browser, axe)) for name, check in checks(given.names)]
        browser.close()
    print(f"page: {sum(results)} passed, {len(results) - sum(results)} failed")
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
