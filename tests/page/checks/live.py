"""What happens while somebody looks: it appears by itself, and takes nothing away."""
from playwright.sync_api import expect

from processes import call

# Rows of the log that may stand in the document.
ROWS_MAX = 150


def check_a_request_appears_without_reload(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("requests")
    panel = visitor.shown("requests")
    expect(visitor.page.locator("#pulse")).to_have_text("live")
    expect(panel.get_by_text("No request yet")).to_be_visible()
    world.chat("what is new?")
    first = panel.locator("ol.log > li").first
    expect(first).to_contain_text("fast → alpha/alpha-fast")
    expect(first).to_contain_text("200")
    visitor.go("overview")
    world.chat("and again", model="beta/beta-fast")
    expect(visitor.page.locator("section.overview ol.log > li").first).to_contain_text("beta/beta-fast → beta/beta-fast")
    assert visitor.counted("/") == 1, "nothing was reloaded"


def check_a_failover_can_be_looked_into(stage):
    world = stage.world()
    world.bend("alpha", {"status": 503, "body": {"error": {"message": "the <b>oven</b> is cold"}}})
    visitor = stage.visitor(world).open("requests")
    panel = visitor.shown("requests")
    world.chat("look into me")
    line = panel.locator("ol.log > li").first
    expect(line).to_contain_text("1 failed first")
    line.locator("summary").click()
    expect(line.locator(".attempts li")).to_contain_text("503")
    expect(line.locator(".attempts li")).to_contain_text("alpha/alpha-fast")
    expect(line.locator(".attempts li")).to_contain_text("the <b>oven</b> is cold")
    expect(line.locator(".detail")).to_contain_text("beta/beta-fast")
    expect(line.locator(".detail")).to_contain_text("look into me")


def check_refit_and_cache_are_told(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("requests")
    panel = visitor.shown("requests")
    for _ in range(2):
        world.chat("the same again", temperature=0)
    expect(panel.locator("ol.log > li").first).to_contain_text("exact cache")
    # More than the small model can take, in many turns of which it can take the last.
    turns = [{"role": role, "content": "word " * 150} for _ in range(12) for role in ("user", "assistant")]
    status, headers, body = call("POST", world.url + "/v1/chat/completions",
                                 {"model": "alpha/alpha-small", "messages": [*turns, {"role": "user", "content": "so?"}]})
    assert status == 200 and "x-freeway-context" in headers, body
    line = panel.locator("ol.log > li", has_text="alpha/alpha-small").first
    expect(line).to_contain_text("refit")
    expect(panel.locator("ol.log > li", has_text="notes for another")).to_have_count(1)
    line.locator("summary").click()
    expect(line.locator(".detail")).to_contain_text(headers["x-freeway-context"])


def check_the_log_can_be_searched(stage):
    world = stage.world()
    for words, model in [("one", "fast"), ("two", "beta/beta-fast"), ("three", "no-such-model")]:
        world.chat(words, model=model)
    visitor = stage.visitor(world).open("requests")
    panel = visitor.shown("requests")
    lines = panel.locator("ol.log > li")
    expect(lines).to_have_count(3)
    panel.get_by_role("searchbox").fill("beta-fast")
    expect(lines).to_have_count(1)
    panel.get_by_role("searchbox").fill("")
    panel.get_by_label("Which requests").select_option("failed")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("no-such-model")


def check_what_is_read_holds_still(stage):
    world = stage.world()
    for number in range(3):
        world.chat(f"before {number}")
    visitor = stage.visitor(world).open("requests")
    panel = visitor.shown("requests")
    lines = panel.locator("ol.log > li")
    expect(lines).to_have_count(3)
    second = lines.nth(1)
    key = second.get_attribute("data-key")
    second.locator("summary").click()
    for number in range(5):
        world.chat(f"after {number}")
    more = panel.get_by_role("button", name="5 new requests")
    expect(more).to_be_visible()
    assert lines.count() == 3 and lines.nth(1).get_attribute("data-key") == key, "nothing has moved"
    more.click()
    expect(lines).to_have_count(8)
    expect(panel.locator(f"li[data-key='{key}'] details")).to_have_attribute("open", "")


def check_the_log_is_bounded(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("requests")
    panel = visitor.shown("requests")
    for number in range(ROWS_MAX + 60):
        world.chat(f"number {number}")
    lines = panel.locator("ol.log > li")
    expect(lines.first).to_contain_text("fast")
    expect(panel.locator("p[role=status]")).to_contain_text(f"newest {ROWS_MAX} of {ROWS_MAX + 60}")
    assert lines.count() == ROWS_MAX


def check_the_page_comes_back_after_a_restart(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("requests")
    visitor.shown("requests")
    visitor.allow("Failed to load resource|ERR_|status of")
    port = world.url.rsplit(":", 1)[1]
    world.env["FREEWAY_PORT"] = port
    world.stop()
    expect(visitor.page.locator("#pulse")).to_have_text("reconnecting")
    world.start()
    expect(visitor.page.locator("#pulse")).to_have_text("live", timeout=20_000)
    world.chat("back again")
    expect(visitor.page.locator("section.requests ol.log > li").first).to_contain_text("fast")


def check_a_hidden_page_asks_nothing(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("providers")
    visitor.shown("providers")
    page = visitor.page
    page.evaluate("""() => {
      Object.defineProperty(document, 'hidden', {value: true, configurable: true});
      document.dispatchEvent(new Event('visibilitychange'));
    }""")
    expect(page.locator("#pulse")).to_have_text("paused")
    before = len(visitor.asked)
    world.chat("nobody looks")
    page.wait_for_timeout(11_000)
    assert len(visitor.asked) == before, visitor.asked[before:]
    page.evaluate("""() => {
      Object.defineProperty(document, 'hidden', {value: false, configurable: true});
      document.dispatchEvent(new Event('visibilitychange'));
    }""")
    expect(page.locator("#pulse")).to_have_text("live")
    visitor.go("requests")
    expect(page.locator("section.requests ol.log > li").first).to_contain_text("fast")
