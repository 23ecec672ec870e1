"""Provider keys: pasted, tried, imported, removed; and nothing half-typed is ever lost."""
from playwright.sync_api import expect

GOOD, BAD = "gamma-good-key-12345", "gamma-bad-key-12345"
REFUSED = {"status": 401, "body": {"error": {"message": "no such key", "type": "invalid_request_error"}}}


def card(visitor, provider):
    return visitor.page.locator(f"article[data-provider={provider}]")


def check_a_pasted_key_turns_its_card_green(stage):
    world = stage.world()
    world.mocks["gamma"].control(keys={BAD: {**REFUSED, "repeat": "forever"}})
    visitor = stage.visitor(world).open("providers")
    visitor.shown("providers")
    gamma = card(visitor, "gamma")
    expect(gamma).to_have_attribute("data-state", "warn")
    expect(gamma.locator(".state")).to_have_text("needs a key")
    expect(gamma.locator(".advice")).to_contain_text("GAMMA_KEY=")
    box = gamma.get_by_label("Key for Gamma")
    box.fill(BAD)
    box.press("Enter")
    expect(gamma.locator(".paste .told")).to_contain_text("refused")
    expect(gamma).to_have_attribute("data-state", "bad")
    gamma.get_by_role("button", name="Remove the key").click()
    expect(gamma).to_have_attribute("data-state", "warn")
    box.fill(GOOD)
    gamma.get_by_role("button", name="Add").click()
    expect(gamma.locator(".paste .told")).to_contain_text("working")
    expect(gamma).to_have_attribute("data-state", "good")
    expect(gamma.locator(".keys")).to_contain_text("pasted")
    assert box.input_value() == "", "the key does not stay in the field"
    assert any(call["path"].endswith("/models") for call in world.mocks["gamma"].calls()), "it was tried at once"
    for key in (GOOD, BAD):
        assert key not in visitor.page.content()
    status, headers, _ = world.chat("hello", model="gamma/gamma-fast")
    assert (status, headers["x-freeway-provider"]) == (200, "gamma")


def check_a_half_typed_key_survives_refreshes(stage):
    world = stage.world()
    visitor = stage.visitor(world, width=480, height=500).open("providers")
    visitor.shown("providers")
    page, gamma = visitor.page, card(visitor, "gamma")
    gamma.get_by_text("About", exact=True).click()
    box = gamma.get_by_label("Key for Gamma")
    box.click()
    page.keyboard.type("half-a-k")
    page.keyboard.press("ArrowLeft")
    scrolled = page.evaluate("scrollY")
    assert scrolled > 0, "the card lies below"
    asked = visitor.counted("/api/providers")
    for number in range(3):
        # Requests, a changed file and a changed order: all that makes cards new.
        world.chat(f"refresh {number}")
        world.api("/api/reload", "POST")
        world.api("/api/providers/alpha/enabled", "POST", {"enabled": number % 2 == 1})
        visitor.until("a refresh", lambda: visitor.counted("/api/providers") > asked + number)
    expect(card(visitor, "alpha")).to_have_attribute("data-state", "off")
    assert box.input_value() == "half-a-k"
    expect(box).to_be_focused()
    assert page.evaluate("document.activeElement.selectionStart") == 7, "the caret is where it was"
    assert page.evaluate("scrollY") == scrolled
    expect(gamma.locator("details").last).to_have_attribute("open", "")
    page.keyboard.type("!")
    assert box.input_value() == "half-a-!k"
    visitor.go("overview")
    visitor.go("providers")
    assert box.input_value() == "half-a-!k", "another panel takes nothing away either"


def check_a_whole_env_is_looked_at_before_it_is_kept(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("providers")
    panel = visitor.shown("providers")
    panel.get_by_text("Paste many keys at once").click()
    area = panel.get_by_label("A whole .env, or an export of keys")
    area.fill(f"# my keys\nGAMMA_KEY={GOOD}\nALPHA_KEY=alpha-second-key-0002\nWHO_KNOWS_KEY=some-key-of-somebody\n")
    panel.get_by_role("button", name="Look what is in it").click()
    picks = panel.locator(".picks li")
    expect(picks).to_have_count(3)
    expect(panel.locator(".import > .told")).to_contain_text("Nothing is kept yet")
    assert len(world.api("/api/keys")["keys"]) == 2, "a look changes nothing"
    assert GOOD not in panel.locator(".picks").inner_text(), "keys are shown masked"
    boxes = picks.get_by_role("checkbox")
    assert [box.is_checked() for box in boxes.all()] == [True, True, False]
    picks.nth(1).get_by_role("checkbox").uncheck()
    panel.get_by_role("button", name="Add the chosen keys").click()
    expect(panel.locator(".import > .told")).to_contain_text("1 added")
    assert area.input_value() == ""
    keys = world.api("/api/keys")["keys"]
    assert sorted((key["provider"], key["source"]) for key in keys) == [
        ("alpha", "ALPHA_KEY"), ("beta", "BETA_KEY"), ("gamma", "vault")], keys
    expect(card(visitor, "gamma").locator(".keys")).to_contain_text("pasted")


def check_keys_can_be_exported(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("providers")
    panel = visitor.shown("providers")
    panel.get_by_text("Paste many keys at once").click()
    panel.get_by_text("Export the keys").click()
    with visitor.page.expect_download() as got:
        panel.get_by_role("link", name=".env").click()
    assert "alpha-upstream-key-0001" in open(got.value.path()).read()


def check_a_probe_tells_what_it_found(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("providers")
    visitor.shown("providers")
    alpha = card(visitor, "alpha")
    alpha.get_by_role("button", name="Deep probe").click()
    expect(alpha.locator(".told").last).to_contain_text("2 models listed")
    expect(alpha.locator(".told").last).to_contain_text("2 of 2 answered")
