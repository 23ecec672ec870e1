"""The parts that people use to ask, to connect, and to look back."""
import json

from playwright.sync_api import expect

from processes import call

SLOWLY = {"content": "one two three four five six seven", "splitEvery": 150, "dripMs": 200}


def check_the_playground_streams_and_shows_the_route(stage):
    world = stage.world()
    world.bend("alpha", SLOWLY)
    visitor = stage.visitor(world).open("playground")
    panel = visitor.shown("playground")
    panel.get_by_label("Your message").fill("count to seven")
    panel.get_by_role("button", name="Send").click()
    said = panel.locator(".turn:not(.user) .said")
    visitor.until("a part of the answer", lambda: 0 < len(said.inner_text()) < len(SLOWLY["content"]))
    expect(said).to_have_attribute("aria-busy", "true")
    expect(panel.locator(".route")).to_contain_text("x-freeway-provider: alpha")
    expect(said).to_have_text(SLOWLY["content"])
    expect(said).not_to_have_attribute("aria-busy", "true")
    expect(panel.locator(".route")).to_contain_text("x-freeway-model: alpha-fast")
    expect(panel.locator(".turn:not(.user) .who")).to_contain_text("tokens")
    panel.get_by_label("Your message").fill("and now stop")
    panel.get_by_label("Your message").press("Control+Enter")
    expect(panel.locator(".turn:not(.user)")).to_have_count(2)
    visitor.until("a part of the answer", lambda: len(said.last.inner_text()) > 0)
    panel.get_by_role("button", name="Stop").click()
    expect(panel.locator(".turn:not(.user) .who").last).to_have_text("stopped")
    assert len(said.last.inner_text()) < len(SLOWLY["content"])
    sent = [json.loads(one["body"]) if isinstance(one["body"], str) else one["body"] for one in world.mocks["alpha"].calls("/chat/completions")]
    assert [message["role"] for message in sent[-1]["messages"]] == ["user", "assistant", "user"], "the conversation goes along"


def check_the_playground_tells_what_went_wrong(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("playground")
    panel = visitor.shown("playground")
    visitor.allow("status of 404")
    panel.get_by_label("Model").fill("no-such-model")
    panel.get_by_label("Your message").fill("anybody there?")
    panel.get_by_role("button", name="Send").click()
    expect(panel.get_by_role("alert").last).to_contain_text("no-such-model")
    expect(panel.locator(".route")).to_contain_text("x-freeway-attempts: 0")


def check_the_guide_leads_from_no_key_to_a_first_answer(stage):
    world = stage.world(upstreams=["gamma"], keyed=[])
    visitor = stage.visitor(world).open()
    panel = visitor.shown("overview")
    guide = panel.locator(".guide")
    expect(guide).to_be_visible()
    ask = guide.get_by_role("button", name="Ask")
    expect(ask).to_be_disabled()
    expect(guide.get_by_role("link", name="Get a free key from Gamma")).to_have_attribute("href", "https://example.com/keys")
    guide.get_by_label("Key for Gamma").fill("gamma-first-key-0001")
    guide.get_by_role("button", name="Add").click()
    expect(guide.locator(".step").nth(0)).to_contain_class("done")
    expect(ask).to_be_enabled()
    ask.click()
    expect(guide.locator(".said")).to_contain_text("Say hello in five words.")
    expect(guide.locator(".step").nth(1)).to_contain_text("Served by gamma / gamma-fast")
    expect(guide.locator(".step").nth(1)).to_contain_class("done")
    expect(guide.locator(".step").nth(2)).to_contain_text(f"{world.url}/v1")
    visitor.page.reload()
    visitor.shown("overview")
    expect(visitor.page.locator(".guide")).to_be_hidden()


def check_a_client_key_is_shown_once_works_and_is_revoked(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("clients")
    panel = visitor.shown("clients")
    expect(panel.get_by_text("No client key")).to_be_visible()
    panel.get_by_label("Name").fill("kitchen tablet")
    panel.get_by_text("Rights and limits").click()
    panel.get_by_label("Requests a minute").fill("100")
    panel.get_by_role("button", name="Make a key").click()
    fresh = panel.get_by_label("The new key", exact=True)
    expect(fresh).to_be_focused()
    key = fresh.locator("code").inner_text()
    assert key.startswith("fw-"), key
    chat = {"model": "fast", "messages": [{"role": "user", "content": "hello"}]}
    ask = lambda bearer: call("POST", world.url + "/v1/chat/completions", chat, {"authorization": f"Bearer {bearer}"})[0]
    assert (ask(key), ask("fw-wrong")) == (200, 401)
    expect(panel.locator(".snippets pre code")).to_contain_text(key)
    visitor.page.reload()
    panel = visitor.shown("clients")
    keys = panel.get_by_role("region", name="Client keys").locator("tbody tr")
    expect(keys).to_contain_text("kitchen tablet")
    callers = panel.get_by_role("region", name="Callers of the last minute").locator("tbody tr", has_text="kitchen tablet")
    expect(callers).to_have_count(1)
    assert key not in visitor.page.content(), "it is shown once"
    panel.get_by_role("button", name="Revoke the key of kitchen tablet").click()
    expect(keys).to_contain_text("Revoke it for good?")
    keys.get_by_role("button").click()
    expect(panel.get_by_text("No client key")).to_be_visible()


def check_sessions_are_listed_read_and_deleted(stage):
    world = stage.world()
    world.chat("remember the blue door", session="house")
    visitor = stage.visitor(world).open("sessions")
    panel = visitor.shown("sessions")
    panel.get_by_role("button", name="house").click()
    reading = panel.get_by_label("The conversation")
    expect(reading).to_be_focused()
    expect(reading.locator(".turn.user")).to_contain_text("remember the blue door")
    expect(reading.locator(".turn")).to_have_count(2)
    delete = reading.get_by_role("button", name="Delete")
    delete.click()
    reading.get_by_role("button", name="Delete it for good?").click()
    expect(panel.get_by_text("No session")).to_be_visible()
    assert world.api("/api/sessions")["sessions"] == []


def check_the_cache_is_shown_and_emptied(stage):
    world = stage.world()
    for _ in range(3):
        world.chat("what costs nothing?", temperature=0)
    visitor = stage.visitor(world).open("cache")
    panel = visitor.shown("cache")
    figure = lambda name: panel.locator(f"[data-fact='{name}'] dd").first
    expect(figure("hits")).to_have_text("2")
    expect(figure("entries")).to_have_text("1")
    expect(panel.locator("tbody tr")).to_contain_text("alpha/alpha-fast")
    panel.get_by_role("button", name="Empty the cache").click()
    panel.get_by_role("button", name="Really empty it?").click()
    expect(figure("entries")).to_have_text("0")
    world.chat("what costs nothing?", temperature=0)
    assert len(world.mocks["alpha"].calls("/chat/completions")) == 2


def check_copying_works_on_plain_http(stage):
    world = stage.world(env={"FREEWAY_HOSTS": "freeway.test"})
    port = world.url.rsplit(":", 1)[1]
    browser = stage.browser.browser_type.launch(
        executable_path=stage.executable, args=["--no-sandbox", "--host-resolver-rules=MAP freeway.test 127.0.0.1"])
    try:
        page = browser.new_page()
        # On this machine by a name that is not loopback, the admin's rights are not given; the assets are.
        page.goto(f"http://freeway.test:{port}/page/icon.svg")
        page.goto(f"http://freeway.test:{port}/")
        assert page.evaluate("isSecureContext") is False
        done = page.evaluate("""async () => {
          const { copy } = await import('/page/dom.js');
          const field = document.createElement('textarea');
          field.id = 'into';
          document.body.prepend(field);
          return copy('a line\\nand another');
        }""")
        assert done is True
        page.locator("#into").focus()
        page.keyboard.press("Control+V")
        assert page.locator("#into").input_value() == "a line\nand another"
    finally:
        browser.close()
