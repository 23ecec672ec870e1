"""Everybody can use it: by keyboard, on a phone and a desk, in light and dark, with a screen reader."""
import json

from playwright.sync_api import expect

from visitor import PANELS
from world import ADMIN_KEY

SIZES = {"phone": (390, 844), "desk": (1440, 900)}
# Tags of the rules that axe-core applies; best practices are no faults.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def lived_in(stage, **options):
    """A world where every panel has something to show."""
    world = stage.world(**options)
    for index in range(4):
        world.chat(f"a question {index}", session="house", temperature=0)
    world.chat("a question", temperature=0)
    world.bend("alpha", {"status": 429, "headers": {"retry-after": "600"}})
    world.chat("a failover", user="kitchen")
    world.chat("nobody has it", model="no-such-model")
    return world


def faults(visitor, axe):
    if not visitor.page.evaluate("Boolean(window.axe)"):
        # Not as a script element, which the page's policy refuses, rightly.
        visitor.page.evaluate(axe)
    found = visitor.page.evaluate("(rules) => axe.run({runOnly: {type: 'tag', values: rules}}).then((all) => all.violations)", RULES)
    return [f"{one['impact']} {one['id']}: {one['help']}: {[node['html'][:160] + ' ' + node['failureSummary'][:200] for node in one['nodes'][:3]]}"
            for one in found if one["impact"] in ("serious", "critical")]


def check_every_panel_at_every_size_and_theme(stage):
    world = lived_in(stage)
    wrong = []
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            visitor = stage.visitor(world, width=width, height=height, scheme=scheme).open()
            for panel in PANELS:
                visitor.go(panel)
                for fold in visitor.page.locator(f"section.{panel} details:not([open]) > summary").all()[:6]:
                    if fold.is_visible():
                        fold.click()
                where = f"{panel}, {size}, {scheme}"
                wide = visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if wide > 0:
                    wrong.append(f"{where}: {wide} px too wide")
                wrong += [f"{where}: {fault}" for fault in faults(visitor, stage.axe)]
            background = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
            dark = sum(int(part) for part in background.strip("rgb()").split(",")) < 200
            assert dark == (scheme == "dark"), background
    assert not wrong, "\n".join(wrong)


def check_the_sign_in_is_for_everybody_too(stage):
    world = stage.world(env={"FREEWAY_ADMIN_KEY": ADMIN_KEY})
    visitor = stage.visitor(world, width=390, height=844, scheme="dark").open()
    expect(visitor.page.get_by_label("Admin key")).to_be_visible()
    assert not (wrong := faults(visitor, stage.axe)), "\n".join(wrong)
    assert visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def check_the_theme_can_be_chosen(stage):
    visitor = stage.visitor(stage.world(), scheme="light").open()
    visitor.shown("overview")
    colour = lambda: visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = colour()
    visitor.page.get_by_role("button", name="Light or dark").click()
    dark = colour()
    assert dark != light
    visitor.page.reload()
    assert colour() == dark, "it is remembered"


def check_every_control_is_reached_by_keyboard_and_shows_it(stage):
    world = lived_in(stage)
    visitor = stage.visitor(world, width=1440, height=900).open()
    page = visitor.page
    missed = []
    for panel in PANELS:
        section = visitor.go(panel)
        controls = page.evaluate("""(id) => {
          const all = document.querySelector(`section.${id}`).querySelectorAll(
            'a[href], button:not(:disabled), input, select, textarea, summary, [tabindex="0"]');
          const shown = [...all].filter((one) => one.checkVisibility() && one.getClientRects().length);
          shown.forEach((one, at) => { one.dataset.reach = `${id}-${at}`; });
          return shown.length;
        }""", panel)
        section.locator("h1").focus()
        seen = set()
        for _ in range(controls + 5):
            page.keyboard.press("Tab")
            reached = page.evaluate("""() => {
              const one = document.activeElement;
              const style = getComputedStyle(one);
              return [one.dataset.reach ?? null, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1];
            }""")
            if reached[0]:
                seen.add(reached[0])
                if not reached[1]:
                    missed.append(f"{reached[0]} does not show that it has the focus")
        left = page.evaluate("(seen) => [...document.querySelectorAll('[data-reach]')].filter((one) => one.checkVisibility() && !seen.includes(one.dataset.reach)).map((one) => one.outerHTML.slice(0, 120))", list(seen))
        missed += [f"{panel}: never reached: {one}" for one in left]
    assert not missed, json.dumps(missed, indent=1)


def check_the_main_jobs_are_done_by_keyboard_alone(stage):
    world = stage.world(env={"FREEWAY_ADMIN_KEY": ADMIN_KEY})
    visitor = stage.visitor(world).open()
    page, keys = visitor.page, visitor.page.keyboard
    expect(page.get_by_label("Admin key")).to_be_focused()
    keys.type(ADMIN_KEY)
    keys.press("Enter")
    visitor.shown("overview")

    def tab_to(what):
        for _ in range(120):
            if page.evaluate("(what) => document.activeElement.matches(what)", what):
                return
            keys.press("Tab")
        raise AssertionError(f"no way to {what}")

    tab_to("nav a[href='#providers']")
    keys.press("Enter")
    visitor.shown("providers")
    expect(page.get_by_role("heading", level=1, name="Providers")).to_be_focused()
    tab_to("article[data-provider=beta] [role=switch]")
    keys.press("Space")
    expect(page.locator("article[data-provider=beta]")).to_have_attribute("data-state", "off")
    tab_to("article[data-provider=gamma] input")
    keys.type("gamma-typed-key-0001")
    keys.press("Enter")
    expect(page.locator("article[data-provider=gamma]")).to_have_attribute("data-state", "good")
    page.locator("nav a[href='#playground']").focus()
    keys.press("Enter")
    visitor.shown("playground")
    tab_to("textarea")
    keys.type("by keyboard")
    keys.press("Control+Enter")
    expect(page.locator(".turn:not(.user) .said")).to_contain_text("by keyboard")
    page.locator("nav a[href='#requests']").focus()
    keys.press("Enter")
    visitor.shown("requests")
    tab_to("ol.log summary")
    keys.press("Enter")
    expect(page.locator("ol.log .detail").first).to_contain_text("by keyboard")


def check_words_of_others_stay_words(stage):
    """SEC-02: markup in every name and text that comes from elsewhere."""
    evil = "<img src=x onerror=alert(1)>"
    world = stage.world(env={"FREEWAY_ADMIN_KEY": ADMIN_KEY})
    path = world.root / "providers" / "evil.json"
    path.write_text(json.dumps({
        "id": "evil", "label": f"Evil {evil}", "baseUrl": world.mocks["alpha"].url + "/v1", "modelsEndpoint": None, "priority": 1,
        "notes": f"notes {evil}", "signup": "javascript:alert(1)", "docs": "javascript:alert(2)", "terms": {"verdict": "ok", "note": evil},
        "auth": {"type": "bearer", "envKeys": ["ALPHA_KEY"]},
        "models": [{"id": f"m-{evil}", "label": evil, "caps": ["chat"], "alias": ["evil"]}]}))
    world.api("/api/reload", "POST")
    world.mocks["alpha"].control(byModel={f"m-{evil}": [{"status": 503, "body": {"error": {"message": f"</script>{evil}"}}}]})
    world.chat(f"prompt {evil}", model="evil")
    world.chat(f"prompt {evil}", model=f"{evil}');alert(1);//")
    world.bend("beta", {"content": f"answer {evil}"})
    world.chat(f"session {evil}", model="beta/beta-fast", session=f"s{evil}")
    world.api("/api/clients", "POST", {"name": "');alert(1);//"})
    visitor = stage.visitor(world).open()
    visitor.page.get_by_label("Admin key").fill(ADMIN_KEY)
    visitor.page.keyboard.press("Enter")
    visitor.shown("overview")
    for panel in PANELS:
        section = visitor.go(panel)
        for fold in section.locator("summary:visible").all()[:12]:
            fold.click()
        for link in section.locator(".link:visible").all()[:1]:
            if panel == "sessions":
                link.click()
    visitor.page.wait_for_timeout(300)
    assert visitor.page.locator("img:not(.brand img)").count() == 0, "no text became an element"
    hrefs = visitor.page.evaluate("[...document.links].map((one) => one.href)")
    assert not any(href.startswith("javascript:") for href in hrefs), hrefs
    visitor.go("providers")
    expect(visitor.page.locator("article[data-provider=evil] h2")).to_have_text(f"Evil {evil}")
