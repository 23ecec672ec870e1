"""Somebody who looks at the page, and who notices what nobody should ever see: errors, foreign requests, dialogs."""
import re
import urllib.parse

from playwright.sync_api import expect

from world import PATIENCE_MS

expect.set_options(timeout=PATIENCE_MS)

PANELS = ["overview", "providers", "requests", "usage", "models", "benches", "playground", "sessions", "cache",
          "clients", "settings"]


def launch(playwright, browser, *more):
    """A headless Chromium. It runs as root in containers, where its own sandbox cannot be set up."""
    return playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", *more])


class Visitor:
    """One browser window on the gateway at `url`."""

    def __init__(self, browser, url, width=1280, height=800, scheme="light", **options):
        self.url = url
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme,
                                           reduced_motion="reduce", **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.faults = []
        self.allowed = []
        self.asked = []
        self.page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"script error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)

    def _console(self, message):
        if message.type in ("error", "warning") and not any(re.search(one, message.text) for one in self.allowed):
            self.faults.append(f"console {message.type}: {message.text}")

    def _dialog(self, dialog):
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request):
        self.asked.append(request.url)
        parts = urllib.parse.urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != self.url:
            self.faults.append(f"foreign request: {request.url}")

    def allow(self, pattern):
        """Expects a message on the console, such as the browser's own about an answer that is an error."""
        self.allowed.append(pattern)

    def open(self, panel="overview"):
        self.page.goto(f"{self.url}/#{panel}")
        return self

    def go(self, panel):
        """To another panel, as people go there."""
        self.page.locator(f"nav a[href='#{panel}']").click()
        return self.shown(panel)

    def shown(self, panel):
        """The panel, once it has what it shows."""
        section = self.page.locator(f"section.panel.{panel}")
        expect(section).to_be_visible()
        expect(section).to_have_attribute("data-loaded", "yes")
        return section

    def counted(self, path):
        """How often the page has asked for a path so far."""
        return sum(1 for url in self.asked if urllib.parse.urlsplit(url).path == path)

    def until(self, what, condition):
        """Waits for something that is not on the page."""
        for _ in range(PATIENCE_MS // 50):
            if condition():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"not within {PATIENCE_MS} ms: {what}")

    def close(self):
        self.context.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close()
        if kind is None:
            assert not self.faults, "\n".join(self.faults)
