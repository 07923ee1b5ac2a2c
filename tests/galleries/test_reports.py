"""Rebuilt reports: each has a script, which is worse with its fault, and nobody who watches changes it."""

import math
import random
import re

import pytest

from galleries.reports.catalogue import reports
from galleries.reports.judge import ASIDE, Said, judge
from galleries.reports.page import ANSWERS, page
from galleries.reports.report import Run
from galleries.sample import sample
from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.health.cause_table import CAUSES
from lightning_hooks.health.rules import DEFAULT_RULES

ALL = reports()


def test_there_is_one_script_for_each_report_and_a_lot_has_put_a_third_aside():
    assert [each.number for each in ALL] == [*range(1, 28)]
    assert len({each.name for each in ALL}) == 27 and all(each.doc.endswith(".") and each.cause for each in ALL)
    assert sorted(ASIDE) == sorted(random.Random(48).sample(range(1, 28), 9))


def measured(report, is_fixed, folder):
    measure = report.train(Run(is_fixed, 0, folder))
    return -math.inf if math.isnan(measure) else measure


@pytest.mark.parametrize("report", [pytest.param(each, id=each.name) for each in sample(ALL, 4, lambda each: "report")])
def test_a_script_is_worse_with_its_fault_and_the_same_if_it_is_watched(report, tmp_path):
    fixed = measured(report, True, tmp_path)
    assert measured(report, False, tmp_path) < fixed
    said = judge(report, True)
    assert (said.measure, said.error) == (fixed, "")


def counted(faulty, fixed=lambda names: Said(), checked=lambda names: Said(), sound=lambda names: Said()):
    """The numbers of the page, where each is said to a report whose answers are `names`."""
    made = [(each, *(make(ANSWERS[each.number][:1]) for make in (faulty, fixed, checked, sound))) for each in ALL]
    sentence = re.search(r"[0-9]+ of 27 are named.*?checked or not", page(made), re.DOTALL)
    return [int(each) for each in re.findall(r"[0-9]+", sentence[0]) if each != "27"]


def test_the_page_counts_what_is_named_and_what_stays_silent():
    def causes(names):
        return Said(told=[f"→ {name}" for name in names])

    assert counted(causes) == [25, 8, 9, 25, 0]
    assert counted(lambda names: Said(), checked=causes) == [0, 0, 9, 25, 0]
    assert counted(lambda names: Said(notes=[*names])) == [0, 0, 9, 0, 25]


def test_the_page_counts_neither_other_findings_nor_variants_that_are_told_something():
    made = [(each, Said(told=["LossConstant@5"]), Said(told=["LossSpike@3"]), Said(), Said()) for each in ALL]
    assert "\nwith the check 0 are, and 0 more in a note. 0 of 27 fixed variants" in page(made)
    made = [(each, Said(), Said(), Said(told=["StepRuns@0"]), Said(told=["StepRuns@0"])) for each in ALL]
    assert "0 of 27 fixed variants" in page(made) and "| – | no | – | `StepRuns@0` |" in page(made)


def test_answers_are_names_of_rules_causes_and_checks():
    known = {rule.name for rule in DEFAULT_RULES} | {cause.name for cause in CAUSES} | {check.name for check in DEFAULT_CHECKS}
    assert {name for names in ANSWERS.values() for name in names} <= known and ANSWERS.keys() == {*range(1, 28)}
