"""What is stored costs: bytes written for answers in the cache and turns of conversations, and the time to go on with a
long one."""
import http.client
import json
import os
import random
import signal
import statistics
import sys
import time
import urllib.parse

import servers
from machine import written_bytes
from processes import call

ANSWERS = 10_000
TURNS = 1_000
CONVERSATIONS = 50
# Words of a prompt. They are drawn from many, so that they cannot be packed much better than prose.
PROMPT_WORDS = 60
LONG_MESSAGES = 2_000


def _words(count):
    syllables = ["ka", "ro", "mi", "te", "lun", "sha", "vor", "ne", "qui", "bel", "dra", "po", "ist", "um", "fe", "gal"]
    return " ".join("".join(random.choices(syllables, k=random.randint(1, 4))) for _ in range(count))


def _say(server, session, messages):
    body = {"model": "auto", "session": session, "messages": messages}
    status, _, text = call("POST", f"{server.url}/v1/chat/completions", body,
                                   {"authorization": f"Bearer {servers.CLIENT_KEY}"})
    if status != 200:
        sys.exit(f"bench: a turn was answered with {status}: {text}")
    return json.loads(text)["choices"][0]["message"]["content"]


def _written_to_the_end(server):
    """All that a program has written when it has ended, its last checkpoint included. Its process waits to be reaped
    until it was looked at."""
    os.kill(server.pid, signal.SIGTERM)
    while os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        time.sleep(0.01)
    return written_bytes(server.pid)


def answers_beyond_content(root, upstream_url):
    """KiB written for each answer in the cache beyond the answer itself."""
    random.seed(6)
    with servers.freeway(root, upstream_url, {"cache": {"maxEntries": ANSWERS}}) as server:
        servers.chat(server)
        before, content = written_bytes(server.pid), 0
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=30)
        headers = {"content-type": "application/json", "authorization": f"Bearer {servers.CLIENT_KEY}"}
        for number in range(ANSWERS):
            messages = [{"role": "user", "content": f"{number} {_words(PROMPT_WORDS)}"}]
            body = json.dumps({"model": "auto", "temperature": 0, "messages": messages})
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                sys.exit(f"bench: a call was answered with {answer.status}: {text}")
            content += len(text)
        connection.close()
        return (_written_to_the_end(server) - before - content) / ANSWERS / 1024


def turns_beyond_content(root, upstream_url):
    """KiB written for each turn beyond the text of the turn itself."""
    random.seed(7)
    with servers.freeway(root, upstream_url, {"sessions": {"max": 10_000}}) as server:
        # Making the database is not part of a turn.
        servers.chat(server)
        before, content = written_bytes(server.pid), 0
        for turn in range(TURNS):
            prompt = _words(PROMPT_WORDS)
            answer = _say(server, f"thread-{turn % CONVERSATIONS}", [{"role": "user", "content": prompt}])
            content += len(prompt) + len(answer)
        return (_written_to_the_end(server) - before - content) / TURNS / 1024


def long_conversation_ms(root, upstream_url, rounds):
    """What it adds to a call, in the median, that its conversation has 2,000 messages."""
    random.seed(8)
    settings = {"guard": {"maxMessages": 100_000}}
    with servers.freeway(root, upstream_url, settings) as server:
        history = [{"role": ("user", "assistant")[at % 2], "content": _words(PROMPT_WORDS)} for at in range(LONG_MESSAGES)]
        _say(server, "long", history)
        took = {"long": [], "short": []}
        for number in range(rounds):
            for session in took:
                name = session if session == "long" else f"short-{number}"
                began = time.monotonic()
                _say(server, name, [{"role": "user", "content": "and now?"}])
                took[session].append((time.monotonic() - began) * 1000)
        return statistics.median(took["long"]) - statistics.median(took["short"])
