"""Rebuilt reports: each has a script, which is worse with its fault, and nobody who watches changes it."""

import math
import random

import pytest

from galleries.reports.catalogue import reports
from galleries.reports.judge import ASIDE, judge
from galleries.reports.report import Run
from galleries.sample import sample

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
