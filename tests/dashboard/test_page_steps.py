"""Steps are those that were written, also where a cell holds several or its bounds are none."""

import re

import numpy as np
import pytest

from lightning_hooks.dashboard.report import write_report

from .browser import colors_of, drawn, needs_browser, opened, place, serving
from .runs import NAMES, write_about, write_run

pytestmark = [needs_browser, pytest.mark.slow]
TABLE = "tensor=grad&stat=norm"
# How many pixels below the bars of the step view are not transparent.
INK_BELOW_BARS = """() => {
  const { canvas, foot } = lightningHooks.views.step;
  const { data } = canvas.getContext("2d").getImageData(0, foot + 5, canvas.width, canvas.height - foot - 5);
  return data.filter((value, i) => i % 4 === 3 && value > 0).length;
}"""
BELOW = """async ([names, step]) => {
  const { groupsBelow } = await import("./static/stepbars.js");
  return groupsBelow(names, step).map((each) => each.name);
}"""
GROUPS = """async ([names, least]) => {
  const { groupsOf } = await import("./static/stepbars.js");
  return groupsOf(names, least).map((each) => [each.name, each.first, each.last]);
}"""


def test_steps_that_are_not_the_bounds_of_cells(browser, tmp_path):
    write_run(tmp_path / "tens", [*range(9, 300, 10), 300])
    write_run(tmp_path / "hundreds", range(0, 300, 100))
    write_run(tmp_path / "other", range(0, 900, 100), tensor="param")
    with serving(tmp_path) as url, opened(browser, f"{url}#run=tens&view=map&{TABLE}&folded=%2B") as page:
        drawn(page)
        assert page.evaluate("() => [lightningHooks.range().first, lightningHooks.range().last]") == [0, 310]
        page.mouse.move(*place(page, NAMES[0], 19))
        assert page.locator(".tip").inner_text().split("\n")[1] == "step 19"
        page.mouse.click(*place(page, NAMES[0], 19))
        page.get_by_role("button", name="This step").click()
        page.wait_for_selector("text=Gradient norm at step 19")
        page.get_by_role("slider", name="Step").press("ArrowRight")
        page.wait_for_selector("text=Gradient norm at step 29")
        # Another run has a larger cell, and this view shows one run.
        page.evaluate("() => lightningHooks.state.set({ other: 'hundreds', step: 19, step2: 305 })")
        page.wait_for_selector("text=Gradient norm at step 19, compared with step 300")
        # A run without the table does not make cells larger.
        page.evaluate("() => lightningHooks.state.set({ view: 'map', other: 'other', step: '', step2: '' })")
        page.wait_for_selector("text=other has no table of grad norm.")
        assert page.evaluate("() => (({ first, last, unit }) => [first, last, unit])(lightningHooks.range())") == [0, 310, 10]
        page.evaluate("() => lightningHooks.state.set({ other: 'hundreds', mode: 'difference' })")
        page.wait_for_selector("text=tens and hundreds have no step in common")
        page.evaluate("([row]) => lightningHooks.state.set({ view: 'row', row, other: '' })", list(NAMES))
        page.locator(".u-over").first.hover(position={"x": 1, "y": 20})
        assert page.locator(".chart-value").first.inner_text().startswith("step 9: ")


def test_what_an_axis_is_of_is_said(browser, tmp_path):
    def wide(step, values):
        values["norm"][:] = 10.0 ** np.arange(len(values["norm"]))

    write_run(tmp_path, range(4), change=wide, scalars={"run/overhead": 0.0448})
    with serving(tmp_path) as url, opened(browser, f"{url}#view=step&{TABLE}") as page:
        page.wait_for_selector("text=Height: grad norm (units of the tensor, log)")
        page.evaluate("() => lightningHooks.state.set({ view: 'overview' })")
        page.wait_for_selector("[role=img][aria-label='run/overhead: 4 points, last 4.48 %']")
        assert page.locator(".card", has_text="run/overhead").locator(".value").inner_text() == "4.48 %"


def test_several_steps_are_said_to_be_several(browser, tmp_path):
    def nan_from_37(step, values):
        if step >= 37:
            values["norm"][1] = np.nan

    write_run(tmp_path / "run", range(3000), change=nan_from_37)
    with serving(tmp_path) as url, opened(browser, f"{url}#view=row&{TABLE}&row={NAMES[1]}") as page:
        page.wait_for_selector("text=NaN at 2,963 steps, from one of the steps 36 to 39 on")
        page.evaluate("() => lightningHooks.state.set({ view: 'map' })")
        drawn(page)
        page.mouse.move(*place(page, NAMES[0], 1000))
        said = page.locator(".tip").inner_text().split("\n")[1]
        assert said.startswith("steps ") and said.endswith("3")
        page.evaluate("() => lightningHooks.state.set({ view: 'step', step: 2001 })")
        page.wait_for_selector("text=Gradient norm at step 2,001")
    # The limit leaves less room than 3,000 steps take, so a cell of the report holds several steps.
    write_run(tmp_path / "short", range(1))
    page_alone = write_report(tmp_path / "short", tmp_path / "short.html")
    write_report(tmp_path / "run", tmp_path / "report.html", page_alone + 20_000)
    with opened(browser, f"{(tmp_path / 'report.html').as_uri()}#view=step&{TABLE}&step=2001") as page:
        title = page.wait_for_selector("text=/Gradient norm at steps [0-9,]+ to [0-9,]+/").inner_text()
        first, last = (int(each.replace(",", "")) for each in re.search("steps ([0-9,]+) to ([0-9,]+)", title).groups())
        assert first <= 2001 <= last


def test_nan_infinite_and_not_measured_differ(browser, tmp_path):
    def change(step, values):
        values["norm"][:2] = np.nan, np.inf
        for stat in values:
            values[stat][2] = 0 if stat == "count" else np.nan

    write_run(tmp_path / "bad", range(3), change=change)
    write_run(tmp_path / "good", range(3))
    with serving(tmp_path) as url, opened(browser, f"{url}#run=bad&view=step&{TABLE}", has_touch=True) as page:
        page.wait_for_selector("text=Gradient norm at step 2")
        page.wait_for_timeout(100)
        assert [each.inner_text().strip() for each in page.locator(".legend > :not(.legend-title)").all()] == [
            "NaN",
            "infinite",
            "not measured",
        ]
        found = colors_of(page, "lightningHooks.views.step.canvas")
        assert min(found[each] for each in ("255,0,220", "0,214,255", "196,201,211")) > 500
        page.evaluate("() => lightningHooks.state.set({ run: 'good' })")
        page.wait_for_function("() => document.querySelector('.legend')?.childElementCount === 1")
        box = page.locator("canvas").bounding_box()
        page.touchscreen.tap(box["x"] + 80, box["y"] + 200)
        page.wait_for_selector(".picked strong:has-text('head.weight')")  # a click shows the row and the step in the map
        assert page.evaluate("() => [lightningHooks.state.view, lightningHooks.state.step]") == ["map", "2"]


def test_a_tensor_that_is_measured_less_often_has_wider_cells(browser, tmp_path):
    write_run(tmp_path / "run", range(1000))
    write_run(tmp_path / "run", range(99, 1000, 100), tensor="val_output")
    write_report(tmp_path / "run", tmp_path / "report.html")
    table = "tensor=val_output&stat=norm"
    with serving(tmp_path) as url:
        for where in (f"{url}#run=run", f"{(tmp_path / 'report.html').as_uri()}#x"):
            with opened(browser, f"{where}&view=map&folded=%2B&{table}") as page:
                drawn(page)
                range_of = "() => (({ first, last, unit }) => [first, last, unit])(lightningHooks.range())"
                assert page.evaluate(range_of) == [0, 1000, 100]
                page.mouse.move(*place(page, NAMES[0], 120))
                assert page.locator(".tip").inner_text().split("\n")[1] == "step 199"
                page.get_by_label("Tensor", exact=True).select_option("grad")
                page.wait_for_function("() => lightningHooks.range().unit === 1")
                drawn(page)
                page.evaluate("([row]) => lightningHooks.state.set({ view: 'row', tensor: 'val_output', row })", list(NAMES))
                page.wait_for_selector("[role=img][aria-label*='val_output norm of net.0.weight: 10 points']")
                page.evaluate("() => lightningHooks.state.set({ view: 'step', step: 500 })")
                page.wait_for_selector("text=Output norm in validation at step 499")


def test_the_step_view_keeps_the_compared_run(browser, tmp_path):
    def constant(number):
        return lambda step, values: values["norm"].fill(number)

    write_run(tmp_path / "a", range(10), change=constant(1.0))
    write_run(tmp_path / "b", range(8), change=constant(2.0), names=(*NAMES[1:], "more.weight"))
    with serving(tmp_path) as url, opened(browser, f"{url}#run=a&other=b&view=map&{TABLE}") as page:
        page.get_by_role("tab", name="Step").click()
        page.wait_for_selector("text=Gradient norm at step 9")
        assert page.get_by_label("Compare with", exact=True).first.input_value() == "b"
        page.wait_for_selector(".legend >> text=line: b, step 7")  # b ended there
        page.wait_for_selector("text=Not shown: 1 row that only b has.")
        page.evaluate("() => lightningHooks.state.set({ step: 5, step2: 3 })")
        page.wait_for_selector(".legend >> text=line: step 3")
        page.get_by_role("application").press("End")
        said = page.locator("output").inner_text()
        assert said == f"{NAMES[0]}: 1; step 3: 1; b: no such row"
        page.get_by_role("application").press("ArrowLeft")
        assert page.locator("output").inner_text() == f"{NAMES[1]}: 1; step 3: 1; b: 2"
        page.wait_for_timeout(60)
        assert colors_of(page, "lightningHooks.views.step.canvas")["196,43,28"] > 100  # the colour of b in the curves
        page.get_by_role("slider", name="Step").press("ArrowLeft")
        page.wait_for_selector("text=Gradient norm at step 4")
        assert page.locator("output").inner_text() == f"{NAMES[1]}: 1; step 3: 1; b: 2"  # the chosen bar stays


def test_steps_are_played_with_colours_by_module_beside_the_usual_range(browser, tmp_path):
    def shares(step, values):
        values["zero_fraction"][:] = [0.1, 0.2, 0.3, 0.4 + step / 100]

    write_run(tmp_path, range(12), change=shares)
    kinds = {"net.0.weight": "Linear", "net.0.bias": "Linear", "net.2.weight": "Conv2d", "head.weight": "Linear"}
    write_about(tmp_path, {name: {"type": kind} for name, kind in kinds.items()})
    with serving(tmp_path) as url, opened(browser, f"{url}#view=step&tensor=grad&stat=zero_fraction&step=10") as page:
        page.wait_for_selector("h2:has-text('Share of zeros of the gradient at step 10')")
        assert page.locator(".kind-key").all_inner_texts() == ["Linear", "Conv2d"]
        found = colors_of(page, "lightningHooks.views.step.canvas")
        assert found["31,79,209"] > found["179,84,30"] > 1000  # three bars of one kind, one of the other
        assert "usual 0 to 0.7" in page.locator(".usual").inner_text()
        page.keyboard.press("End")
        assert page.locator(".bar-readout").first.inner_text().startswith("net.0.weight: 0.1")  # the last layer comes first
        page.keyboard.press(",")
        page.wait_for_selector("h2:has-text('at step 9')")
        page.keyboard.press(".")
        page.wait_for_selector("h2:has-text('at step 10')")
        page.get_by_label("Speed").select_option("4")
        page.get_by_role("button", name="Play").click()
        page.get_by_role("button", name="Play").wait_for()  # it pauses at the last step
        page.wait_for_selector("h2:has-text('at step 11')")
        top = page.evaluate("() => lightningHooks.views.step.scaleOfBars().high")
        page.keyboard.press("k")  # from the start again
        page.get_by_role("button", name="Pause").wait_for()
        page.keyboard.press("k")
        page.get_by_role("button", name="Play").wait_for()
        assert int(page.evaluate("() => lightningHooks.state.step")) < 11 and top == pytest.approx(0.51)


def test_bars_are_labelled_whatever_their_number(browser, tmp_path):
    for count in (4, 40, 1000):
        names = [f"blocks.{i // 8}.layer{i % 8}.weight" for i in range(count)]
        write_run(tmp_path / str(count), range(2), names=names)
    with serving(tmp_path) as url:
        for count in (4, 40, 1000):
            with opened(browser, f"{url}#run={count}&view=step&{TABLE}") as page:
                page.wait_for_selector("text=Gradient norm at step 1")
                page.wait_for_timeout(100)
                # With 1,000 bars many of the 125 blocks are named, not only what they all have in common.
                assert page.evaluate(INK_BELOW_BARS) > (4000 if count == 1000 else 300), count
                assert page.locator("output").inner_text().startswith("Point at a bar")
                box = page.get_by_role("application").bounding_box()
                readout = page.locator("output").bounding_box()
                page.mouse.move(box["x"] + box["width"] - 9, box["y"] + 100)
                assert page.locator("output").inner_text().startswith("blocks.0.layer0.weight: ")
                assert page.locator("output").bounding_box() == readout  # it has a fixed place


def test_groups_of_names(browser, tmp_path):
    write_run(tmp_path, range(2))
    names = [f"blocks.{i}.{part}" for i in range(3) for part in ("a", "b")] + ["head"]
    with serving(tmp_path) as url, opened(browser, url) as page:
        assert page.evaluate(GROUPS, [names, 3]) == [["blocks", 0, 5], ["head", 6, 6]]
        assert page.evaluate(GROUPS, [names, 1.5]) == [
            ["blocks.0", 0, 1],
            ["blocks.1", 2, 3],
            ["blocks.2", 4, 5],
            ["head", 6, 6],
        ]
        deep = [f"layers.{i}.{part}.weight" for i in range(16) for part in ("norm", "qkv", "out", "up", "down", "gate")] + [
            "head"
        ]
        layers = [*(f"layers.{i}" for i in range(16)), "head"]
        # With 9 pixels a bar each layer has room for its name; with 4 too, because one group of all layers tells nothing.
        assert page.evaluate(BELOW, [deep, 9]) == layers and page.evaluate(BELOW, [deep, 4]) == layers
        assert page.evaluate(BELOW, [["a.b", "a.c"], 30]) == ["a.b", "a.c"]
