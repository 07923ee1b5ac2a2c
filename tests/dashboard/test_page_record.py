"""Flight records on the page: the card, the marks, and the view with the trail and the growth."""

import json
from dataclasses import replace

import pytest

from lightning_hooks.dashboard.report import write_report
from lightning_hooks.engine.recording.findings import write_finding
from lightning_hooks.health.finding import Cause, Event
from lightning_hooks.health.rule import Severity

from .browser import colors_of, drawn, needs_browser, opened, serving
from .recorded import ENDED, RECORDED, write_record
from .runs import write_run

pytestmark = [needs_browser, pytest.mark.slow]

MODULES = ("net.0", "net.1", "head")
NAN = "255,0,220"  # the colour of NaN in colors.js
HOSTILE = "<img src=x onerror=alert(1)>"
TRAIL = "lightningHooks.views.record.element.querySelector('.trail canvas')"
MARKS = """() => lightningHooks.views.map.panels[0].model.marks.map(({ node, step, record }) =>
  [node === null ? "" : lightningHooks.views.map.panels[0].model.rows.nodes[node].name, step, record])"""


def test_a_record_is_a_card_a_mark_and_a_view(browser, tmp_path):
    write_run(tmp_path, range(20), names=MODULES, tensor="output", scalars={"watch/run/loss": 1.0})
    write_record(tmp_path, replace(RECORDED, notes=(HOSTILE,)))
    write_record(tmp_path, ENDED, "flight_record-2")
    with serving(tmp_path) as url, opened(browser, url) as page:
        cards = page.locator("article.finding")
        cards.nth(1).wait_for()  # Bars stand in their place until the run is read.
        assert [each.split("\n")[:3] for each in cards.all_inner_texts()] == [
            ["Flight record", "Forward operation", "in step 12"],
            ["Flight record", "Exception", "in step 15"],
        ]
        card = cards.first.inner_text()
        for said in (
            "net.1 (Exp): output, forward; call 1, batch 1 of the step",
            "2 NaN, 1 +Inf of 32 elements, the first at [3, 1]",
            "aten.exp",
            "model.py:31 in forward",
            "return x.exp()",
            "self [8, 4] float16: −2 to 12",
            "at once, in place: it gave the same",
            f"lightning-hooks replay {tmp_path}/flight_record",
            "The largest float16, 65504, is 1.638 times the largest finite value.",
        ):
            assert said in card, said
        assert "not possible: the batch was not kept" in cards.nth(1).inner_text()
        signs = page.locator(".strip .sign-button")
        assert signs.evaluate_all("(all) => all.map((sign) => sign.ariaLabel)") == [
            "critical Flight record, since step 12",
            "critical Flight record, since step 15",
        ]
        signs.nth(1).click()
        assert page.evaluate("document.activeElement.record") == "flight_record-2"

        page.get_by_role("tab", name="Heat map").click()
        drawn(page)
        assert page.evaluate(MARKS) == [["net.1", 12, "flight_record"], ["net.0", 15, "flight_record-2"]]
        assert "● flight record" in page.locator(".legend").first.inner_text()
        page.evaluate("lightningHooks.state.set({ view: 'row', row: 'net.1' })")
        note = page.locator(".note").first
        assert note.inner_text().startswith("● In step 12: Flight record, Forward operation: In the forward pass of step 12")
        note.get_by_role("button", name="Show the calls before it").click()

        page.wait_for_selector(".trail canvas")
        readout = page.locator(".bar-readout")
        assert readout.inner_text() == (
            "output of net.1 (forward), step 12, batch 1, call 1: 3 elements not finite (with NaN). Number 18 of 18."
        )
        page.wait_for_timeout(100)
        assert colors_of(page, TRAIL).get(NAN, 0) > 500
        page.locator(".trail canvas").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert readout.inner_text() == (
            "output_grad of net.0 (backward), step 11, batch 1, call 1: least −0.01, greatest 0.02, "
            "smallest magnitude 1.00e-5, all finite. Number 16 of 18."
        )
        growth = page.get_by_role("slider", name="largest magnitude of output of net.1 over the last steps")
        growth.focus()
        growth.press("Home")
        assert growth.get_attribute("aria-valuetext") == "step 5: 4"
        assert page.locator(".record-view li").all_inner_texts() == [HOSTILE]
        assert "optimizers\t0 Adam 0.001" in page.locator(".record-view").inner_text()
        assert page.locator(".record-view td.number").all_inner_texts() == ["−2", "12", "0.25", "× 5459"]

        page.locator(".trail canvas").focus()
        page.keyboard.press("Enter")  # no monitor watched the gradient
        message = page.locator(".message")
        assert message.inner_text() == "This run has no row for output_grad of net.0: no monitor watched it."
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        page.wait_for_selector("h2:has-text('Output of net.1')")
        assert page.evaluate("[lightningHooks.state.view, lightningHooks.state.step]") == ["row", "12"]
        page.go_back()
        page.wait_for_selector(".trail canvas")
        page.get_by_role("button", name="step 15: Exception").click()
        page.wait_for_selector(".traceback")
        assert "ValueError: <b>broken</b>" in page.locator(".record-view").inner_text()
        assert page.locator(".record-view b, .record-view img").count() == 0


def test_a_cause_and_the_record_that_named_it_are_one_card(browser, tmp_path):
    write_run(tmp_path, range(20), names=MODULES, tensor="output", scalars={"watch/run/loss": 1.0})
    write_finding(RECORDED, write_record(tmp_path, RECORDED).parent)
    write_record(tmp_path, ENDED, "flight_record-2")
    with serving(tmp_path) as url, opened(browser, url) as page:
        cards = page.locator("article.finding")
        cards.nth(1).wait_for()  # Bars stand in their place until the run is read.
        assert [" ".join(each.split()) for each in page.locator("article.finding h3").all_inner_texts()] == [
            "Critical FirstBadNumberForward certain since step 12",
            "Flight record Exception in step 15",
        ]
        card = cards.first.inner_text()
        assert card.count(RECORDED.message) == 1 and page.locator("main").inner_text().count(RECORDED.message) == 1
        for said in (
            "Flight record\nForward operation",
            "model.py:31 in forward",
            "What to do",
            "NonFinite in net.1",
            "largest magnitude of",
        ):
            assert said in card, said
        assert cards.first.locator("figure").count() == 1
        page.get_by_role("button", name="critical Flight record, since step 12").click()
        assert page.evaluate("document.activeElement.record") == "flight_record"
        cards.first.get_by_role("button", name="Show the calls before it").click()
        page.wait_for_selector(".trail canvas")


def test_a_cause_that_quotes_a_record_comes_first_and_holds_it_below_what_to_do(browser, tmp_path):
    """The record has one measured step, which is no curve."""
    write_run(tmp_path, range(20), names=MODULES, tensor="output", scalars={"watch/run/loss": 1.0})
    growth = replace(RECORDED.growth, steps=RECORDED.growth.steps[-1:], abs_max=RECORDED.growth.abs_max[-1:])
    write_record(tmp_path, replace(RECORDED, growth=growth))
    message = f"Gradients are kept. {RECORDED.message}"
    cause = Cause("GradientsNotCleared", message, (), ("Clear them.",), severity=Severity.CRITICAL, first_step=4)
    (tmp_path / "findings.jsonl").write_text(json.dumps(Event("cause", 12, cause=cause).to_dict()) + "\n")
    with serving(tmp_path) as url, opened(browser, url) as page:
        page.wait_for_selector("article.finding")
        (card,) = page.locator("article.finding").all_inner_texts()
        assert card.index("Gradients are kept.") < card.index("Clear them.") < card.index("Flight record")
        assert card.count(RECORDED.message) == 1 and "in step 12" in card
        assert page.locator("article.finding figure").count() == 0
        page.get_by_role("tab", name="Flight record").click()
        page.wait_for_selector(".trail canvas")
        assert page.locator("text=How it grew").count() == 0


def test_the_tab_is_there_only_with_a_record_and_in_a_report(browser, tmp_path):
    write_run(tmp_path / "run", range(20), names=MODULES, tensor="output")
    tab = "[data-view=record]"
    with serving(tmp_path / "run") as url, opened(browser, f"{url}#view=record") as page:
        page.wait_for_selector("[data-view=overview][aria-selected=true]")
        assert page.locator(tab).is_hidden()
        page.keyboard.press("6")
        page.locator("[data-view=overview]").press("ArrowLeft")  # the last tab that is shown comes before the first
        page.wait_for_selector("[data-view=sheet][aria-selected=true]")
        page.locator("[data-view=sheet]").press("ArrowRight")
        write_record(tmp_path / "run", RECORDED)
        page.evaluate("lightningHooks.poll()")
        page.wait_for_selector(f"{tab}:visible")
        page.wait_for_selector("article.finding")  # drawn after the tab is shown
        assert page.locator("article.finding").count() == 1
        page.evaluate("lightningHooks.state.set({ view: 'row' })")  # without a finding it opens on the row of the record
        page.wait_for_selector("h2:has-text('Output of net.1')")
    (tmp_path / "alone").mkdir()
    write_record(tmp_path / "alone", RECORDED)
    with serving(tmp_path / "alone") as url, opened(browser, url) as page:
        assert "no table of lightning_hooks, so this is all that is known of it" in page.locator(".run-summary").inner_text()
        page.get_by_role("button", name="Show the calls before it").click()
        page.wait_for_selector(".trail canvas")
    write_report(tmp_path / "run", tmp_path / "report.html")
    with opened(browser, (tmp_path / "report.html").as_uri()) as page:
        page.locator(tab).click()
        page.wait_for_selector(".trail canvas")
        assert "Number 18 of 18" in page.locator(".bar-readout").inner_text()
