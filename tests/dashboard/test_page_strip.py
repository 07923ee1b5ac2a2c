"""The strip: a curve of the run above the heat map and on the overview, with the steps and the crosshair of the map."""

import re

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks.dashboard.report import write_report

from .browser import colors_of, drawn, needs_browser, opened, place, serving
from .runs import NAMES, write_run, write_scalars

pytestmark = [needs_browser, pytest.mark.slow]

MAP = "view=map&tensor=grad&stat=norm&folded=%2B"
CANVAS = "document.querySelector('.strip-pad canvas')"
NAN = "255,0,220"
MARKUP = "<img src=x onerror=alert(1)>"
# The place of a step in the first plot of the strip of the map view, on the page.
STEP_IN_STRIP = """([step]) => {
  const [plot] = lightningHooks.views[lightningHooks.state.view].strip.plots;
  const { left, width, from, to } = plot.areaOf();
  const box = plot.canvas.getBoundingClientRect();
  return [box.left + left + ((step + 0.5 - from) / (to - from)) * width, box.top + 30];
}"""
# The left edges of the visible crosshairs, on the page.
LINES = """() => [...document.querySelectorAll(".crosshair")].filter((line) => line.checkVisibility()).map((line) =>
  Math.round(line.getBoundingClientRect().left))"""


def readout(page):
    return page.locator(".strip-readout").inner_text()


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for name, factor in (("a", 1.0), ("b", 3.0)):
        write_run(folder / name, range(2000), names=NAMES[:2])
        steps = range(2000)
        for step in steps[::500]:
            write_scalars(folder / name, range(step, step + 500), run__loss=factor)
        write_scalars(folder / name, range(0, 2000, 100), val_accuracy=0.5, **{"lr-Adam": 1e-3, MARKUP: 2.0})
    return folder


@pytest.fixture(scope="module")
def url(logdir):
    with serving(logdir) as where:
        yield where


def test_a_step_has_one_place_in_strip_and_map_and_one_crosshair(browser, url):
    with opened(browser, f"{url}#run=a&{MAP}&from=100&to=200") as page:
        drawn(page)
        assert readout(page) == "step 199: 1"
        x, y = place(page, NAMES[0], 150)
        assert page.evaluate(STEP_IN_STRIP, [150])[0] == pytest.approx(x)
        page.mouse.move(x, y)
        assert readout(page) == "step 150: 1"
        assert page.evaluate(LINES) == [round(x)] * 2 or page.evaluate(LINES) == pytest.approx([x] * 2, abs=1)
        assert page.locator(".crosshair-step").inner_text() == "150"
        # From the strip, the map shows the step, and the value of the chosen row.
        page.mouse.click(x, y)
        page.mouse.move(*page.evaluate(STEP_IN_STRIP, [120]))
        assert readout(page) == "step 120: 1"
        assert re.fullmatch(rf"120 +{NAMES[0]}: [\d.]+", page.locator(".crosshair-step").inner_text())
        page.mouse.move(5, 5)
        assert page.evaluate(LINES) == [] and readout(page) == "step 199: 1"
        # The cursor of the keyboard moves the crosshair too.
        page.get_by_role("application").press("Home")
        assert readout(page) == "step 100: 1"


def test_strip_and_map_are_zoomed_together_and_by_keys(browser, url):
    with opened(browser, f"{url}#run=a&{MAP}") as page:
        drawn(page)
        pad = page.get_by_role("slider", name="run/loss over steps")
        x, y = page.evaluate(STEP_IN_STRIP, [1000])
        page.mouse.move(x, y)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        shown = "() => (({ from, to }) => [from, to])(lightningHooks.views.map.panels[0].model)"
        page.wait_for_function("() => lightningHooks.views.map.panels[0].model.to === 1800")
        assert page.evaluate(shown) == [200, 1800]
        page.wait_for_function("() => lightningHooks.views.map.strip.plots[0]?.areaOf().to === 1800")
        pad.press("0")
        page.wait_for_function("() => lightningHooks.views.map.panels[0].model.to === 2000")
        for key in ("Home", "ArrowRight", "ArrowRight"):
            pad.press(key)
        assert readout(page).startswith("step") and pad.get_attribute("aria-valuetext") == readout(page)
        first = page.evaluate("() => lightningHooks.views.map.crosshair.step")
        pad.press("ArrowLeft")
        assert page.evaluate("() => lightningHooks.views.map.crosshair.step") < first
        pad.press("+")
        page.wait_for_function("() => lightningHooks.views.map.panels[0].model.to < 2000")
        # Zoomed in, each step of the curve is a piece of its own; one on the left and two on the right are neighbours.
        page.evaluate("() => lightningHooks.state.set({ from: 300, to: 340 })")
        page.wait_for_function("() => lightningHooks.views.map.strip.series[0].steps.length === 43")
        page.get_by_role("button", name="all steps", exact=True).click()
        page.wait_for_function("() => lightningHooks.views.map.panels[0].model.to === 2000")
        # The map and the strip fetch by themselves: until the strip has all steps too, `End` is the end of the 43.
        page.wait_for_function("() => lightningHooks.views.map.strip.series[0].steps.length > 43")
        pad.press("End")
        pad.press("Enter")
        page.wait_for_selector("text=Gradient norm at step 1,99")
        # On the overview too.
        page.evaluate("() => lightningHooks.state.set({ view: 'overview', from: 500, to: 600 })")
        page.wait_for_function("() => lightningHooks.views.overview.strip.plots[0]?.areaOf().from === 500")
        page.mouse.move(*page.evaluate(STEP_IN_STRIP, [550]))
        assert readout(page) == "step 550: 1"


def test_whatever_the_module_logs_can_be_chosen_by_typing(browser, url, logdir, tmp_path):
    write_report(logdir / "a", tmp_path / "report.html")
    for where in (url, (tmp_path / "report.html").as_uri()):
        with opened(browser, f"{where}#run=a") as page:
            curve = page.get_by_role("combobox", name="Curve")
            page.wait_for_selector(".strip-readout >> text=1")
            assert curve.input_value() == "run/loss"
            options = page.locator("datalist option").evaluate_all("(all) => all.map((option) => option.value)")
            assert {*options[:4]} == {"run/loss", "val_accuracy", "lr-Adam", MARKUP} and "run/grad_norm" in options
            curve.focus()
            assert curve.input_value() == ""  # so that the list shows all
            curve.press_sequentially("ACC")
            curve.press("Enter")
            page.wait_for_function("() => lightningHooks.state.curve === 'val_accuracy'")
            page.wait_for_selector(".strip-readout >> text=0.5")
            page.reload()
            page.wait_for_selector(".strip-readout >> text=0.5")
            assert curve.input_value() == "val_accuracy"
            page.get_by_role("tab", name="Heat map").click()
            drawn(page)
            curve.fill("nothing")
            curve.press("Enter")
            page.wait_for_selector("text=No curve of this run contains nothing.")
            curve.fill(MARKUP)
            page.wait_for_selector(".strip-readout >> text=2")
            assert page.locator("main img").count() == 0
            curve.fill("run/loss")
            page.wait_for_function("() => lightningHooks.state.curve === ''")


def test_a_curve_is_logarithmic_where_its_values_are_positive(browser, tmp_path):
    for name, least in (("positive", 1e-6), ("zero", 0.0)):
        write_run(tmp_path / name, range(2))
        for step, value in ((0, 1.0), (1, least)):
            write_scalars(tmp_path / name, [step], train_loss=value)
    axis = "() => lightningHooks.views.overview.strip.axis.isLog"
    with serving(tmp_path) as url, opened(browser, f"{url}#run=positive") as page:
        page.wait_for_selector(".strip-readout >> text=step 1")
        log = page.get_by_label("log scale")
        assert page.evaluate(axis) and log.is_checked()
        log.uncheck()
        page.wait_for_function("() => !lightningHooks.views.overview.strip.axis.isLog")
        page.reload()
        page.wait_for_selector(".strip-readout >> text=step 1")
        assert not log.is_checked() and not page.evaluate(axis)
        page.evaluate("() => lightningHooks.state.set({ run: 'zero', curve_log: '1' })")
        page.wait_for_selector(".strip-readout >> text=step 1: 0")
        assert not log.is_visible() and not page.evaluate(axis)


def test_runs_that_are_compared_have_a_curve_each(browser, url):
    with opened(browser, f"{url}#run=a&other=b&{MAP}", viewport={"width": 1400, "height": 870}) as page:
        drawn(page)
        page.wait_for_selector(".strip-readout >> text=b 3")
        assert readout(page).endswith("a 1; step 1,999: b 3") or "a 1" in readout(page)
        assert page.locator(".strip-keys .keys").first.locator("span").all_inner_texts() == ["a", "b"]
        plots = page.locator(".strip-plot").all()
        assert len(plots) == 2
        page.mouse.move(*place(page, NAMES[0], 1000, panel=1))
        assert len(page.evaluate(LINES)) == 4  # in both maps and above both
        page.set_viewport_size({"width": 800, "height": 600})
        page.evaluate("() => lightningHooks.update()")
        page.wait_for_function("() => document.querySelectorAll('.strip-plot').length === 1")


def test_numbers_that_are_none_are_marked_in_the_strip(browser, tmp_path):
    write_run(tmp_path, range(100))
    write_scalars(tmp_path, range(60), my_loss=1.0)
    write_scalars(tmp_path, range(60, 100), my_loss=np.nan)
    with serving(tmp_path) as url, opened(browser, url) as page:
        page.wait_for_selector(".strip-readout >> text=step 99: NaN")
        assert page.get_by_role("combobox", name="Curve").input_value() == "my_loss"
        found = colors_of(page, CANVAS)
        assert found[NAN] > 1000
        assert page.locator(".strip-keys").inner_text().strip() == "NaN"  # the legend names the marks that are drawn
        # Crosses tell the mark apart from a curve without colours too.
        mixed = [tuple(map(int, key.split(","))) for key, count in found.items() if count > 20]
        assert any(green == 0 and 90 < red < 250 and blue > 70 for red, green, blue in mixed)


def test_a_sign_in_the_strip_leads_to_the_row_of_its_finding(browser, tmp_path):
    write_run(tmp_path, range(100))
    (tmp_path / "findings.jsonl").write_text(
        f'{{"rule": "Mine", "severity": "critical", "step": 40, "name": "{NAMES[1]}", "tensor": "grad"}}\n'
        '{"rule": "Other", "severity": "info", "step": 41}\n'
    )
    with serving(tmp_path) as url, opened(browser, f"{url}#{MAP}") as page:
        drawn(page)
        sign = page.locator(".sign-button")
        assert sign.get_attribute("aria-label") == "critical Mine, since step 40; info Other, since step 41"
        box = sign.bounding_box()
        assert box["x"] + box["width"] / 2 == pytest.approx(page.evaluate(STEP_IN_STRIP, [40])[0], abs=1)
        sign.press("Enter")
        page.wait_for_selector(f".picked strong:has-text('{NAMES[1]}')")


def test_a_noisy_curve_is_smoothed_over_the_raw_one_beside_the_validation_loss(browser, tmp_path):
    write_run(tmp_path, range(0, 3000, 100))
    losses = 2 + np.random.default_rng(0).uniform(-1, 1, 3000)
    with SummaryWriter(tmp_path) as writer:
        for step, loss in enumerate(losses):
            writer.add_scalar("train_loss", loss, step)
            if step % 100 == 0:
                writer.add_scalar("val_loss", 2.5, step)
                writer.add_scalar("lr-Adam", 1e-3, step)
    of_strip = "lightningHooks.views.overview.strip"
    with serving(tmp_path) as url, opened(browser, url) as page:
        # The pieces of several steps have three lines, which the strip names; the validation loss is on the axis of the loss.
        page.wait_for_selector(".strip-readout >> text=val_loss 2.5")
        assert re.fullmatch(r"steps 2,997 to 2,999: min \S+, mean \S+, max \S+; step 2,900: val_loss 2.5", readout(page))
        page.wait_for_selector("text=each point joins up to 3 steps: max mean min")
        means = page.evaluate(f"() => {of_strip}.series[0].mean")
        assert means[-1] == pytest.approx(losses[-3:].mean(), rel=1e-5)
        assert not page.evaluate(f"() => {of_strip}.hasOwnAxis")
        assert page.get_by_label("Second scalar").input_value() == "val_loss"
        page.get_by_label("Smoothing").fill("2")
        page.wait_for_selector(".strip-readout >> text=smoothed")
        smooth = page.evaluate(f"() => {of_strip}.series[0].smooth")
        assert np.abs(np.array(smooth[50:-50]) - 2).max() < 0.25 < np.abs(losses - 2).max() and "smooth=2" in page.url
        # Another curve of another unit has numbers of its own at the right. The address keeps both choices.
        second = page.get_by_label("Second scalar")
        second.fill("lr")
        second.press("Enter")
        page.wait_for_selector("text=lr-Adam (right axis)")
        page.reload()
        page.wait_for_selector(".strip-readout >> text=lr-Adam 0.001")
        assert page.evaluate(f"() => {of_strip}.hasOwnAxis") and page.get_by_label("Smoothing").input_value() == "2"
        second.fill("none")
        page.wait_for_function("() => lightningHooks.state.curve2 === '-'")
        page.wait_for_function(f"() => {of_strip}.seconds.length === 0")


def test_smoothing_shifts_nothing_and_leaves_out_what_is_no_number(browser, url):
    smoothed = """async ([least, strength, isLog]) => {
      const { smoothed } = await import("./static/smoothing.js");
      const values = least.map((each) => each ?? NaN);
      return smoothed({ steps: values.map((_, i) => i), least: values, greatest: values }, strength, isLog);
    }"""
    with opened(browser, url) as page:
        assert page.evaluate(smoothed, [[1, 2, 3], 0, False]) is None
        assert page.evaluate(smoothed, [[1, 2, 3, 4, 5], 1, False]) == [1, 2, 3, 4, 5]
        assert page.evaluate(smoothed, [[0, 3, 0, 0], 1, False]) == [0, 1, 1, 0]
        with_gap = page.evaluate(smoothed, [[1, 3, None, 5, 7], 1, False])
        assert with_gap[:2] == [1, 2] and np.isnan(with_gap[2]) and with_gap[3:] == [6, 7]
        assert page.evaluate(smoothed, [[1, 10, 100], 1, True]) == pytest.approx([1, 10, 100])


def test_a_run_without_curves_has_no_strip(browser, tmp_path):
    write_run(tmp_path, range(4), scalars={})
    with serving(tmp_path) as url, opened(browser, url) as page:
        page.wait_for_selector(".strip", state="attached")
        page.evaluate("() => { lightningHooks.meta.strip = []; lightningHooks.recolor(); }")
        page.wait_for_selector(".strip", state="hidden")
