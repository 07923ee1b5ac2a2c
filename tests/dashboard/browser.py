"""Headless Chromium, driven by Playwright; tests that need it are skipped where there is none."""

import shutil
import threading
from contextlib import contextmanager, suppress

import pytest

from lightning_hooks.dashboard import view

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@contextmanager
def chromium():
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def serving(logdir):
    """The page of a log directory: its URL."""
    server = view.make(logdir)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield view.url(server)
    server.shutdown()
    server.server_close()
    thread.join()


class Tab:
    """A tab that one test after another uses: a new one takes 2 s of CPU, another page in the same one 0.6 s."""

    def __init__(self, browser, options):
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.errors, self.requests = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.errors.append(f"a dialog: {dialog.message}") or dialog.dismiss())

    def clear(self):
        """Leave the page, and forget everything that the page and the test have left."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        for other in self.context.pages:
            if other is not self.page:
                other.close()
        self.context.clear_cookies()
        self.errors, self.requests = [], []


_UNUSED = {}  # by browser and options: tabs


@contextmanager
def opened(browser, url, viewport=None, **options):
    """A page without errors, of which every request stays on this machine."""
    unused = _UNUSED.setdefault((browser, *sorted(options.items())), [])
    tab = unused.pop() if unused else Tab(browser, options)
    page = tab.page
    try:
        page.set_viewport_size(viewport or {"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector("main > *")
        _wait_for_bars(page)
        yield page
    except BaseException:
        tab.context.close()
        raise
    errors, requests = tab.errors, tab.requests
    tab.clear()
    unused.append(tab)
    outside = [each for each in requests if not each.startswith((url.partition("#")[0], "http://127.0.0.1:", "data:", "blob:"))]
    assert not errors and not outside, (errors, outside)


def _wait_for_bars(page):
    """Wait until no bars stand in the place of a view; not for long, as a test may hold back the answers of the server."""
    from playwright.sync_api import Error

    with suppress(Error):
        page.wait_for_function(_LOADED, timeout=1_500)


_LOADED = """() => {
  const bars = [...document.querySelectorAll(".skeleton")];
  return !bars.some((each) => each.checkVisibility({ visibilityProperty: true }));
}"""

# Whether the first heat map has drawn every cell in sight.
DRAWN = """() => {
  const panel = window.lightningHooks?.views.map.panels[0];
  if (!panel?.drawn || !panel.model.scale || !panel.element.isConnected) return false;
  let cells = 0, unknown = 0;
  panel.segments(panel.layout(), (r, begin, from, to, segment) => segment ? (cells += to - from) : unknown++);
  return cells > 0 && unknown === 0;
}"""


def drawn(page):
    """Wait until a heat map is drawn."""
    page.wait_for_function(DRAWN)
    page.wait_for_timeout(60)


def colors(page, panel=0):
    """How many pixels of a heat map have which colour."""
    return colors_of(page, f"lightningHooks.views.map.panels[{panel}].canvas")


def colors_of(page, canvas):
    """How many pixels of a canvas, an expression of the page, have which colour."""
    return page.evaluate(
        """(canvas) => {
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const found = {};
        for (let i = 0; i < data.length; i += 4) {
          const key = `${data[i]},${data[i + 1]},${data[i + 2]}`;
          found[key] = (found[key] ?? 0) + 1;
        }
        return found;
      }""",
        page.evaluate_handle(f"() => {canvas}"),
    )


def place(page, name, step, panel=0):
    """The middle of a cell on the page, or a place on the label of a row or a group."""
    return page.evaluate(
        """([name, step, panel]) => {
        const map = window.lightningHooks.views.map.panels[panel];
        const at = map.layout();
        const isIt = (node) => map.model.rows.nodes[node].name === name;
        const r = map.model.shown.findIndex(isIt);
        const box = map.canvas.getBoundingClientRect();
        const label = map.boxes.find((each) => isIt(each.node)); // of an open group, which has no line of its own
        if (r < 0 && label) return [box.left + label.x + 4, box.top + label.y];
        const x = step === null ? at.gutter - 20 : at.gutter + ((step + 0.5 - map.model.from) / at.span) * at.plot;
        return [box.left + x, box.top + 22 + (r + 0.5) * at.row - at.top];
      }""",
        [name, step, panel],
    )


# Keep every text that is drawn on a canvas from now on.
KEEP_TEXTS = """() => {
  window.written = [];
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
    window.written.push(text);
    fillText.call(this, text, ...where);
  };
}"""


def texts_of_the_picture(page):
    """Save the picture of the heat maps: the texts in it."""
    page.evaluate(KEEP_TEXTS)
    with page.expect_download():
        page.get_by_role("button", name="Save the picture").click()
    return page.evaluate("() => window.written")
