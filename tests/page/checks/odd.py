"""What only goes wrong when somebody is quick, the gateway slow or away, and nothing there."""
import json

from playwright.sync_api import expect

# What the browser itself says while the gateway is away.
AWAY = "Failed to load resource|ERR_|status of"


def check_any_address_leads_somewhere(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"])
    for name in ["constructor", "__proto__", "nonsense", "%F0"]:
        stage.visitor(world).open(name).shown("overview")
    visitor = stage.visitor(world).open("")
    visitor.shown("overview")
    visitor.go("benches")
    visitor.page.go_back()
    visitor.shown("overview")
    visitor.page.go_forward()
    visitor.shown("benches")


def check_what_is_chosen_before_the_first_answer_counts(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"])
    visitor, held = stage.visitor(world).open("overview"), []
    visitor.shown("overview")
    visitor.page.route("**/api/analytics?*", lambda route: route.continue_() if held else held.append(route))
    visitor.page.locator("nav a[href='#usage']").click()
    visitor.until("usage is asked for", lambda: held)
    visitor.page.get_by_role("button", name="Model", exact=True).click()
    visitor.page.get_by_role("button", name="90 days").click()
    with visitor.page.expect_request("**/api/analytics?range=90d*"):
        held[0].continue_()


def check_a_panel_that_did_not_come_comes_with_the_gateway(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"])
    visitor = stage.visitor(world).open("overview")
    visitor.shown("overview")
    visitor.allow(AWAY)
    # A page that fails right after its start does not load itself again.
    visitor.page.wait_for_timeout(5_000)
    world.env["FREEWAY_PORT"] = world.url.rsplit(":", 1)[1]
    world.stop()
    visitor.page.locator("nav a[href='#usage']").click()
    expect(visitor.page.locator("#toasts")).to_contain_text("The gateway does not answer")
    world.start()
    visitor.shown("usage")


def check_a_restarted_gateway_loses_no_request_of_the_log(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"])
    world.chat("one")
    world.chat("two")
    visitor = stage.visitor(world).open("requests")
    rows = visitor.shown("requests").locator("ol.log > li")
    expect(rows).to_have_count(2)
    visitor.allow(AWAY)
    world.env["FREEWAY_PORT"] = world.url.rsplit(":", 1)[1]
    world.stop()
    world.start()
    expect(visitor.page.locator("#pulse")).to_have_text("live", timeout=20_000)
    # Their numbers are those of the two before the restart.
    world.chat("three")
    world.chat("four")
    expect(rows).to_have_count(4)


def check_a_new_conversation_holds_nothing_of_the_last_one(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"])
    world.bend("alpha", {"content": "these are the old words of it", "splitEvery": 100, "dripMs": 300})
    visitor = stage.visitor(world).open("playground")
    panel = visitor.shown("playground")
    panel.get_by_label("Your message").fill("first")
    panel.get_by_role("button", name="Send").click()
    expect(panel.locator(".turn:not(.user) .said")).to_contain_text("these")
    panel.get_by_role("button", name="New conversation").click()
    expect(panel.get_by_role("button", name="Stop")).to_be_hidden()
    panel.get_by_label("Your message").fill("second")
    with visitor.page.expect_request("**/v1/chat/completions") as asked:
        panel.get_by_role("button", name="Send").click()
    assert json.loads(asked.value.post_data)["messages"] == [{"role": "user", "content": "second"}]


def check_the_playground_says_in_words_that_nobody_answers(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"])
    visitor = stage.visitor(world).open("playground")
    panel = visitor.shown("playground")
    visitor.allow(AWAY)
    world.stop()
    panel.get_by_label("Your message").fill("hello")
    panel.get_by_role("button", name="Send").click()
    expect(panel.locator(".turn .bad")).to_contain_text("The gateway does not answer")
    world.start()


def check_a_double_click_and_a_held_key_confirm_nothing(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"], env={"FREEWAY_ADMIN_KEY": "admin"})
    for name in ["phone", "tablet"]:
        world.api("/api/clients", "POST", {"name": name})
    visitor = stage.visitor(world).open("clients")
    visitor.page.get_by_label("Admin key").fill("admin")
    visitor.page.keyboard.press("Enter")
    panel = visitor.shown("clients")
    panel.get_by_role("button", name="Revoke the key of phone").dblclick()
    panel.get_by_role("button", name="Revoke the key of tablet").focus()
    # The second one is what a keyboard sends while a key is held.
    visitor.page.keyboard.down("Enter")
    visitor.page.keyboard.down("Enter")
    visitor.page.keyboard.up("Enter")
    visitor.page.wait_for_timeout(700)
    assert len(world.api("/api/clients")["clients"]) == 2
    visitor.page.keyboard.press("Enter")
    visitor.until("one key is revoked", lambda: len(world.api("/api/clients")["clients"]) == 1)


def check_a_half_typed_limit_is_no_key_without_one(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"])
    visitor = stage.visitor(world).open("clients")
    panel = visitor.shown("clients")
    panel.get_by_label("Name").fill("phone")
    panel.get_by_text("Rights and limits").click()
    panel.get_by_label("Requests a minute").press_sequentially("1e")
    panel.get_by_role("button", name="Make a key").click()
    expect(panel.locator("form .told")).to_contain_text("Requests a minute: a whole number")
    assert world.api("/api/clients")["clients"] == []


def check_a_gateway_without_providers_says_so(stage):
    world = stage.world(upstreams=[], keyed=[])
    world.stop()
    (world.root / "providers").mkdir(exist_ok=True)
    world.start()
    visitor = stage.visitor(world).open("overview")
    expect(visitor.shown("overview").locator(".guide")).to_contain_text("There is no provider")
    panel = visitor.go("models")
    abilities = panel.get_by_label("Ability").locator("option")
    expect(abilities.filter(has_text="embed")).to_have_count(1)
    for words in ["a", "b"]:
        with visitor.page.expect_response(f"**/api/models?q={words}*"):
            panel.get_by_label("Find a model").fill(words)
    visitor.page.wait_for_timeout(300)
    expect(abilities.filter(has_text="embed")).to_have_count(1)


def check_every_strategy_that_is_offered_is_one(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"])
    visitor = stage.visitor(world).open("playground")
    panel = visitor.shown("playground")
    panel.get_by_text("More settings").click()
    offered = panel.get_by_label("Strategy").locator("option").evaluate_all("all => all.map((one) => one.value)")
    assert len(offered) > 4, offered
    for strategy in offered[1:]:
        world.api(f"/api/route?strategy={strategy}")


def check_no_profile_is_a_choice_whatever_the_configuration_says(stage):
    world = stage.world(upstreams=["alpha"], keyed=["alpha"],
                        config={"profiles": {"mine": ["fast"]}, "activeProfile": "mine"})
    visitor = stage.visitor(world).open("models")
    active = visitor.shown("models").get_by_label("auto means")
    expect(active).to_have_value("mine")
    active.select_option("")
    visitor.until("no profile is active", lambda: world.api("/api/catalog")["activeProfile"] is None)
    undo = visitor.go("settings").get_by_role("button", name="Undo all")
    undo.click()
    visitor.page.get_by_role("button", name="Really undo all?").click()
    visitor.until("the configuration counts again", lambda: world.api("/api/catalog")["activeProfile"] == "mine")
    visitor.go("models")
    expect(active).to_have_value("mine")
