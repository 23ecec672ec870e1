"""A picture of every panel, of a gateway that has been used for a while: for people to look at.

    python3 tests/page/run.py --shots [FOLDER]     into .cache/page/shots, or into FOLDER; `--readme` makes those of the README

The providers are the bundled ones, each with a scripted upstream in its place; thirty days of rows are made up.
"""
import json
import pathlib
import random
import sqlite3
import time

from playwright.sync_api import sync_playwright

from visitor import PANELS, Visitor, launch
from world import TOP, World, arguments

# With keys, busiest first; the others have none.
WITH_KEYS = {"groq": "GROQ_API_KEY", "mistral": "MISTRAL_API_KEY", "cerebras": "CEREBRAS_API_KEY", "google-ai": "GEMINI_API_KEY",
             "openrouter": "OPENROUTER_API_KEY"}
WITHOUT = ["github-models", "cloudflare", "nvidia-nim", "cohere", "together"]
LOOKS = {"desk-light": (1440, 900, "light"), "desk-dark": (1440, 900, "dark"), "phone-light": (390, 844, "light"),
         "phone-dark": (390, 844, "dark")}
# What stands in the README: panel, width, height, theme.
README = {"overview": (1280, 800, "light"), "providers": (1280, 800, "dark")}
DAYS, HOUR_MS = 30, 3_600_000
QUESTIONS = ["Why is the sky blue?", "Write a haiku about rate limits.", "Translate this letter.", "What does this error mean?",
             "Summarise the minutes.", "Name three good tomatoes for a balcony."]


def used_world():
    world = World(upstreams=list(WITH_KEYS), keyed=[], config={"keys": [{"name": "laptop", "key": "fw-laptop-key"}, {"name": "phone", "key": "fw-phone-key"}]},
                  env={"FREEWAY_ADMIN_KEY": "admin", "FREEWAY_KEYS": "fw-laptop-key"} | {name: f"{provider}-key-00000001,{provider}-key-00000002"
                                                                    for provider, name in WITH_KEYS.items()})
    for path in (world.root / "providers").iterdir():
        path.unlink()
    for provider in [*WITH_KEYS, *WITHOUT]:
        file = json.loads((TOP / "providers" / f"{provider}.json").read_text())
        if provider in WITH_KEYS:
            file |= {"baseUrl": world.mocks[provider].url + "/v1", "modelsEndpoint": None}
        file.pop("$schema", None)
        (world.root / "providers" / f"{provider}.json").write_text(json.dumps(file))
    world.stop()
    make_up_rows(world.root / "data")
    world.start()
    return world


def make_up_rows(data):
    """Thirty days of requests, more by day than by night."""
    path = next(path for path in data.iterdir() if path.suffix in (".db", ".sqlite", ".sqlite3"))
    chance = random.Random(7)
    database = sqlite3.connect(path)
    names = {}

    def name(text):
        if text not in names:
            database.execute("INSERT OR IGNORE INTO name (text) VALUES (?)", (text,))
            names[text] = database.execute("SELECT id FROM name WHERE text = ?", (text,)).fetchone()[0]
        return names[text]

    now = int(time.time() * 1000)
    models = ["groq/llama-3.3-70b-versatile", "mistral/mistral-small-latest", "cerebras/llama-3.3-70b", "google-ai/gemini-2.5-flash"]
    for hour in range(DAYS * 24, 0, -1):
        busy = 2 + 14 * max(0, 1 - abs((24 - hour % 24) - 14) / 9) * chance.uniform(0.5, 1.2)
        for at in sorted(now - hour * HOUR_MS + chance.randrange(HOUR_MS) for _ in range(int(busy))):
            model = chance.choices(models, [8, 5, 3, 2])[0]
            good, first = chance.random() < 0.96, int(chance.lognormvariate(5.3, 0.4))
            database.execute(
                "INSERT OR IGNORE INTO request (id, kind, outcome, status, flags, route, model, key, client, prompt_tokens,"
                " output_tokens, latency_ms, first_ms, attempts, error, saved_nano_usd)"
                " VALUES (?,0,?,?,1,?,?,NULL,?,?,?,?,?,1,?,?)",
                (at * 64, 0 if good else 1, 200 if good else 429, name("alias:fast"), name(model), name(chance.choice(["laptop", "phone"])),
                 chance.randrange(40, 2500), chance.randrange(20, 700) if good else 0, first * 4, first if good else None,
                 None if good else "all_providers_blocked", chance.randrange(50_000, 600_000) if good else 0))
    database.commit()
    database.close()


def traffic(world):
    for mock in world.mocks.values():
        mock.control(reset=True)
    for number, words in enumerate(QUESTIONS * 4):
        world.chat(words, model=["fast", "auto", "big", "mistral/mistral-small-latest"][number % 4], temperature=0.7, stream=number % 3 == 0)
    for _ in range(3):
        world.chat("What is the capital of France?", temperature=0)
    world.mocks["mistral"].control(byModel={"mistral-small-latest": [{"status": 429, "headers": {"retry-after": "340"}, "body": {"error": {"message": "Rate limit reached for tokens per minute"}}}]})
    for number, words in enumerate(QUESTIONS):
        world.chat(words, model="fast", temperature=0.7, session="balcony" if number % 2 else "letters")
    world.chat("nobody has this", model="gpt-17")


def settle(visitor, panel):
    page, section = visitor.page, visitor.go(panel)
    if panel == "requests":
        section.locator("li", has_text="failed first").first.locator("summary").click()
    if panel == "playground":
        section.get_by_label("Your message").fill("Why is the sky blue?")
        section.get_by_role("button", name="Send").click()
        section.locator(".turn:not(.user) .said:not([aria-busy])").first.wait_for()
    if panel == "sessions":
        section.locator(".link").first.click()
        section.locator(".talk").wait_for()
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)


def sign_in(visitor):
    visitor.open()
    visitor.page.get_by_label("Admin key").fill("admin")
    visitor.page.keyboard.press("Enter")
    visitor.shown("overview")


def main():
    given = arguments(folder={"nargs": "?", "default": str(TOP / ".cache" / "page" / "shots")}, __readme={"action": "store_true"})
    folder = TOP / "docs" / "images" if given.readme else pathlib.Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, used_world() as world:
        browser = launch(playwright, given.browser)
        traffic(world)
        if given.readme:
            wanted = [(panel, f"{panel}.png", look) for panel, look in README.items()]
        else:
            wanted = [(panel, f"{panel}-{name}.png", look) for name, look in LOOKS.items() for panel in PANELS]
        for panel, file, (width, height, scheme) in wanted:
            visitor = Visitor(browser, world.url, width=width, height=height, scheme=scheme)
            sign_in(visitor)
            settle(visitor, panel)
            if not given.readme:
                # The window as tall as the page: what lies below the window is not painted.
                visitor.page.set_viewport_size({"width": width, "height": max(height, visitor.page.evaluate("document.body.scrollHeight"))})
                visitor.page.wait_for_timeout(300)
            visitor.page.screenshot(path=folder / file)
            visitor.close()
            print(folder / file)
        first_run(browser, given, folder)
        browser.close()


def first_run(browser, given, folder):
    """The page of a gateway that has no key yet, and the sign-in."""
    if given.readme:
        return
    with World(upstreams=["gamma"], keyed=[]) as world, Visitor(browser, world.url) as visitor:
        visitor.open().shown("overview")
        visitor.page.screenshot(path=folder / "first-run.png", full_page=True)
    with World(upstreams=[], keyed=[], env={"FREEWAY_ADMIN_KEY": "admin"}) as world, Visitor(browser, world.url) as visitor:
        visitor.open().page.get_by_label("Admin key").wait_for()
        visitor.page.screenshot(path=folder / "sign-in.png")


if __name__ == "__main__":
    main()
