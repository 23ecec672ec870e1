"""`make demo`: starts `freeway serve --demo` on a free port and shows a chat, a stream and a failover.

    python3 tests/scripts/demo.py PATH_OF_THE_BINARY

The demo's two upstreams live inside the gateway's own process. `alpha` comes first; its model behind the alias `shaky`
always fails, so a request for `shaky` has to end at `beta`. Exits with 1 when anything is not so.
"""
import http.client
import json
import sys
import tempfile
import time
import urllib.parse

from processes import gateway

SHOWN = ["x-freeway-provider", "x-freeway-model", "x-freeway-route", "x-freeway-attempts", "x-freeway-trail",
         "x-freeway-ms", "x-request-id"]
BOLD, DIM, GREEN, RED, PLAIN = ("\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m") if sys.stdout.isatty() else [""] * 5


def ask(url, model, text, stream):
    """Sends one chat request and prints what comes, as it comes. Gives status, headers and the answer's text."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    print("   says   ", end="", flush=True)
    said, done = "", False
    if stream and answer.status == 200:
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            done = done or data == "[DONE]"
            if data.startswith("{"):
                piece = "".join(choice["delta"].get("content") or "" for choice in json.loads(data)["choices"])
                said += piece
                print(piece, end="", flush=True)
        print()
    else:
        whole = json.loads(answer.read())
        said, done = (whole["choices"][0]["message"]["content"], True) if answer.status == 200 else ("", False)
        print(said or whole)
    connection.close()
    return answer.status, headers, said, done


def show(number, what, url, model, text, expected, stream=False):
    """One step of the demo; the list of what was not as expected."""
    print(f"\n{BOLD}{number}. {what}{PLAIN}\n   asks   model \"{model}\": {text}")
    started = time.monotonic()
    status, headers, said, done = ask(url, model, text, stream)
    print(f"   {DIM}status {status} in {(time.monotonic() - started) * 1000:.0f} ms{PLAIN}")
    for name in SHOWN:
        if name in headers:
            print(f"   {DIM}{name:<20}{PLAIN} {headers[name]}")
    wrong = [] if status == 200 and said and done else ["no whole answer"]
    for name, value in expected.items():
        seen = headers.get(name, "nothing")
        if value not in seen:
            wrong.append(f"{name} says {seen}, not {value}")
    verdict = f"{RED}not as expected: {'; '.join(wrong)}" if wrong else f"{GREEN}{expected['x-freeway-provider']} served it"
    print(f"   {verdict}{PLAIN}")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: demo.py PATH_OF_THE_BINARY")
    with (tempfile.TemporaryDirectory(prefix="freeway-demo-") as root,
          gateway(sys.argv[1], root, arguments=("serve", "--demo")) as served):
        print(f"freeway serve --demo: listening on {served.url}, with two upstreams of its own")
        alpha = {"x-freeway-provider": "alpha", "x-freeway-attempts": "1"}
        beta = {"x-freeway-provider": "beta", "x-freeway-attempts": "2", "x-freeway-trail": "alpha/"}
        wrong = show(1, "A chat", served.url, "auto", "What is a freeway?", alpha)
        wrong += show(2, "A stream", served.url, "fast", "Tell me more, word by word.", alpha, stream=True)
        wrong += show(3, "A failover: the first provider breaks, the second serves", served.url, "shaky",
                      "Is anybody there?", beta)
        if served.stop() != 0:
            wrong.append("the gateway did not stop with exit code 0")
        if wrong:
            print(f"\nThe gateway's log ends:\n{served.log()}\n{RED}The demo failed:{PLAIN} {'; '.join(wrong)}")
            sys.exit(1)
    print(f"\n{GREEN}All as it should be.{PLAIN} Put a key into .env and type `make run`.")


if __name__ == "__main__":
    main()
