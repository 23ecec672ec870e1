"""What the owner changes on the page changes what the gateway does."""
import json

from playwright.sync_api import expect

SLOW_DOWN = {"status": 429, "headers": {"retry-after": "600"}, "body": {"error": {"message": "slow down"}}}


def served_by(world, model="fast"):
    status, headers, body = world.chat("who serves?", model=model)
    return headers.get("x-freeway-provider") if status == 200 else f"{status} {body}"


def check_a_switched_off_provider_gets_no_request(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("providers")
    visitor.shown("providers")
    assert served_by(world) == "alpha"
    switch = visitor.page.get_by_role("switch", name="Use Alpha")
    switch.click()
    expect(switch).to_have_attribute("aria-checked", "false")
    expect(visitor.page.locator("article[data-provider=alpha]")).to_have_attribute("data-state", "off")
    assert served_by(world) == "beta"
    calls = len(world.mocks["alpha"].calls("/chat/completions"))
    visitor.close()
    world.stop()
    world.start()
    assert served_by(world) == "beta", "it stays off over a restart"
    assert len(world.mocks["alpha"].calls("/chat/completions")) == calls
    visitor = stage.visitor(world).open("providers")
    visitor.shown("providers")
    visitor.page.get_by_role("switch", name="Use Alpha").click()
    expect(visitor.page.locator("article[data-provider=alpha]")).not_to_have_attribute("data-state", "off")
    assert served_by(world) == "alpha"


def check_a_switched_off_model_gets_no_request(stage):
    world = stage.world()
    visitor = stage.visitor(world).open("models")
    panel = visitor.shown("models")
    row = panel.locator("tr[data-key='alpha/alpha-fast']")
    row.get_by_role("switch").click()
    expect(row.get_by_role("button", name="As in the file")).to_be_visible()
    assert served_by(world) == "beta"
    row.get_by_role("button", name="As in the file").click()
    expect(row.get_by_role("switch")).to_have_attribute("aria-checked", "true")
    assert served_by(world) == "alpha"


def check_benches_are_shown_and_lifted(stage):
    world = stage.world()
    world.bend("alpha", SLOW_DOWN, {})
    assert served_by(world) == "beta"
    visitor = stage.visitor(world).open("benches")
    panel = visitor.shown("benches")
    row = panel.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("alpha")
    expect(row).to_contain_text("in 9 min")
    assert served_by(world) == "beta"
    row.get_by_role("button", name="Let back").click()
    expect(row).to_have_count(0)
    expect(panel.get_by_text("Nobody sits out")).to_be_visible()
    assert served_by(world) == "alpha"
    world.bend("alpha", SLOW_DOWN)
    world.bend("beta", SLOW_DOWN)
    world.chat("both rest now")
    expect(row).to_have_count(2)
    everybody = panel.get_by_role("button", name="Let all back")
    everybody.click()
    panel.get_by_role("button", name="Really all?").click()
    expect(row).to_have_count(0)
    assert world.api("/api/benches")["benches"] == []


def check_the_catalog_is_searched_and_paged(stage):
    world = stage.world()
    models = [{"id": f"model-{number:04}", "caps": ["chat", "vision"] if number % 2 else ["chat"]} for number in range(250)]
    path = world.root / "providers" / "delta.json"
    path.write_text(json.dumps({"id": "delta", "label": "Delta", "baseUrl": "http://127.0.0.1:9/v1", "modelsEndpoint": None,
                                              "auth": {"type": "bearer", "envKeys": ["DELTA_KEY"]}, "models": models}))
    world.api("/api/reload", "POST")
    visitor = stage.visitor(world).open("models")
    panel = visitor.shown("models")
    rows = panel.locator("tbody tr")
    panel.get_by_label("Provider").select_option("delta")
    expect(panel.locator("span[role=status]")).to_have_text("1–100 of 250")
    assert rows.count() == 100
    panel.get_by_role("button", name="Next").click()
    expect(panel.locator("span[role=status]")).to_have_text("101–200 of 250")
    panel.get_by_label("Ability").select_option("vision")
    expect(panel.locator("span[role=status]")).to_have_text("1–100 of 125")
    panel.get_by_role("searchbox").fill("0123")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("model-0123")
    expect(rows).to_contain_text("needs a key")


def check_settings_say_where_they_come_from(stage):
    world = stage.world(env={"FREEWAY_STRATEGY": "fastest"}, files={".env": "FREEWAY_LOG=debug\n"},
                        config={"maxAttempts": 5})
    visitor = stage.visitor(world).open("settings")
    panel = visitor.shown("settings")
    for name, value, source in [("strategy", "fastest", "variable"), ("log.level", "debug", ".env"),
                                ("maxAttempts", "5", "configuration"), ("server.workers", "64", "default")]:
        row = panel.locator(f"tr[data-key='{name}']")
        expect(row.locator("td").nth(0)).to_have_text(value)
        expect(row.locator("td").nth(1)).to_have_text(source)
    panel.get_by_role("searchbox").fill("maxAttempts")
    expect(panel.locator("tbody tr:visible")).to_have_count(1)
