"""The list of runs, the first screen of a folder with several runs."""

import json
import os
import re

import pytest

from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.learning import LossCourse
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.summary import summary_of

from .browser import needs_browser, opened, serving
from .recorded import RECORDED, write_record
from .runs import write_run, write_scalars

pytestmark = [needs_browser, pytest.mark.slow]

LINES = "(all) => all.map((line) => line.dataset.run)"


def dead(severity):
    where = {"rows": ("fc",), "tensor": "output", "first_step": 4, "last_step": 9, "evidence": ()}
    return Finding("DeadUnits", **where, severity=severity, message="fc: 90 % of the units are dead.", number=1)


def write_found(folder, *events):
    journal = Journal(folder)
    journal.write([Event("begin", 0), *events])
    found = {"findings": [each.finding for each in events if each.finding], "causes": []}
    course = LossCourse(2.0, 0.5, True)
    journal.write_summary(summary_of(9, 10, ran=["DeadUnits"], could_not={}, failed={}, accepted=[], **found, course=course))
    journal.write([Event("end", 9)])
    journal.close()


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    losses = {"broken": 3.0, "slow": 2.0, "fine": 0.5, "looked at": 1.0}
    for number, (name, loss) in enumerate(losses.items()):
        write_run(folder / name, range(10 * (number + 1)), scalars={"run/loss": loss})
        for file in (folder / name).glob("events*"):
            os.utime(file, (1e9 + 86_400 * number,) * 2)
    cause = Cause("BadBatch", "One batch differs.", ("DeadUnits/fc",), severity=Severity.CRITICAL, numbers=(1,))
    write_found(folder / "broken", Event("new", 9, dead(Severity.WARNING)), Event("cause", 9, cause=cause))
    write_found(folder / "slow", Event("new", 9, dead(Severity.WARNING)))
    write_found(folder / "fine")
    (folder / "recorded").mkdir()
    write_record(folder / "recorded", RECORDED)
    write_scalars(folder / "of another package", range(3), loss=1.0)
    return folder


@pytest.fixture(scope="module")
def url(logdir):
    with serving(logdir) as where:
        yield where


def lines(page):
    return page.locator(".run-list tbody tr").evaluate_all(LINES)


def test_each_run_has_its_health_its_worst_sentence_and_its_loss(browser, url):
    with opened(browser, url, viewport={"width": 1400, "height": 900}) as page:
        page.wait_for_function("() => document.querySelectorAll('.sparkline').length === 4")
        assert lines(page) == ["recorded", "broken", "slow", "looked at", "fine"]  # of equals the newest first
        assert page.locator(".run-list .badge").all_inner_texts() == [
            "Critical",
            "Critical",
            "Warning",
            "Not examined",
            "Healthy",
        ]
        assert page.locator(".sentence").all_inner_texts() == [
            f"Forward operation: {RECORDED.message}",
            "BadBatch: One batch differs.",
            "DeadUnits: fc: 90 % of the units are dead.",
        ]
        cells = page.locator("tr[data-run=slow] td").all_inner_texts()
        assert cells[3:6] == ["2", "19", "–"] and re.fullmatch(r"2001-09-(09|10|11) \d\d:\d\d", cells[6])
        assert page.locator("tr[data-run=slow] title").text_content() == "run/loss: from 2 to 2, lowest 2"
        assert page.get_by_text("5 runs: 2 critical, 1 warning, 1 not examined, 1 without findings").is_visible()


def test_the_list_is_sorted_and_filtered_and_the_address_holds_how(browser, url):
    with opened(browser, url) as page:
        page.wait_for_function("() => document.querySelectorAll('.sparkline').length === 4")
        page.get_by_role("button", name="Run", exact=True).press("Enter")
        assert lines(page) == ["broken", "fine", "looked at", "recorded", "slow"]
        assert page.locator("th.name").get_attribute("aria-sort") == "ascending"
        page.get_by_role("button", name="Loss").click()
        assert lines(page) == ["fine", "looked at", "slow", "broken", "recorded"]  # without a value last
        page.get_by_role("button", name="Last step").click()
        page.get_by_role("button", name="Last step").click()
        assert lines(page) == ["broken", "slow", "fine", "looked at", "recorded"]
        page.get_by_label("Filter runs").fill("dead WARNING")
        assert lines(page) == ["slow"] and "1 of 5 runs" in page.locator(".tools").inner_text()
        assert "order=-steps" in page.url and "find=dead+WARNING" in page.url
        page.get_by_label("Filter runs").fill("nothing")
        page.get_by_role("button", name="Show all runs").click()
        assert len(lines(page)) == 5 and page.evaluate("() => document.activeElement.type") == "search"


def test_a_run_is_opened_and_ticked_runs_are_compared(browser, url):
    with opened(browser, url) as page:
        page.wait_for_function("() => document.querySelectorAll('.sparkline').length === 4")
        page.get_by_role("button", name="slow", exact=True).press("Enter")
        page.wait_for_selector(".verdict >> text=1 warning")
        page.go_back()
        assert page.get_by_role("tab", name="Runs").get_attribute("aria-selected") == "true"
        compare = page.locator(".compare-runs")
        assert compare.is_disabled() and compare.inner_text() == "Tick runs to compare them"
        for name in ("fine", "slow"):
            page.get_by_label(f"Compare {name}").press("Space")
        assert compare.inner_text() == "Compare 2 runs"
        for name in ("broken", "looked at"):
            page.get_by_label(f"Compare {name}").check()
        assert page.get_by_label("Compare recorded").is_disabled()
        page.get_by_label("Compare looked at").uncheck()
        compare.click()
        page.wait_for_selector(".verdict >> text=1 cause, ")
        assert page.evaluate("() => [lightningHooks.state.run, ...lightningHooks.state.others]") == ["broken", "slow", "fine"]


def test_a_folder_with_one_run_opens_it_and_a_new_run_is_listed(browser, tmp_path):
    write_run(tmp_path / "only", range(5))
    with serving(tmp_path) as where, opened(browser, where) as page:
        page.wait_for_selector(".verdict")
        assert not page.get_by_role("tab", name="Runs").is_visible()
        write_run(tmp_path / "second", range(5))
        page.get_by_role("tab", name="Runs").click(timeout=15_000)
        page.wait_for_selector("tr[data-run=second]")
        markup = "<img src=x onerror=alert(1)>"
        (tmp_path / "second" / "findings.jsonl").write_text(json.dumps({"rule": markup, "severity": "fatal", "why": markup}))
        page.wait_for_selector("tr[data-run=second] .badge.critical", timeout=15_000)
        assert page.locator("tr[data-run=second] .sentence").inner_text() == f"{markup}: {markup}"
        assert page.locator("main img").count() == 0
