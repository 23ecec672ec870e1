"""Who gets in, what the browser keeps of it, and what the page is allowed to be."""
import re
import urllib.request

from playwright.sync_api import expect

from processes import call
from world import ADMIN_KEY, CLIENT_KEY

# What all files together may weigh, uncompressed.
PAGE_MAX_BYTES = 120 * 1024
LOCKED = {"env": {"FREEWAY_ADMIN_KEY": ADMIN_KEY, "FREEWAY_KEYS": CLIENT_KEY}}


def sign_in(visitor, key=ADMIN_KEY):
    visitor.page.get_by_label("Admin key").fill(key)
    visitor.page.get_by_role("button", name="Sign in").click()


def check_the_admin_key_opens_the_page_and_is_kept_nowhere(stage):
    world = stage.world(**LOCKED)
    visitor = stage.visitor(world).open()
    page = visitor.page
    expect(page.get_by_role("heading", name="Sign in to Freeway")).to_be_visible()
    expect(page.get_by_label("Admin key")).to_be_focused()
    assert page.locator("nav").is_hidden(), "nothing to steer before the sign-in"
    sign_in(visitor)
    visitor.shown("overview")
    cookies = visitor.context.cookies()
    assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")], cookies
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    assert ADMIN_KEY not in kept and ADMIN_KEY not in page.content() and cookies[0]["value"] not in kept, kept
    page.reload()
    visitor.shown("overview")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Admin key")).to_be_visible()
    visitor.allow("status of 40[13]")
    page.reload()
    expect(page.get_by_label("Admin key")).to_be_visible()


def check_a_wrong_key_is_told_and_nothing_is_shown(stage):
    world = stage.world(**LOCKED)
    visitor = stage.visitor(world).open()
    visitor.allow("status of 401")
    sign_in(visitor, "not-the-key")
    expect(visitor.page.get_by_role("alert")).to_have_text("That is not the key of this gateway.")
    assert visitor.page.locator("section.panel:visible").count() == 0
    sign_in(visitor, CLIENT_KEY)
    expect(visitor.page.get_by_role("alert")).to_have_text("That is not the key of this gateway.")
    sign_in(visitor)
    visitor.shown("overview")


def check_a_session_that_ends_leads_back_to_the_sign_in(stage):
    world = stage.world(**LOCKED)
    visitor = stage.visitor(world).open()
    sign_in(visitor)
    visitor.shown("overview")
    visitor.context.clear_cookies()
    visitor.allow("status of 40[13]")
    visitor.page.locator("nav a[href='#benches']").click()
    expect(visitor.page.get_by_label("Admin key")).to_be_visible()


def check_on_this_machine_no_key_is_asked_for(stage):
    visitor = stage.visitor(stage.world()).open()
    visitor.shown("overview")
    expect(visitor.page.get_by_role("button", name="Sign out")).to_be_hidden()


def check_the_policy_lets_no_foreign_word_run(stage):
    world = stage.world()
    _, headers, _ = call("GET", world.url + "/")
    policy = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'" and policy["style-src"] == "'self'", policy
    assert policy["frame-ancestors"] == "'none'" and headers["x-content-type-options"] == "nosniff", headers
    visitor = stage.visitor(world).open()
    visitor.shown("overview")
    visitor.allow("Content Security Policy")
    page = visitor.page
    page.evaluate("""() => {
      const script = document.createElement('script');
      script.textContent = 'window.ran = "script"';
      document.body.append(script);
      const image = document.createElement('img');
      image.setAttribute('onerror', 'window.ran = "handler"');
      image.src = 'data:image/png;base64,broken';
      document.body.append(image);
      const link = document.createElement('a');
      link.href = 'javascript:window.ran = "link"';
      document.body.append(link);
      link.click();
    }""")
    page.wait_for_timeout(300)
    assert page.evaluate("window.ran ?? null") is None
    blocked = page.evaluate("fetch('http://127.0.0.2:9/').then(() => 'sent', (error) => String(error))")
    assert "sent" != blocked and not any("127.0.0.2" in url for url in visitor.asked), blocked


def check_the_page_is_light_and_comes_once(stage):
    world = stage.world()
    visitor = stage.visitor(world).open()
    visitor.shown("overview")
    for panel in ["providers", "requests", "usage", "models", "benches", "playground", "sessions", "cache", "clients",
                  "settings"]:
        visitor.go(panel)
    # The browser asks for the icon again whenever the address changes, and takes it from its cache.
    files = visitor.page.evaluate("""() => [...new Map([...performance.getEntriesByType('navigation'),
      ...performance.getEntriesByType('resource')].filter((one) => /\\/$|\\/page\\//.test(new URL(one.name).pathname))
      .map((one) => [one.name, [one.name, one.decodedBodySize, one.encodedBodySize]])).values()]""")
    weight, sent = (sum(one[at] for one in files) for at in (1, 2))
    print(f"        {len(files)} files, {weight} bytes, {sent} on the wire")
    assert len(files) > 15 and 0 < sent < weight < PAGE_MAX_BYTES, files
    for name, *_ in files:
        request = urllib.request.Request(name, headers={"accept-encoding": "identity"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as first:
            etag = first.headers["etag"]
        status, _, body = call("GET", name, headers={"if-none-match": etag})
        assert (status, body) == (304, ""), name


def check_a_folder_of_the_owner_replaces_files(stage):
    world = stage.world(files={}, env={"FREEWAY_WWW": "mine"})
    (world.root / "mine" / "page").mkdir(parents=True)
    (world.root / "mine" / "page" / "icon.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    assert call("GET", world.url + "/page/icon.svg")[2].startswith("<svg xmlns='")
    assert re.search("Freeway", call("GET", world.url + "/")[2])
    assert call("GET", world.url + "/page/..%2f..%2ffreeway.config.json")[0] == 404
