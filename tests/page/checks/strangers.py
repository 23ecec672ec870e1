"""Pages of strangers in the owner's own browser: on another origin, and under a name that they have made point here. The
gateway asks for no key on this machine, which is what makes it worth attacking."""
import contextlib
import http.server
import json
import threading
import urllib.parse

from processes import call

# Reserved for documentation; the browser is told that it is this machine.
STRANGER = "evil.example"

# Everything that a page can try. Each attempt tells what it could read, or nothing.
ATTEMPTS = """async (gateway) => {
  const seen = {};
  const attempt = async (name, path, options) => {
    try {
      const answer = await fetch(gateway + path, options);
      seen[name] = answer.type === 'opaque' ? 'opaque' : `${answer.status} ${(await answer.text()).slice(0, 300)}`;
    } catch (error) { seen[name] = 'blocked'; }
  };
  const switchOff = JSON.stringify({ enabled: false });
  const chat = JSON.stringify({ model: 'fast', messages: [{ role: 'user', content: 'spend' }] });
  const json = { 'content-type': 'application/json' };
  for (const path of ['/', '/api/stats', '/api/logs', '/api/providers', '/api/settings', '/v1/models', '/metrics']) {
    await attempt(`read ${path}`, path, {});
    await attempt(`read ${path} unseen`, path, { mode: 'no-cors', credentials: 'include' });
  }
  for (const [name, path, body] of [['switch', '/api/providers/alpha/enabled', switchOff], ['spend', '/v1/chat/completions', chat],
    ['key', '/api/providers/gamma/key', '{"key":"stolen-or-planted-0001"}'], ['client', '/api/clients', '{"name":"mine"}']]) {
    await attempt(`${name} as JSON`, path, { method: 'POST', body, headers: json });
    await attempt(`${name} as text`, path, { method: 'POST', body });
    await attempt(`${name} unseen`, path, { method: 'POST', body, mode: 'no-cors', credentials: 'include' });
    const form = document.createElement('form');
    form.method = 'post'; form.enctype = 'text/plain'; form.action = gateway + path; form.target = 'nowhere';
    const field = document.createElement('input');
    [field.name, field.value] = [body.slice(0, -1) + ',"x":"', '"}'];
    form.append(field);
    document.body.append(form);
    form.submit();
  }
  const frame = document.createElement('iframe');
  frame.src = gateway + '/';
  document.body.append(frame);
  await new Promise((done) => setTimeout(done, 1500));
  try { seen['read a frame'] = frame.contentDocument?.body?.innerText || 'blocked'; } catch (error) { seen['read a frame'] = 'blocked'; }
  seen['listen'] = await new Promise((done) => {
    const source = new EventSource(gateway + '/api/events');
    source.onmessage = source.onopen = () => done('open');
    source.onerror = () => done('blocked');
  });
  return seen;
}"""


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<!doctype html><title>a stranger</title><body><iframe name=nowhere></iframe>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def stranger(stage):
    """A browser for which the stranger's name is this machine, and the port of the stranger's own page."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = stage.browser.browser_type.launch(
        executable_path=stage.executable, args=["--no-sandbox", f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1"])
    try:
        yield browser, server.server_address[1]
    finally:
        browser.close()
        server.shutdown()
        server.server_close()


def state(world):
    """What the attempts would change."""
    providers = json.loads(call("GET", world.url + "/api/providers")[2])["providers"]
    clients = call("GET", world.url + "/api/clients")[2]
    return [(one["id"], one["enabled"], len(one["keys"])) for one in providers], clients


def check_a_page_of_another_origin_reads_and_changes_nothing(stage):
    world = stage.world()
    world.chat("what nobody else may read")
    before, calls = state(world), len(world.mocks["alpha"].calls("/chat/completions"))
    with stranger(stage) as (browser, port):
        for host in (STRANGER, "127.0.0.1"):
            page = browser.new_page()
            page.goto(f"http://{host}:{port}/")
            seen = page.evaluate(ATTEMPTS, world.url)
            leaks = {name: what for name, what in seen.items() if what not in ("blocked", "opaque")}
            assert not leaks, (host, leaks)
            page.close()
    assert state(world) == before
    assert len(world.mocks["alpha"].calls("/chat/completions")) == calls, "a stranger has spent quota"


def check_a_name_made_to_point_here_opens_nothing(stage):
    world = stage.world()
    world.chat("what nobody else may read")
    before, calls = state(world), len(world.mocks["alpha"].calls("/chat/completions"))
    port = urllib.parse.urlsplit(world.url).port
    with stranger(stage) as (browser, _):
        page = browser.new_page()
        # The page that is answered is the refusal itself, whose origin is the gateway's by now.
        answer = page.goto(f"http://{STRANGER}:{port}/")
        assert answer.status == 421, answer.status
        seen = page.evaluate(ATTEMPTS, f"http://{STRANGER}:{port}")
        leaks = {name: what for name, what in seen.items()
                 if what not in ("blocked", "opaque") and "this gateway is not known by the name" not in what}
        assert not leaks, leaks
        assert not any("nobody else" in what for what in seen.values())
    assert state(world) == before
    assert len(world.mocks["alpha"].calls("/chat/completions")) == calls, "a stranger has spent quota"
