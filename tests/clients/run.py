"""Runs the official OpenAI clients against the built gateway, with a mock as its upstream.

    python3 tests/clients/run.py                  what `make clients` does; build first
    python3 tests/clients/run.py --mock-only      the clients against the mock itself, to test the tests

The clients are installed once, into `.cache/clients`, from the package registries.
"""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
CACHE = TOP / ".cache" / "clients"
sys.path.insert(0, str(HERE.parent / "scripts"))
from packages import install  # noqa: E402
from processes import Mock, gateway, provider  # noqa: E402

BINARIES = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")) / "debug"
CLIENT_KEY = "fw-client-test"
CLIENT_LIMIT_S = 300


def install_all():
    python, node = CACHE / "python", CACHE / "node"
    pip = ["venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
    install(python, HERE / "requirements.txt", [
        ([sys.executable, "-m", "venv", "--clear", "venv"], "python3-venv"),
        ([*pip, "requirements.txt"], "python3-venv"),
    ])
    npm = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error"]
    install(node, HERE / "package.json", [(npm, "npm")])
    return {
        "python": [python / "venv" / "bin" / "python", HERE / "openai_python.py"],
        "node": ["node", HERE / "openai_node.mjs"],
    }


def run_client(name, command, env):
    """Runs one client; its passed and failed cases by name."""
    env = {**os.environ, **env, "CLIENTS_MODULES": str(CACHE / "node"), "NO_PROXY": "127.0.0.1"}
    for unwanted in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        env.pop(unwanted, None)
    try:
        ran = subprocess.run([str(part) for part in command], env=env, text=True, timeout=CLIENT_LIMIT_S,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, code = ran.stdout, ran.returncode
    except subprocess.TimeoutExpired as late:
        output, code = f"{(late.stdout or b'').decode()}\nit did not end within {CLIENT_LIMIT_S} s\n", None
    for line in output.splitlines():
        print(f"  {name}: {line}")
    words = [line.split() for line in output.splitlines() if line.startswith(("ok ", "FAILED "))]
    passed, failed = ([word[1] for word in words if word[0] == mark] for mark in ("ok", "FAILED"))
    if code != (1 if failed else 0) or not words:
        failed.append(f"exit-{code}")
    return passed, failed


def main():
    mock_only = "--mock-only" in sys.argv
    clients = install_all()
    passed, failed, cases = [], [], {}
    with contextlib.ExitStack() as running:
        root = running.enter_context(tempfile.TemporaryDirectory(prefix="freeway-clients-"))
        mock = running.enter_context(Mock(BINARIES / "mock-upstream", "alpha"))
        env = {"CLIENTS_KEY": CLIENT_KEY, "CLIENTS_MOCK": mock.url}
        if mock_only:
            served = mock
            env |= {"CLIENTS_MODEL": "mock-small", "CLIENTS_EMBED_MODEL": "mock-embed"}
        else:
            provider(root, "alpha", mock.url + "/v1", ["mock-small", {"id": "mock-embed", "caps": ["embed"]}])
            keys = {"FREEWAY_KEYS": CLIENT_KEY, "ALPHA_KEY": "upstream-key"}
            served = running.enter_context(gateway(BINARIES / "freeway", root, keys))
            env |= {"CLIENTS_GATEWAY": "1", "CLIENTS_MODEL": "alpha/mock-small",
                    "CLIENTS_EMBED_MODEL": "alpha/mock-embed"}
        for name, command in clients.items():
            ok, bad = run_client(name, command, {**env, "CLIENTS_BASE_URL": served.url + "/v1"})
            cases[name] = {*ok, *bad}
            passed += [f"{name}.{case}" for case in ok]
            failed += [f"{name}.{case}" for case in bad]
        if served is not mock and served.stop() != 0:
            failed.append("the gateway did not stop with exit code 0")
        if failed:
            print(f"the log of {served.name} ends:\n{served.log()}")
    if cases["python"] != cases["node"]:
        failed.append(f"the clients differ in their cases: {sorted(cases['python'] ^ cases['node'])}")
    for case in failed:
        print(f"FAILED {case}")
    print(f"clients: {len(passed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
