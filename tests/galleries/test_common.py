"""Common faults: each script is worse with its fault, the page counts what is named first, and healthy ones stay silent."""

import pytest

from galleries.reports.catalogue import common
from galleries.reports.common_page import ANSWERS, CHECKED, SETTINGS, page
from galleries.reports.judge import Said, judge
from galleries.reports.report import Run
from galleries.sample import sample
from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.health.cause_table import CAUSES
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.text import Block

ALL = common()
FAULTS = [each for each in ALL if each.cause]
HEALTHY = [each for each in ALL if not each.cause]


def test_there_are_twelve_faults_and_three_healthy_trainings_with_answers_that_exist():
    assert [each.number for each in FAULTS] == [*range(201, 213)] == [*ANSWERS] and len(HEALTHY) == 3
    assert {*ANSWERS.values()} <= {cause.name for cause in CAUSES} | {check.name for check in DEFAULT_CHECKS}
    assert CHECKED <= {*ANSWERS} and all(each.doc.endswith(".") for each in ALL)


@pytest.mark.parametrize("report", [pytest.param(each, id=each.name) for each in sample(FAULTS, 3, lambda each: "fault")])
def test_a_script_is_worse_with_its_fault_and_is_named(report, tmp_path):
    said = judge(report, False, checks=report.number in CHECKED)
    assert not said.error and said.blocks[0].verdict.startswith(ANSWERS[report.number])
    assert not said.measure >= report.train(Run(True, 0, tmp_path))


@pytest.mark.parametrize("report", [pytest.param(each, id=each.name) for each in sample(HEALTHY, 1, lambda each: "healthy")])
def test_a_healthy_training_gets_nothing_above_info(report):
    said = judge(report, True)
    assert (said.told, said.blocks, said.error) == ([], [], "") and said.measure == said.measure


def told(name):
    return Said(told=[f"→ {name}"], blocks=[Block(Severity.WARNING, f"{name} (likely). It is so.", (), ())])


def test_the_page_counts_a_fault_only_if_it_is_named_first_in_all_runs():
    right = [(each, [told(ANSWERS[each.number]) if each.cause else Said()] * len(SETTINGS)) for each in ALL]
    assert "12 of 12 faults are named with what is wrong in all three runs; 3 of 3 healthy trainings get nothing" in page(right)
    once = [(each, [told("BadBatch"), *runs[1:]]) for each, runs in right]
    assert "0 of 12 faults are named with what is wrong in all three runs; 0 of 3 healthy trainings" in page(once)
    assert "| 2 | warning: BadBatch (likely). It is so. |" in page(once)
