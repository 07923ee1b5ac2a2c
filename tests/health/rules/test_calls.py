"""A module that runs no longer, or never ran, is told; not where the training leaves it out for a reason."""

import pytest

from lightning_hooks.health.rules.calls import NeverCalled, NotCalledAnyMore
from tests.health.rules.made import diagnosed, found, of_rms, reason, run
from tests.health.rules.test_flow import MODEL, NAMES, facts_of, from_step, steps_of


def test_a_module_that_runs_no_longer_is_told_since_it_does_not_run():
    (finding,) = diagnosed(NotCalledAnyMore(), steps_of(output={"b": from_step(41, None)})).findings
    assert finding.rows == ("b",) and finding.first_step == 41
    assert finding.message == "b: it ran at each of the 41 steps before, and has not run since step 41."


@pytest.mark.parametrize(
    "options",
    [
        {"output": {"b": from_step(29, None)}},
        {"output": {"b": from_step(59, None)}},
        {"output": {"b": from_step(41, None), "a": from_step(41, of_rms(1.0), None)}},
        {"output": {"b": from_step(41, None), "a": lambda step: None if step % 9 == 0 else of_rms(1.0)}},
        {"output": {"b": from_step(41, None)}, "facts": facts_of(("a.weight",))},
        {"output": {"b": from_step(41, None)}, "facts": facts_of(frozen=("b.weight",))},
    ],
    ids=["short history", "one step", "another phase", "layers at random", "not held", "frozen"],
)
def test_a_module_that_runs_no_longer_for_a_reason_is_no_finding(options):
    assert found(NotCalledAnyMore(), steps_of(**options)) == {}


def test_a_module_that_never_runs_is_information():
    (finding,) = diagnosed(NeverCalled(), steps_of({"b.weight": None}, output={"b": None}, steps=6)).findings
    assert finding.rows == ("b",) and finding.first_step == 0 and finding.severity == "info"


def test_what_is_told_of_calls_stands_when_the_window_has_lost_what_it_was_told_from():
    (finding,) = diagnosed(NeverCalled(), steps_of({"b.weight": None}, output={"b": None}, steps=400)).findings
    assert finding.is_over is None
    views = steps_of(output={"b": from_step(41, None)}, steps=400)
    (finding,) = diagnosed(NotCalledAnyMore(), views).findings
    assert finding.first_step == 41 and finding.is_over is None and finding.message == "b: it has not run since step 41."
    views = steps_of(output={"b": lambda step: None if 41 <= step < 350 else of_rms(1.0)}, steps=400)
    (finding,) = diagnosed(NotCalledAnyMore(), views).findings
    assert finding.is_over is not None and 350 <= finding.is_over < 360


def test_a_module_that_is_used_without_a_call_or_that_runs_later_is_no_finding():
    assert found(NeverCalled(), steps_of(output={"b": None})) == {}
    assert found(NeverCalled(), steps_of({"b.weight": None}, output={"b": from_step(4, of_rms(1.0), None)})) == {}


def test_a_rule_on_calls_needs_outputs():
    tensors = {(tensor, name): of_rms(1.0) for tensor in ("grad", "update", "param") for name in NAMES}
    assert reason(NotCalledAnyMore(), run(MODEL, tensors, facts=facts_of())) == "no row has `output`"
