"""The curve of a card: its words, its usual range, its legend, and that one point is no curve."""

import json

import numpy as np
import pytest

from lightning_hooks.health.finding import Cause, Event
from lightning_hooks.health.rule import Severity

from .browser import needs_browser, opened, serving
from .runs import write_run, write_scalars
from .test_ranges import TINTED

pytestmark = [needs_browser, pytest.mark.slow]


def write_cause(folder, step):
    """A cause that is shown by the relative size of updates."""
    cause = Cause("LearningRateTooHigh", "Steps are too large.", (), severity=Severity.CRITICAL, first_step=step)
    (folder / "findings.jsonl").write_text(json.dumps(Event("cause", 12, cause=cause).to_dict()) + "\n")


def test_a_curve_has_the_usual_range_of_its_statistic_and_a_sentence_with_a_subject(browser, tmp_path):
    write_run(tmp_path, range(20))
    for step in range(20):
        write_scalars(tmp_path, [step], watch__run__update_ratio=1e-6 * 2.0**step)
    write_cause(tmp_path, 5)
    with serving(tmp_path) as url, opened(browser, url) as page:
        figure = page.locator(".finding-curve")
        figure.locator(".usual").wait_for()
        assert figure.inner_text().split("\n")[0] == "watch/run/update_ratio"
        assert figure.locator(".curve-value").inner_text() == "At the mark, step 5: 3.20e-5"
        assert figure.locator(".usual").inner_text() == "often 0.001, usual 0.0001 to 0.1 ?"
        assert page.evaluate(TINTED.replace(".card", ".finding-curve")) > 500  # the band
        box = figure.locator("canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 40)
        assert figure.locator(".curve-value").inner_text().startswith("step 1")


def test_a_curve_names_the_marks_of_numbers_that_are_not_finite(browser, tmp_path):
    write_run(tmp_path, range(20))
    for step, value in enumerate([1.0, 2.0, 4.0, np.inf, np.nan, np.nan]):
        write_scalars(tmp_path, [step], watch__run__update_ratio=value)
    write_cause(tmp_path, 3)
    with serving(tmp_path) as url, opened(browser, url) as page:
        keys = page.locator(".finding-curve .keys .special")
        keys.first.wait_for()
        assert [each.strip() for each in keys.all_inner_texts()] == ["NaN", "infinite"]


@pytest.mark.parametrize("values", [[2.0, np.nan, np.nan], [np.nan, np.nan, np.nan]])
def test_one_point_is_no_curve(browser, tmp_path, values):
    write_run(tmp_path, range(20))
    for step, value in enumerate(values):
        write_scalars(tmp_path, [step], watch__run__update_ratio=value)
    write_cause(tmp_path, 1)
    with serving(tmp_path) as url, opened(browser, url) as page:
        page.wait_for_selector("article.finding")
        page.wait_for_selector(".finding-curve", state="detached")
        assert "not measured" not in page.locator("article.finding").inner_text()
