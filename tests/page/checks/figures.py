"""The charts say what the database says."""
import json
import pathlib
import sqlite3

from playwright.sync_api import expect

# Outcomes as rows have them.
SUCCESS, FAILED, CANCELED = 0, 1, 2


def rows(world):
    """What the database has, read while the gateway is down, in the page's terms."""
    found = [path for path in pathlib.Path(world.root, "data").iterdir() if path.suffix in (".db", ".sqlite", ".sqlite3")]
    assert len(found) == 1, found
    database = sqlite3.connect(found[0])
    columns = "outcome, prompt_tokens, output_tokens, (SELECT text FROM name WHERE name.id = request.model)"
    return database.execute(f"SELECT {columns} FROM request").fetchall()


def number(text):
    return int(text.replace(",", ""))


def check_charts_equal_the_database(stage):
    world = stage.world()
    for index in range(9):
        world.chat("word " * (index + 1))
    for index in range(4):
        world.chat("other " * 3, model="beta/beta-fast", stream=True)
    for index in range(2):
        world.chat("nobody", model="no-such-model")
    world.stop()
    seen = rows(world)
    world.start()
    assert len(seen) == 15
    served = [row for row in seen if row[0] == SUCCESS]
    visitor = stage.visitor(world).open("usage")
    panel = visitor.shown("usage")
    figure = lambda name: panel.locator(f"[data-fact='{name}'] dd").first
    expect(figure("requests")).to_have_text(str(len(seen)))
    expect(figure("tokens")).to_have_text(f"{sum(row[1] + row[2] for row in seen):,}")
    expect(figure("success")).to_have_text(f"{100 * len(served) / len(seen):.0f} %")
    expect(figure("saved")).to_contain_text("$")
    saved = sum(row[1] * 2 + row[2] * 8 for row in served) / 1e6
    assert abs(float(figure("saved").inner_text().strip("$")) - saved) < 0.00006 + saved / 100, saved
    # The bars of the chart, read as a screen reader reads them, and the table beside it.
    requests = panel.get_by_role("slider", name="Requests")
    requests.press("End")
    assert requests.get_attribute("aria-valuetext").endswith(f"served {len(served)}, not served {len(seen) - len(served)}")
    panel.get_by_text("The charts as a table").click()
    cells = panel.get_by_role("region", name="Usage over time").locator("tbody tr td")
    expect(cells.first).to_be_visible()
    assert sum(number(cells.nth(at).inner_text()) for at in range(0, cells.count(), 10)) == len(seen)
    by_model = {}
    for _, prompt, output, model in served:
        tokens = by_model.setdefault(model, [0, 0, 0])
        by_model[model] = [tokens[0] + 1, tokens[1] + prompt, tokens[2] + output]
    panel.get_by_role("group", name="Group by").get_by_role("button", name="Model").click()
    shown = {}
    for row in panel.get_by_role("region", name="Usage by").locator("tbody tr").all():
        words = row.locator("td").all_inner_texts()
        shown[row.locator("th").inner_text()] = [number(words[1]), number(words[3]), number(words[4])]
    assert {name: shown.get(name) for name in by_model} == by_model, json.dumps(shown)


def check_every_range_and_filter_draws(stage):
    world = stage.world()
    world.chat("one for the charts")
    world.chat("two for the charts", model="beta/beta-fast")
    visitor = stage.visitor(world).open("usage")
    panel = visitor.shown("usage")
    requests = panel.get_by_role("slider", name="Requests")
    for range_, values in [("7 days", 168), ("30 days", 30), ("90 days", 90), ("24 hours", 24)]:
        panel.get_by_role("button", name=range_).click()
        expect(requests).to_have_attribute("aria-valuemax", str(values - 1))
    panel.get_by_role("region", name="Usage by").get_by_role("button", name="beta").click()
    expect(panel.locator("[data-fact='requests'] dd").first).to_have_text("1")
    panel.get_by_role("button", name="Provider: beta").click()
    expect(panel.locator("[data-fact='requests'] dd").first).to_have_text("2")
