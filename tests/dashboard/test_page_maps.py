"""Heat maps beside each other, and what they are saved as."""

import numpy as np
import pytest

from .browser import colors, drawn, needs_browser, opened, place, serving, texts_of_the_picture
from .runs import NAMES, STATS, write_run

pytestmark = [needs_browser, pytest.mark.slow]

MAP = "view=map&tensor=grad&stat=norm&folded=%2B"
# The colours of the pixels near a place of the page.
AROUND = """([x, y]) => {
  const { canvas } = lightningHooks.views.map.panels[0];
  const box = canvas.getBoundingClientRect();
  const { data } = canvas.getContext("2d").getImageData(x - box.left - 5, y - box.top - 5, 10, 10);
  return [...new Set(Array.from({ length: 100 }, (_, i) => data.slice(4 * i, 4 * i + 3).join(",")))];
}"""
LONG = [f"encoder.blocks.layer{i}.weight" for i in range(120)]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "long", range(20), names=LONG)
    write_run(folder / "short", range(20), names=[f"x{i}" for i in range(60)])
    with serving(folder) as where:
        yield where


def test_two_maps_beside_each_other(browser, url):
    with opened(browser, f"{url}#run=long&other=short&{MAP}&fit=0") as page:
        drawn(page)
        page.wait_for_function("() => lightningHooks.views.map.panels[1].drawn")
        page.mouse.move(*place(page, LONG[0], 5))
        page.mouse.wheel(0, 100_000)
        page.wait_for_timeout(400)
        places = "(all) => all.map((each) => [each.scrollTop, each.scrollHeight - each.clientHeight])"
        (first, its_end), (second, end_of_second) = page.locator(".scroll").evaluate_all(places)
        assert first == its_end > second == end_of_second > 0
        page.mouse.wheel(0, -100_000)
        page.wait_for_timeout(200)
        assert page.locator(".scroll").evaluate_all("(all) => all.map((each) => each.scrollTop)") == [0, 0]
        # A step is at the same place in both.
        (first, _), (second, _) = place(page, LONG[0], 10), place(page, "x0", 10, panel=1)
        panels = [panel.bounding_box() for panel in page.locator(".panel").all()]
        assert first - panels[0]["x"] == pytest.approx(second - panels[1]["x"])


def test_a_difference_is_one_of_steps_whatever_a_cell_holds(browser, tmp_path):
    def norms(otherwise):
        return lambda step, values: values["norm"].fill(otherwise if step % 4 else 100)

    write_run(tmp_path / "a", range(1400), names=NAMES[:2], change=norms(1))
    write_run(tmp_path / "b", range(1400), names=NAMES[:2], change=norms(50))
    write_run(tmp_path / "equal", range(1400), names=NAMES[:2], change=norms(1))
    with serving(tmp_path) as where, opened(browser, f"{where}#run=a&other=b&mode=difference&change=linear&{MAP}") as page:
        drawn(page)
        page.mouse.move(*place(page, NAMES[0], 1200))
        assert "difference of grad norm: −49 to 0" in page.locator(".tip").inner_text()
        scale = "() => (({ low, high, kind, index }) => [low, high, kind, index(0)])(lightningHooks.views.map.scale)"
        assert page.evaluate(scale) == [-49, 49, "linear", 128]
        page.evaluate("() => lightningHooks.state.set({ other: 'equal' })")
        page.wait_for_function("() => lightningHooks.views.map.scale.high === 1")
        drawn(page)
        assert page.evaluate(scale) == [-1, 1, "linear", 128] and colors(page)["247,246,245"] > 500
        wide = "async () => (await import('/static/colors.js')).makeScale('auto', 1e-6, 2, 1e-6, true).kind"
        assert page.evaluate(wide) == "symlog"


def test_what_is_no_number_and_few_outliers_do_not_take_the_colours(browser, tmp_path):
    names = [f"layer{i}" for i in range(20)]

    def outlier(step, values):
        values["norm"][:] = 1 + np.arange(20) / 20
        if step == 30:
            values["norm"][7] = 1e9
        if step >= 40:
            values["norm"][2], values["norm"][5] = np.inf, np.nan
            for stat in STATS:
                values[stat][9] = 0 if stat == "count" else np.nan

    write_run(tmp_path, range(100), names=names, change=outlier)
    with serving(tmp_path) as where, opened(browser, f"{where}#view=map&tensor=grad&stat=norm&folded=%2B") as page:
        drawn(page)
        page.wait_for_selector("text=few values go up to 1.00e9")
        scale = page.evaluate("() => { const { low, high, kind } = lightningHooks.views.map.scale; return [low, high, kind]; }")
        assert scale[0] == 1 and scale[1] == pytest.approx(1.95) and scale[2] == "linear"
        page.mouse.move(*place(page, names[7], 30))
        assert "grad norm: 1.00e9" in page.locator(".tip").inner_text().replace("1000000000", "1.00e9")
        cells = {}
        for row, said in ((2, "infinite"), (5, "NaN"), (9, "not measured")):
            where = place(page, names[row], 60)
            page.mouse.move(*where)
            assert (
                page.locator(".tip")
                .inner_text()
                .endswith(f"grad norm: {said}" if row < 9 else ": not measured (no gradient reached it)")
            )
            cells[said] = page.evaluate(AROUND, where)
        assert "0,214,255" in cells["infinite"] and "255,0,220" in cells["NaN"]
        assert {"255,255,255", "196,201,211"} <= {*cells["not measured"]}  # hatched
        written = texts_of_the_picture(page)
        assert {"NaN", "infinite", "exactly 0", "not measured"} <= {*written}
        assert any(text.endswith("; few values go up to 1.00e9") for text in written)


def test_what_was_picked_is_of_the_maps_that_are_shown(browser, tmp_path):
    for run, value in (("a", 1.0), ("b", 2.0)):
        write_run(tmp_path / run, range(20), change=lambda step, values, value=value: values["norm"].fill(value))
        write_run(tmp_path / run, range(20), tensor="param")
    with serving(tmp_path) as where, opened(browser, f"{where}#run=a&{MAP}") as page:
        drawn(page)
        picked = page.locator(".picked")
        page.mouse.click(*place(page, NAMES[1], 5))
        page.wait_for_selector(".picked >> text=grad norm: 1")
        page.get_by_label("Run", exact=True).select_option("b")
        page.wait_for_selector(".picked >> text=grad norm: 2")
        page.get_by_label("Statistic", exact=True).select_option("count")
        page.wait_for_selector(".picked >> text=grad count: 5")
        page.get_by_label("Compare with", exact=True).select_option("a")
        page.wait_for_function("() => lightningHooks.views.map.panels[1]?.drawn")
        page.wait_for_load_state("networkidle")  # The maps move down when the sentence on the two runs arrives above them.
        page.mouse.click(*place(page, NAMES[0], 5, panel=1))
        page.wait_for_selector(f".picked strong:has-text('{NAMES[0]}')")
        assert page.locator(".picked > *").all_inner_texts()[:2] == [NAMES[0], "a"]
        page.get_by_label("Tensor", exact=True).select_option("param")
        page.wait_for_function("() => lightningHooks.views.map.panels[0].model.tensor === 'param'")
        assert not picked.is_visible()
        page.evaluate("([row]) => lightningHooks.state.set({ row, folded: '-' })", [NAMES[1]])
        page.wait_for_selector(f".picked >> text={NAMES[1]}")
        page.get_by_role("button", name="Fold all parts", exact=True).click()
        drawn(page)
        page.mouse.click(*place(page, "net", 5))
        page.wait_for_selector(".picked >> text=merged exactly")
        page.get_by_label("Statistic", exact=True).select_option("std")  # the row picked before is folded away
        page.wait_for_selector(".legend-title >> text=param std")
        page.wait_for_timeout(200)
        assert not picked.is_visible()
        page.mouse.click(*place(page, "net", 5))
        page.wait_for_selector(".picked >> text=merged exactly")
        page.evaluate("() => lightningHooks.update()")
        page.wait_for_timeout(200)
        assert picked.locator("strong").inner_text() == "net"


def test_the_cursor_of_the_keyboard_stays_at_its_step_and_on_a_row(browser, tmp_path):
    write_run(tmp_path, range(4000))
    with serving(tmp_path) as where, opened(browser, f"{where}#{MAP}") as page:
        drawn(page)
        canvas = page.get_by_role("application")
        for key in ("End", *["ArrowLeft"] * 300, *["ArrowDown"] * 5):
            canvas.press(key)
        at = page.evaluate("() => lightningHooks.views.map.panels[0].cursor.step")
        assert 1000 < at < 3999
        for _ in range(2):
            canvas.press("+")
            drawn(page)
        canvas.press("ArrowUp")
        assert f"step {at:,}" in page.locator(".panel [aria-live]").inner_text().replace("steps", "step")
        canvas.press("ArrowDown")
        page.get_by_label("Show only rows").fill("net.0.bias")
        page.wait_for_function("() => lightningHooks.views.map.panels[0].model.shown.length === 1")
        canvas.press(" ")
        canvas.press("Enter")
        page.wait_for_selector("h2:has-text('Gradient of net.0.bias')")


def test_sizes_are_compared_by_the_logarithm_of_their_ratio(browser, tmp_path):
    def norms(factor):
        def change(step, values):
            values["norm"][:] = [1000, 1000, 1, 1]
            values["norm"][3] *= factor

        return change

    write_run(tmp_path / "a", range(40), change=norms(1))
    write_run(tmp_path / "b", range(40), change=norms(50))  # 50 times larger, but small beside 1000
    with serving(tmp_path) as where, opened(browser, f"{where}#run=a&other=b&mode=difference&{MAP}") as page:
        drawn(page)
        page.wait_for_selector("text=a against b: grad norms are 50 times smaller in head.weight, from step 0.")
        page.mouse.move(*place(page, NAMES[3], 20))
        assert page.locator(".tip").inner_text().endswith("ratio of grad norm: 0.02 times (log₂ −5.644)")
        at, middle = (page.evaluate(AROUND, place(page, name, 20)) for name in (NAMES[3], NAMES[0]))
        assert at == ["45,0,75"] and middle == ["247,246,245"]  # the first colour, and that of equal values
        assert page.locator(".legend .ticks").inner_text().split() == ["−5.644", "(×0.02)", "0", "(×1)", "5.644", "(×50)"]
        page.get_by_role("button", name="Colours …").click()
        page.get_by_label("Difference as").select_option("linear")
        page.get_by_role("button", name="Colours …").click()
        drawn(page)
        page.mouse.move(*place(page, NAMES[3], 20))
        page.wait_for_function("() => document.querySelector('.tip').textContent.endsWith('difference of grad norm: −49')")
        page.get_by_label("Statistic", exact=True).select_option("mean")
        page.wait_for_selector(".legend-title >> text=difference of grad mean")
        page.get_by_role("button", name="Colours …").click()
        assert page.get_by_label("Comparison").is_visible()
        assert not page.get_by_label("Difference as").is_visible() and page.locator(".compared").count() == 0


@pytest.mark.parametrize("width", [800, 1400])
def test_the_toolbar_has_one_line_and_the_legend_is_in_sight(browser, url, width):
    viewport = {"width": width, "height": 600 if width == 800 else 900}
    with opened(browser, f"{url}#run=good&{MAP}", viewport=viewport) as page:
        drawn(page)
        heights = page.locator(".tools > *").evaluate_all("(parts) => parts.map((each) => each.getBoundingClientRect().bottom)")
        shown = [each for each in heights if each]
        assert max(shown) - min(shown) < 12, shown
        box = page.locator(".legend").bounding_box()
        assert box["y"] + box["height"] <= viewport["height"]
        colors = page.get_by_role("button", name="Colours …")
        assert colors.is_visible() == (width == 800)
        assert page.get_by_label("Scale", exact=True).is_visible() == (width == 1400)
        if width == 800:
            colors.click()
            assert colors.get_attribute("aria-expanded") == "true"
            page.get_by_label("Scale", exact=True).select_option("linear")
            page.wait_for_function("() => lightningHooks.views.map.scale.kind === 'linear'")
