"""The page in a real browser, against the built gateway with mocks as its upstreams.

    python3 tests/page/run.py              what `make page` does: every check; names of checks run only those
    python3 tests/page/run.py --shots      what `make shots` does: a picture of each panel, into .cache/page/shots
    python3 tests/page/run.py --bench      what `make bench-page` does: paint, weight and an hour's worth of requests

Playwright and axe-core are installed once, into `.cache/page`, from the package registries. The browser is a Chromium
that this machine has, else Debian's package where this may install it; without one this fails and says so.
"""
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
CACHE = TOP / ".cache" / "page"
sys.path.insert(0, str(HERE.parent / "scripts"))
from packages import find_or_add, install  # noqa: E402

# Under which names a Chromium is known.
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
PARTS = {"--shots": "shots.py", "--bench": "bench.py"}


def main():
    arguments = sys.argv[1:]
    part = PARTS.get(arguments[0]) if arguments else None
    browser = find_or_add(BROWSERS, "chromium")
    python, node = CACHE / "python", CACHE / "node"
    pip = ["venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
    install(python, HERE / "requirements.txt", [
        ([sys.executable, "-m", "venv", "--clear", "venv"], "python3-venv"),
        ([*pip, "requirements.txt"], "python3-venv"),
    ])
    npm = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error"]
    install(node, HERE / "package.json", [(npm, "npm")])
    axe = node / "node_modules" / "axe-core" / "axe.min.js"
    script = HERE / (part or "suite.py")
    rest = arguments[1:] if part else arguments
    ran = subprocess.run([python / "venv" / "bin" / "python", script, "--browser", browser, "--axe", axe, *rest])
    sys.exit(ran.returncode)


if __name__ == "__main__":
    main()
