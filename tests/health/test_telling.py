"""A teller shows each cause and finding once, as text, and an outlet that fails does not end the diagnosis."""

import numpy as np
import pytest

from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.journal import read_findings
from lightning_hooks.health.rule import symptoms_where
from tests.health.outlets_for_tests import SICK, consume, started, views
from tests.health.rules_for_tests import Huge
from tests.health.views import views_of

HOT = (CauseRule(name="Hot", message="{where} is hot since {step}.", required=("Huge",)),)


def two_rows(*series):
    return views_of([("grad", "a"), ("grad", "b")], np.stack([np.asarray(each, dtype=float) for each in series], axis=1))


def test_a_cause_is_told_once_while_it_grows_and_again_where_it_comes_back_elsewhere(tmp_path):
    calm = [1.0] * 400
    a = [1.0] * 5 + [20.0] * 55 + calm
    b = [1.0] * 30 + [20.0] * 30 + calm
    reporter, outlet, _ = started(tmp_path, Huge(), causes=HOT)
    consume(reporter, two_rows(a, b))
    (block,) = outlet.blocks
    assert block.startswith("WARNING: Hot (possible). a is hot since 5.")
    b = [1.0] * 400 + [20.0] * 60
    reporter, outlet, _ = started(tmp_path, Huge(), causes=HOT)
    consume(reporter, two_rows(a, b))
    first, second = (block.splitlines()[0] for block in outlet.blocks)
    assert "a is hot since 5." in first and "b is hot since 400." in second
    assert [cause.first_step for cause in read_findings(tmp_path).causes] == [5, 400]


@pytest.mark.parametrize(
    ("method", "name"),
    [("tell", "the terminal"), ("tell_line", "the terminal"), ("show", "the loggers"), ("keep", "the event file")],
)
def test_an_outlet_that_fails_is_one_warning_and_rank_0_goes_on_as_the_others_do(tmp_path, monkeypatch, method, name):
    def fails(*args):
        raise BrokenPipeError("gone\x1b[31m")

    rows = [("grad", "a"), ("grad", "z.b")]
    series = np.array([[1.0, 1.0]] * 5 + [[20.0, 1.0]] * 40 + [[20.0, 20.0]] * 20)
    reporter, outlet, context = started(tmp_path, Huge(), actions={"warning": ["warn", "stop", "checkpoint"]})
    other, _, elsewhere = started(None, Huge(), actions={"warning": ["warn", "stop", "checkpoint"]}, rank=1)
    consume(other, views_of(rows, series))
    monkeypatch.setattr(outlet, method, fails)
    with pytest.warns(UserWarning) as said:
        consume(reporter, views_of(rows, series))
    assert [str(each.message) for each in said] == [
        f"findings are not shown in {name} any more (BrokenPipeError: gone\\x1b[31m); the training goes on"
    ]
    assert (context.reasons, context.checkpoints) == (elsewhere.reasons, elsewhere.checkpoints)
    assert len(context.checkpoints) == 2 and len(read_findings(tmp_path).findings) == 2
    assert len(outlet.blocks) == (0 if method == "tell" else 2) and bool(outlet.markdown) == (method != "show")


def test_names_with_control_characters_reach_neither_terminal_nor_markdown(tmp_path):
    row = "a\x1b[31m\n\x07b"
    reporter, outlet, context = started(tmp_path, Huge(), actions={"warning": ["warn", "stop", "checkpoint", "raise"]})
    consume(reporter, views(SICK, row))
    shown = [*outlet.blocks, *outlet.lines, outlet.markdown, *context.reasons, *context.checkpoints, str(reporter.error)]
    assert len(shown) == 6 and not [each for each in shown if not each.replace("\n", "").isprintable()]
    assert reporter.diagnosis.findings[0].rows == (row,)


class Cold(Huge):
    """Another rule."""

    every_n_steps = 5
    patience = 3
    needs = (("output", "abs_max"),)

    def check(self, evidence):
        track = evidence.track("output", "abs_max")
        return symptoms_where(track, track.values > self.most, self.most, lambda value: f"output reaches {value:g}")


BOTH = (CauseRule(name="Both", message="Both.", required=("Huge", "Cold"), confidence="certain"),)


def of_both(grad, output):
    return views_of([("grad", "a"), ("output", "a")], np.stack([np.asarray(grad, float), np.asarray(output, float)], axis=1))


def test_a_cause_says_which_messages_it_takes_the_place_of(tmp_path):
    grad, output = [20.0] * 80, [1.0] * 60 + [20.0] * 20
    reporter, outlet, _ = started(tmp_path, Huge(), Cold(), causes=BOTH)
    consume(reporter, of_both(grad, output))
    assert [block.splitlines()[0] for block in outlet.blocks] == [
        "WARNING: Huge, since step 0. a: gradient reaches 20.",
        "WARNING: Both (certain). Both. This takes the place of Huge/a.",
    ]
    reporter, outlet, _ = started(tmp_path, Huge(), Cold(), causes=(*BOTH, *HOT))
    consume(reporter, of_both(grad, output))
    assert [block.splitlines()[0] for block in outlet.blocks] == [
        "WARNING: Hot (possible). a is hot since 0.",
        "WARNING: Both (certain). Both. This takes the place of Hot.",
    ]
    (cause,) = reporter.diagnosis.causes
    assert cause.replaces == ("Hot",)


def test_a_cause_whose_successor_has_been_told_before_is_taken_back(tmp_path):
    hot = CauseRule(name="Hot", message="Hot.", required=("Huge",), confidence="certain", while_standing=True)
    cool = CauseRule(name="Cool", message="Cool.", required=("Cold",), supporting=("Huge",), confidence="certain")
    reporter, outlet, _ = started(tmp_path, Huge(), Cold(), causes=(hot, cool))
    consume(reporter, of_both([20.0] * 30 + [1.0] * 30, [1.0] * 10 + [20.0] * 50))
    assert [block.splitlines()[0] for block in outlet.blocks] == [
        "WARNING: Hot (certain). Hot.",
        "WARNING: Cool (certain). Cool.",
        "INFO: Hot, told before, holds no longer.",
    ]


def test_a_cause_that_holds_no_longer_is_taken_back_also_after_a_resume(tmp_path):
    hot = (CauseRule(name="Hot", message="Hot.", required=("Huge",), confidence="certain", while_standing=True),)
    made = of_both([20.0] * 30 + [1.0] * 30, [1.0] * 60)
    reporter, outlet, _ = started(tmp_path, Huge(), causes=hot)
    consume(reporter, made[:20])
    resumed, later, _ = started(tmp_path, Huge(), causes=hot, state=reporter.state_dict())
    consume(resumed, made[20:])
    assert [block.splitlines()[0] for block in outlet.blocks + later.blocks] == [
        "WARNING: Hot (certain). Hot.",
        "INFO: Hot, told before, holds no longer.",
    ]


def test_a_cause_that_comes_and_goes_is_taken_back_once_and_told_again_once(tmp_path):
    hot = (CauseRule(name="Hot", message="Hot.", required=("Huge",), confidence="certain", while_standing=True),)
    made = of_both(([20.0] * 30 + [1.0] * 30) * 3 + [20.0] * 30, [1.0] * 210)
    reporter, outlet, _ = started(tmp_path, Huge(), causes=hot)
    consume(reporter, made[:70])
    resumed, later, _ = started(tmp_path, Huge(), causes=hot, state=reporter.state_dict())
    consume(resumed, made[70:])
    assert [block.splitlines()[0] for block in outlet.blocks + later.blocks] == [
        "WARNING: Hot (certain). Hot.",
        "INFO: Hot, told before, holds no longer.",
        "INFO: Hot, told before, holds again.",
    ]


EACH = {"patience": 1, "every_n_steps": 1}


class Fact(Huge):
    """The same as a fact."""

    family = "facts"


@pytest.mark.parametrize(
    ("severity", "confidence", "first"),
    [("warning", "likely", 10), ("warning", "certain", 0), ("critical", "likely", 0)],
)
def test_a_fact_is_told_once_by_its_cause_within_ten_steps(tmp_path, severity, confidence, first):
    hot = (CauseRule(name="Hot", message="Hot.", required=("Fact",), confidence=confidence),)
    reporter, outlet, _ = started(tmp_path, Fact(severity=severity, **EACH), causes=hot)
    told = []
    for view in views_of([("grad", "a")], np.full((30, 1), 20.0)):
        reporter.consume(view)
        told += [view.step] * (len(outlet.blocks) - len(told))
    assert told == [first] and outlet.blocks[0].startswith(f"{severity.upper()}: Hot ({confidence}). Hot.")
    reporter.close(None)


def test_a_fact_without_a_cause_is_told_at_once(tmp_path):
    reporter, outlet, _ = started(tmp_path, Fact(**EACH))
    consume(reporter, views_of([("grad", "a")], np.full((3, 1), 20.0)))
    assert outlet.blocks[0].startswith("WARNING: Fact, since step 0.")


def test_a_cause_that_has_become_graver_says_so_in_one_line_and_no_message_twice(tmp_path):
    hot = (CauseRule(name="Hot", message="Hot.", required=("Huge",), supporting=("Cold",), confidence="certain"),)
    reporter, outlet, _ = started(tmp_path, Huge(), Cold(severity="critical"), causes=hot)
    consume(reporter, of_both([20.0] * 60, [1.0] * 20 + [20.0] * 40))
    first, rise = outlet.blocks
    assert first.startswith("WARNING: Hot (certain). Hot.")
    assert rise.splitlines()[0] == "CRITICAL: Hot, told before as warning, is critical by now."
    assert "Cold in a, since step 20" in rise and "Next" not in rise
    (cause,) = reporter.diagnosis.causes
    assert cause.severity == "critical"
