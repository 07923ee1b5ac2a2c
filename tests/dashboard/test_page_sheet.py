"""The sheet of histograms, and the ridgelines of a row."""

import re

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_hooks import Watch

from .browser import colors_of, needs_browser, opened, serving
from .runs import NAMES, fit, write_run

pytestmark = [needs_browser, pytest.mark.slow]

MANY = [f"blocks.{i}.weight" for i in range(140)]
HOSTILE = "<img src=x onerror=alert(1)>.w"
DRAWN = "() => lightningHooks.views.sheet.figures.some((figure) => figure.find)"
AXIS = """async (histogram) => {
  const { axisOf, extentOf, sharesOf } = await import("./static/bins.js");
  const axis = axisOf(extentOf([histogram]));
  return { lines: axis.lines, zero: axis.zero, bounds: axis.bounds(axis.lines - 1), shares: [...sharesOf(histogram, axis, 0)] };
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "few", range(0, 100, 5), histograms=True)
    write_run(folder / "few", range(100), tensor="param")
    write_run(folder / "many", range(10), names=MANY, histograms=True, stats=["norm"])
    write_run(folder / "none", range(3))
    write_run(folder / "nasty", range(3), names=(HOSTILE, "plain.w"), histograms=True)
    with serving(folder) as where:
        yield where


def readout(page):
    return page.locator("output.bar-readout").inner_text()


def test_every_row_has_a_map_on_one_axis(browser, url):
    with opened(browser, f"{url}#run=few") as page:
        page.wait_for_selector("h2:has-text('Over all layers')")
        page.keyboard.press("5")
        page.wait_for_selector("h2:has-text('Gradient: 4 histograms over steps')")
        page.wait_for_function(DRAWN)
        page.wait_for_timeout(60)
        assert page.locator("figcaption").all_inner_texts() == [*NAMES]  # in the order of the heat map
        found = colors_of(page, "lightningHooks.views.sheet.figures[0].canvas")
        assert len(found) > 3
        page.locator(".sheet canvas").nth(1).hover(position={"x": 60, "y": 4})
        assert re.fullmatch(r"net.0.bias: step \d+: \d+ % of 4 elements (from .* to .*|exactly or almost 0)", readout(page))
        page.locator(".sheet canvas").nth(2).click()
        page.wait_for_selector("h2:has-text('Gradient of net.2.weight')")


def test_the_keyboard_moves_over_maps_and_steps(browser, url):
    with opened(browser, f"{url}#run=few&view=sheet&tensor=grad&stat=norm") as page:
        page.wait_for_function(DRAWN)
        page.locator(".sheet .link").first.focus()
        assert readout(page).startswith("net.0.weight: step 95: half of 4 elements from ")
        page.keyboard.press("ArrowRight")
        assert readout(page).startswith("net.0.bias: step 95: ")
        page.keyboard.press("Shift+ArrowLeft")
        assert readout(page).startswith("net.0.bias: step 90: ")
        page.keyboard.press("End")
        assert readout(page).startswith("head.weight: step 95: ")
        page.keyboard.press("Enter")
        page.wait_for_selector("h2:has-text('Gradient of head.weight')")


def test_many_rows_are_asked_in_few_requests_as_they_come_near(browser, url):
    with opened(browser, f"{url}#run=many&view=map&sheet=steps") as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url) if "/histograms?" in request.url else None)
        page.get_by_role("tab", name="Histograms").click()
        page.wait_for_selector("h2:has-text('Gradient: 140 histograms over steps')")
        page.wait_for_function(DRAWN)
        assert len(asked) == 1 and "tags=0-127&" in asked[0]
        page.evaluate("() => scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function("() => lightningHooks.views.sheet.figures.at(-1).find")
        assert len(asked) == 2 and "tags=128-139&" in asked[1]
        page.evaluate("() => lightningHooks.state.set({ filter: 'blocks.13?.*' })")
        page.wait_for_selector("h2:has-text('Gradient: 10 histograms over steps, rows blocks.13?.*')")
        page.evaluate("() => lightningHooks.state.set({ filter: 'nope' })")
        page.wait_for_selector("text=No row matches nope.")


def test_the_rows_of_a_large_network_are_lines_of_one_picture_at_a_step(browser, url):
    said = "() => document.querySelector('.layer-sheet')?.ariaLabel ?? ''"
    with opened(browser, f"{url}#run=many&view=sheet&tensor=grad&stat=norm") as page:
        page.wait_for_function(f"() => ({said})().startsWith('Histograms of 140 rows at step 9.')")
        page.wait_for_function("() => lightningHooks.views.sheet.layers.model.histograms.every(Boolean)")
        page.wait_for_timeout(60)
        picture = page.locator(".layer-sheet")
        box = picture.bounding_box()
        assert box["y"] + box["height"] <= 800  # all of them are in the window
        assert len(colors_of(page, "document.querySelector('.layer-sheet')")) > 8
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 1)
        assert readout(page).startswith("blocks.0.weight: step 9: ")
        page.keyboard.press("End")
        assert readout(page).startswith("blocks.139.weight: step 9: ")
        page.keyboard.press("ArrowLeft")
        assert readout(page).startswith("blocks.139.weight: step 8: ") and "step=8" in page.url
        page.get_by_label("Show", exact=True).select_option("steps")
        page.wait_for_selector("figcaption >> text=blocks.0.weight")
        assert not picture.is_visible()
        # A few rows are ridges, and a click shows the row.
        page.evaluate("() => lightningHooks.state.set({ run: 'few', sheet: 'layers', step: '' })")
        page.wait_for_function(f"() => ({said})().startsWith('Histograms of 4 rows at step 95.')")
        page.wait_for_function(
            "() => lightningHooks.views.sheet.layers.row > 30 && lightningHooks.views.sheet.layers.model.axis"
        )
        picture.click(position={"x": 300, "y": 60})
        page.wait_for_selector("h2:has-text('Gradient of net.0.bias')")


def test_what_is_not_there_is_said(browser, url):
    with opened(browser, f"{url}#run=none&view=sheet") as page:
        page.wait_for_selector("text=This run has no histograms. Ask for the statistic 'histogram' in a rule")
    with opened(browser, f"{url}#run=few&view=sheet&tensor=param&stat=norm") as page:
        page.wait_for_selector("text=No histograms of param in this run.")
        page.get_by_role("button", name="grad", exact=True).click()
        page.wait_for_selector("h2:has-text('Gradient: 4 histograms over steps')")


def test_names_of_histograms_are_text(browser, url):
    with opened(browser, f"{url}#run=nasty&view=sheet") as page:
        page.wait_for_function(DRAWN)
        assert HOSTILE in page.locator("figcaption").all_inner_texts()
        assert page.locator("main img").count() == 0
        page.locator(".sheet .link", has_text="onerror").click()
        page.wait_for_selector("canvas.ridges")
        assert page.locator("main img").count() == 0


def test_the_ridgelines_of_a_row(browser, url):
    with opened(browser, f"{url}#run=few&view=row&tensor=grad&stat=norm&row={NAMES[0]}") as page:
        page.wait_for_selector("canvas.ridges")
        page.wait_for_timeout(60)
        assert page.locator("canvas.ridges").get_attribute("aria-label").startswith("Ridgelines of net.0.weight at 20 steps")
        legend = page.locator(".picture .legend").first.inner_text()
        assert "step 0" in legend and "step 95" in legend and "highest ridge: 75 %" in legend
        ridges = page.locator("canvas.ridges")
        ridges.focus()
        ridges.press("End")
        assert readout(page).startswith("step 95: half of 4 elements from ")
        ridges.press("ArrowUp")
        assert readout(page).startswith("step 90: half of 4 elements from ")
        page.get_by_role("button", name="of all rows").click()
        page.wait_for_selector("h2:has-text('Gradient: 4 histograms over steps')")


@pytest.mark.parametrize(
    ("low", "counts", "expected"),
    [
        # Bin 127 holds 1 to 2. Zeros have a line of their own below the positive numbers.
        (127, [8], {"lines": 2, "zero": 0, "bounds": [0, 2], "shares": [0, 1]}),
        (-127, [2] + [0] * 126 + [4] + [0] * 126 + [2], {"lines": 3, "zero": 1, "bounds": [0, 2], "shares": [0.25, 0.5, 0.25]}),
        # The lowest line also holds what is smaller: here a thousandth of the elements.
        (100, [1] + [0] * 26 + [999], {"lines": 2, "zero": 0, "bounds": [0, 2], "shares": [0, 1]}),
        (126, [1, 3], {"lines": 3, "zero": 0, "bounds": [1, 2], "shares": [0, 0.25, 0.75]}),
    ],
)
def test_the_axis_of_a_histogram(browser, url, low, counts, expected):
    histogram = {"steps": [0], "low": low, "bins": len(counts), "counts": counts, "totals": [sum(counts)]}
    with opened(browser, url) as page:
        assert page.evaluate(AXIS, histogram) == expected


def test_histograms_of_a_monitor_are_found(browser, tmp_path):
    class Net(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    fit(Net(), tmp_path, [Watch(modules="layer", tensors="output", stats=["norm", "histogram"], every_n_steps=5)], 10)
    with serving(tmp_path) as where, opened(browser, f"{where}#view=sheet&tensor=output") as page:
        page.wait_for_selector("h2:has-text('Output: 1 histogram over steps')")
        page.evaluate("() => lightningHooks.state.set({ view: 'row', row: 'layer' })")
        page.wait_for_selector("h2:has-text('Histogram over steps')")
