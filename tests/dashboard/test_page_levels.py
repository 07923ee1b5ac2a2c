"""Rows whose levels differ by orders of magnitude, biases in front of a norm, and rows that fill the window."""

import pytest

from lightning_hooks.dashboard.report import write_report

from .browser import colors, drawn, needs_browser, opened, place, serving, texts_of_the_picture
from .runs import NAMES, write_about, write_run

pytestmark = [needs_browser, pytest.mark.slow]

MAP = "view=map&tensor=grad&stat=norm&folded=%2B"
BLOCKS = [f"blocks.{i}.weight" for i in range(60)]
NORMED = ("conv.weight", "conv.bias", "norm.weight", "head.weight")
APART, MIDDLE, NEUTRAL, INFINITE = "206,200,186", "247,246,245", "224,228,236", "0,214,255"
COLORING = "() => (({ isOwn, scale }) => [isOwn, scale.low, scale.high])(lightningHooks.views.map.coloring)"


def levels(step, values):
    """Each block has 1.4 times the gradient of the one before; half of the run has twice the gradient of the other half."""
    values["norm"][:] = [1.4**i * (1 if step < 20 else 2) for i in range(60)]


def rounded(step, values):
    values["norm"][:] = [0.5, 0 if step % 3 else 1e-9, 0.7, 1 + step / 100]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "apart", range(41), names=BLOCKS, change=levels)
    write_run(folder / "normed", range(40), names=NORMED, change=rounded)
    kinds = {"conv": "Conv2d", "norm": "BatchNorm2d", "head": "Linear"}
    write_about(folder / "normed", {name: {"type": kind, "order": i} for i, (name, kind) in enumerate(kinds.items())})
    write_run(folder / "alike", range(40), names=NORMED, change=rounded)
    with serving(folder) as where:
        yield where


def test_rows_far_apart_have_the_colours_of_their_own_median_and_the_legend_says_so(browser, url):
    with opened(browser, f"{url}#run=apart&{MAP}") as page:
        drawn(page)
        assert page.evaluate(COLORING) == [True, 0.25, 4]
        assert "grad norm as a multiple of the median of its row (log)" in page.locator(".legend-title").inner_text()
        assert page.locator(".legend .ticks").inner_text().split() == ["÷4", "median", "×4"]
        assert (
            "Medians differ by a factor of 4.20e8, so each row has its own colours." in page.locator(".level-why").inner_text()
        )
        assert colors(page)[MIDDLE] > 10_000  # half of the cells of every row
        page.mouse.move(*place(page, BLOCKS[40], 5))
        assert "0.5 times the median of the row, 1.40e6" in page.locator(".tip").inner_text()
        written = texts_of_the_picture(page)
        assert any(text.endswith("; median of a row, beside the cells: 2 to 8.37e8") for text in written), written
        page.get_by_role("button", name="One scale for all rows").click()
        page.wait_for_function("() => !lightningHooks.views.map.coloring.isOwn")
        assert "level=one" in page.url and page.get_by_label("Colours by").input_value() == "one"
        assert page.evaluate(COLORING)[1] == pytest.approx(1)
        # Bounds of the user's are values, so they ask for one scale; the choice of a row's own median is kept.
        page.evaluate("() => lightningHooks.state.set({ level: '', low: 1 })")
        page.wait_for_function(
            "() => lightningHooks.views.map.coloring.scale.low === 1 && !lightningHooks.views.map.coloring.isOwn"
        )
        page.evaluate("() => lightningHooks.state.set({ level: 'own', low: 0.1, high: 10 })")
        page.wait_for_function("() => lightningHooks.views.map.coloring.isOwn && lightningHooks.views.map.scale.low === 0.1")


def test_a_bias_in_front_of_a_norm_stands_apart_and_takes_no_colours(browser, url):
    with opened(browser, f"{url}#run=normed&{MAP}") as page:
        drawn(page)
        assert page.evaluate(COLORING) == [False, pytest.approx(0.5), pytest.approx(1.39)]
        assert colors(page)[APART] > 1000 and page.locator(".legend >> text=bias in front of a norm, nearly 0").is_visible()
        page.mouse.move(*place(page, NORMED[1], 3))
        assert "The norm behind this bias takes it away" in page.locator(".tip").inner_text()
        # Without other rows the bias is a row as any other, and so it is if no norm is behind it.
        page.get_by_label("Show only rows").fill("*.bias")
        page.wait_for_function("() => lightningHooks.views.map.coloring.panels[0].apart.size === 0")
        page.evaluate("() => lightningHooks.state.set({ run: 'alike', filter: '' })")
        page.wait_for_function("() => lightningHooks.views.map.coloring.isOwn")
        assert APART not in colors(page)


def test_the_update_of_a_parameter_that_was_0_has_a_neutral_pattern(browser, tmp_path):
    def params(step, values):
        if step < 3:
            values["norm"][1] = 0

    write_run(tmp_path / "run", range(9), tensor="update", stats=("norm", "ratio", "count"))
    write_run(tmp_path / "run", range(9), tensor="param", change=params)
    write_report(tmp_path / "run", tmp_path / "report.html")
    with serving(tmp_path) as served:
        for where in (f"{served}#run=run", f"{(tmp_path / 'report.html').as_uri()}#x"):
            with opened(browser, f"{where}&view=map&tensor=update&stat=ratio&folded=%2B") as page:
                drawn(page)
                found = colors(page)
                assert found[NEUTRAL] > 1000 and INFINITE not in found
                assert page.locator(".legend >> text=no ratio: the parameter was 0").is_visible()
                page.mouse.move(*place(page, NAMES[1], 1))
                assert "update ratio: none, since the parameter was 0 before the update" in page.locator(".tip").inner_text()
                page.evaluate("(row) => lightningHooks.state.set({ view: 'step', step: 2, row })", NAMES[1])
                page.wait_for_selector("h2:has-text('Update relative to the parameter at step 2')")
                assert page.locator(".bar-readout").first.inner_text() == (
                    f"{NAMES[1]}: no ratio (the parameter was 0 before the update)"
                )


def test_all_rows_fit_the_window_and_few_rows_fill_it(browser, url):
    sizes = """() => {
      const { drawn } = lightningHooks.views.map.panels[0];
      const { bottom } = document.querySelector(".legend").getBoundingClientRect();
      return [drawn.row, drawn.total <= drawn.height, innerHeight - bottom];
    }"""
    with opened(browser, f"{url}#run=apart&{MAP}") as page:
        drawn(page)
        row, is_whole, below = page.evaluate(sizes)
        assert row < 12 and is_whole and 0 <= below < 60
        page.get_by_label("fit the window").uncheck()
        page.wait_for_function("() => lightningHooks.views.map.panels[0].drawn.row === 16")
        assert "fit=0" in page.url and not page.evaluate(sizes)[1]
        page.evaluate("() => lightningHooks.state.set({ run: 'normed', fit: '' })")
        page.wait_for_function("() => lightningHooks.views.map.panels[0].drawn.row > 40")
        before = page.evaluate(sizes)[0]
        page.set_viewport_size({"width": 1280, "height": 500})
        page.wait_for_function(f"() => lightningHooks.views.map.panels[0].drawn.row < {before}")
