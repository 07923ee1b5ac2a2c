"""Harm is measured in the loss of a run; a pattern is a note until then, and its history tells so everywhere."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.harm import harm_of, jump_of
from lightning_hooks.health.journal import read_events, read_findings, standing
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.text import blocks_of
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.outlets_for_tests import consume, started
from tests.health.rules.made import Made, of_rms, run, structure_of
from tests.health.rules_for_tests import Huge
from tests.health.views import views_of


@dataclass(frozen=True, kw_only=True)
class Wide(Huge):
    """A pattern: a gradient reaches a number."""

    every_n_steps: int = 20
    kind: ClassVar = "pattern"


HOT = (CauseRule(name="Hot", message="{where} is hot since {step}.", required=("Wide",)),)


def noisy(levels, share=0.02, seed=0):
    return np.asarray(levels) * (1 + share * np.random.default_rng(seed).normal(size=len(levels)))


def views(loss, grad=None, facts=None):
    """Views of a loss and of a gradient, 20 from step 5 on if none is given."""
    grad = [1.0] * 5 + [20.0] * (len(loss) - 5) if grad is None else grad
    made = views_of([("loss", "loss"), ("grad", "a")], np.stack([loss, grad], axis=1))
    return [replace(view, facts=facts(view.step)) if facts else view for view in made]


def evidence_of(loss, facts=None):
    evidence = Evidence()
    for view in views(loss, facts=facts):
        evidence.add(view)
    return evidence


FALLING = noisy(np.linspace(2.3, 0.8, 120))
FLAT = noisy(np.full(120, 2.3))
BIAS = noisy(np.concatenate([np.linspace(2.6, 2.3, 20), np.full(100, 2.3)]))
LEARNED = noisy(np.concatenate([np.linspace(2.3, 0.2, 40), np.full(160, 0.2)]))
LOST = noisy(np.concatenate([np.linspace(2.3, 0.8, 80), np.full(20, 2.0)]))
RISING = noisy(np.linspace(2.3, 9.0, 60))


@pytest.mark.parametrize("loss", [FALLING, LEARNED, FLAT[:49], noisy(np.full(120, 1e-9)), FALLING - 5])
def test_a_run_that_learns_has_learned_or_is_young_shows_no_harm(loss):
    assert harm_of(evidence_of(loss)) == ""


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (FLAT, "the loss has not fallen: it was 2.3"),
        (BIAS, "the loss has not fallen: it was 2.3"),
        (LOST, "the loss has given back most of what it had gained: it began at 2."),
        (RISING, "the loss has risen: it was "),
        (np.append(FALLING, [np.inf] * 3), "the loss is not finite since step 120"),
    ],
)
def test_harm_is_told_in_numbers_of_this_run(loss, words):
    assert harm_of(evidence_of(loss)).startswith(words)


def harm_of_head(loss, slope, classes=10, variation=1.0, rms=0.0, mean=0.0):
    """The harm in a run of 32 samples whose head has this gradient, by the root mean square and the mean, and this output."""
    count = 32 * classes
    needs = [
        ("output", "count"),
        ("output", "rms"),
        ("output", "unit_variation"),
        ("output_grad", "rms"),
        ("output_grad", "mean"),
    ]
    evidence = Evidence(needs)
    tensors = {
        ("output", "head"): of_rms(rms, count=count, units={"unit_variation": variation}),
        ("output_grad", "head"): Made(mean=mean, std=np.sqrt(slope**2 - mean**2), count=count),
    }
    structure = structure_of({"head": "Linear"}, {"head": (classes, 64)})
    for view in run(structure, tensors, 120, loss=lambda step: float(loss[step]), facts=StepFacts(last_step=120)):
        evidence.add(view)
    return harm_of(evidence)


def test_a_loss_at_chance_is_harm_however_large_it_began():
    """Ten equal probabilities have 2.303 and this gradient. The first loss says nothing of what was learned since."""
    loss = noisy(np.concatenate([[3000.0] * 5, np.full(115, np.log(10))]))
    assert harm_of_head(loss, 0.3 / 32).endswith("at step 119; that of 10 equal probabilities is 2.303")


def test_a_loss_near_the_logarithm_of_the_outputs_is_not_at_chance_without_the_gradient_of_it():
    """An honest loss passes there, and a mean squared error of ten outputs may stay there."""
    loss = noisy(np.concatenate([[3000.0] * 5, np.full(115, np.log(10))]))
    assert harm_of_head(loss, 0.2 / 32) == ""
    assert harm_of_head(loss, 0.3 / 32, rms=2.0) == ""
    error = 2 * np.sqrt(np.log(10)) / 320
    assert harm_of_head(loss, error, mean=error / 20, rms=1.0) == ""


def test_a_model_that_was_trained_before_need_not_learn():
    """A loss of 0.3 and this gradient are those of a classifier of ten classes that knows its data."""
    loss = noisy(np.full(120, 0.3))
    assert harm_of_head(loss, 0.12 / 32, rms=4.0) == ""
    assert "the loss has not fallen" in harm_of_head(loss, 0.12 / 32, mean=0.01 / 32, rms=1.0)
    assert "the loss has not fallen" in harm_of_head(noisy(np.full(120, 1.5)), 0.12 / 32, rms=1.0)
    # Smoothed labels add 0.5 to the loss of such a classifier, and nothing to its gradient.
    assert harm_of_head(noisy(np.full(120, 0.76)), 0.073 / 32, rms=4.0) == ""
    assert "the loss has not fallen" in harm_of_head(noisy(np.full(120, 1.1)), 0.073 / 32, rms=1.0)
    # A loss of margins begins at 0.9, with the gradient of equal probabilities; a square of these has hardly any.
    assert "the loss has not fallen" in harm_of_head(noisy(np.full(120, 0.9)), 0.3 / 32, rms=1.0)
    assert "the loss has not fallen" in harm_of_head(noisy(np.full(120, 0.09)), 0.006 / 32, rms=1.0)
    assert "the loss has not fallen" in harm_of_head(noisy(np.full(120, 0.208)), 0.375 / 32, classes=2, rms=1.0)
    # Equal probabilities whose loss is divided by ten.
    assert "the loss has not fallen" in harm_of_head(noisy(np.full(120, np.log(10) / 10)), 0.03 / 32, rms=1.0)


def test_outputs_that_differ_and_whose_first_loss_is_small_are_those_of_a_trained_model():
    """If they knew nothing, a cross entropy would be at least 0.69, and a squared error their variance, whatever else it is."""
    loss = noisy(np.full(120, 0.4))
    assert harm_of_head(loss, 0.3 / 32, mean=0.05 / 32, rms=2.0, classes=1) == ""
    assert "the loss has not fallen" in harm_of_head(loss, 0.3 / 32, mean=0.05 / 32, rms=1.0, classes=1)
    assert "the loss has not fallen" in harm_of_head(2 * loss, 0.3 / 32, mean=0.05 / 32, rms=2.0, classes=1)
    of_squares = 2 * np.sqrt(loss[0]) / 32
    assert harm_of_head(loss, of_squares, rms=1.0, classes=1) == ""
    assert "the loss has not fallen" in harm_of_head(loss, of_squares, rms=0.6, classes=1)


def test_a_squared_error_whose_outputs_hardly_vary_is_at_chance():
    loss = np.concatenate([[3000.0] * 5, np.full(115, 2.0)])
    error = 2 * np.sqrt(2.0) / 320
    assert "; that of an output that is the same for every sample is 2.01" in harm_of_head(loss, error, rms=1.0, variation=0.1)
    assert harm_of_head(loss, error, rms=1.0, variation=0.3) == ""


def test_a_loss_that_has_fallen_may_be_at_an_end_that_is_not_near_0_unless_it_is_a_cross_entropy():
    """As that of a density, which may be of both signs. In the steps 20 to 40 it is still on its way."""
    fallen, hardly = (noisy(np.concatenate([np.linspace(2.3, end, 60), np.full(160, end)])) for end in (1.6, 2.15))
    assert harm_of(evidence_of(fallen)) == ""
    assert "the loss has not fallen" in harm_of(evidence_of(hardly))
    assert harm_of_head(fallen, 0.2 / 32, rms=4.0) == ""
    assert "the loss has not fallen" in harm_of_head(fallen, 0.3 / 32, rms=4.0)
    soon = noisy(np.concatenate([np.linspace(2.3, 1.6, 15), np.full(205, 1.6)]))
    assert "the loss has not fallen" in harm_of(evidence_of(soon))


def test_what_a_rule_on_the_loss_says_for_some_steps_is_harm():
    @dataclass(frozen=True, kw_only=True)
    class Odd(HealthRule):
        family: ClassVar = "loss"
        patience: int = 1

        def check(self, evidence):
            step = evidence.step
            yield Symptom("", tensor="", step=step, measured=1.0, threshold=0.0, text="the loss is odd", since=self.begin)

        begin: ClassVar = 0

    assert kinds(Diagnosis([Odd(), Wide()]), views(FALLING))[1:2] == [("new", 19, "warning")]
    first, second = type("First", (Wide,), {}), type("Second", (Wide,), {})
    ended = kinds(Diagnosis([first(), Odd(), second()]), views(FALLING[:18]))
    assert [severity for *_, severity in ended] == ["warning", "warning", "warning"]
    Odd.begin = None
    assert kinds(Diagnosis([Odd(), Wide()]), views(FALLING[:20]))[1:2] == [("new", 19, "info")]


def trained_by(*rates, last_step=None):
    optimizers = tuple(OptimizerFacts("SGD", (GroupFacts(rate, 0.0, ("a",)),)) for rate in rates)
    return StepFacts(optimizers=optimizers, last_step=last_step)


def test_losses_that_balance_and_rates_that_rise_show_no_harm():
    assert harm_of(evidence_of(FLAT, lambda step: trained_by(0.1))) != ""
    assert harm_of(evidence_of(FLAT, lambda step: trained_by(0.1, 0.1))) == ""
    assert harm_of(evidence_of(RISING, lambda step: trained_by(0.1, 0.1))) == ""
    assert harm_of(evidence_of(FLAT, lambda step: trained_by(1e-5 * step))) == ""
    assert harm_of(evidence_of(FLAT, lambda step: trained_by(1e-5 * step, last_step=2 * len(FLAT)))) == ""
    assert harm_of(evidence_of(FLAT, lambda step: trained_by(1e-5 * step, last_step=len(FLAT)))) != ""


def test_without_a_loss_there_is_no_witness():
    evidence = Evidence()
    for view in views_of([("grad", "a")], np.ones((60, 1))):
        evidence.add(view)
    assert harm_of(evidence) == jump_of(evidence, 30) == ""


def test_a_jump_is_above_all_losses_before():
    loss = FALLING.copy()
    loss[100] = 3.0
    assert jump_of(evidence_of(loss), 101).endswith("to 3 at step 100")
    assert jump_of(evidence_of(loss), 60) == jump_of(evidence_of(FALLING), 101) == ""


def test_the_fall_of_the_first_losses_is_no_deviation_of_later_ones():
    # The bias of a head learns the frequencies of the classes within a few steps. The jump goes back to where the loss began.
    loss = noisy(np.concatenate([np.full(4, 2.8), np.full(140, 1.6), np.full(6, 2.8)]))
    assert jump_of(evidence_of(loss), 144).startswith("the loss jumps from 1.6")


@pytest.mark.parametrize("digit", [1e-7, 2.0**-8])
def test_the_last_digit_of_a_constant_loss_is_neither_a_jump_nor_a_rise(digit):
    loss = np.full(120, 2.302585)
    loss[100:] *= 1 + digit
    assert jump_of(evidence_of(loss), 101) == "" and "risen" not in harm_of(evidence_of(loss))
    loss[100] *= 1.02
    assert jump_of(evidence_of(loss), 101).startswith("the loss jumps from 2.303 to ")


def kinds(diagnosis, views):
    events = [event for view in views for event in diagnosis.add(view)] + diagnosis.finish()
    return [(event.kind, event.step, str(event.finding.severity)) for event in events if event.finding]


def test_a_pattern_is_a_note_until_harm_is_measured_while_it_holds():
    assert kinds(Diagnosis([Wide()]), views(FALLING)) == [("new", 19, "info")]
    assert kinds(Diagnosis([Wide()]), views(FLAT)) == [("new", 19, "info"), ("raised", 59, "warning")]
    assert kinds(Diagnosis([Wide(severity="info")]), views(FLAT)) == [("new", 19, "info")]
    over = [1.0] * 5 + [20.0] * 10 + [1.0] * 105
    assert kinds(Diagnosis([Wide()]), views(FLAT, over)) == [("new", 19, "info")]
    late = [1.0] * 80 + [20.0] * 40
    assert kinds(Diagnosis([Wide()]), views(FLAT, late)) == [("new", 99, "warning")]


def test_a_raised_finding_stays_raised_and_says_why():
    loss = noisy(np.concatenate([np.full(80, 2.3), np.linspace(2.3, 0.1, 60)]))
    diagnosis = Diagnosis([Wide()])
    assert kinds(diagnosis, views(loss))[-1] == ("raised", 59, "warning")
    (finding,) = diagnosis.findings
    assert finding.harm.startswith("the loss has not fallen") and finding.harm.endswith("at step 59")
    (block,) = blocks_of([], [finding])
    assert finding.harm in block.why


def test_a_symptom_that_is_a_fact_needs_no_harm():
    class Certain(Wide):
        def check(self, evidence):
            return [replace(each, is_fact=True) for each in super().check(evidence)]

    assert kinds(Diagnosis([Certain()]), views(FLAT)) == [("new", 19, "warning")]


def test_a_note_that_a_fact_joins_becomes_a_warning():
    class Certain(Wide):
        def check(self, evidence):
            return [replace(each, is_fact=each.row == "b") for each in super().check(evidence)]

    series = np.stack([FALLING, [1.0] * 5 + [20.0] * 115, [1.0] * 22 + [20.0] * 98], axis=1)
    made = views_of([("loss", "loss"), ("grad", "a"), ("grad", "b")], series)
    assert kinds(Diagnosis([Certain()]), made) == [("new", 19, "info"), ("raised", 39, "warning")]


def test_facts_and_rules_of_users_need_no_harm():
    assert kinds(Diagnosis([Huge()]), views(FALLING))[0][2] == "warning"


def test_notes_have_no_cause():
    healthy, sick = Diagnosis([Wide()], causes=HOT), Diagnosis([Wide()], causes=HOT)
    kinds(healthy, views(FALLING)), kinds(sick, views(FLAT))
    assert healthy.causes == [] and healthy.findings[0].cause is None
    assert [cause.name for cause in sick.causes] == ["Hot"] and sick.findings[0].cause == "Hot"


@pytest.mark.parametrize("split", [10, 30, 59, 60, 100])
def test_a_resume_raises_as_a_run_without_one(split):
    made = views(FLAT)
    whole, first, second = (Diagnosis([Wide()], causes=HOT) for _ in range(3))
    expected = kinds(whole, made)
    begun = [event for view in made[:split] for event in first.add(view)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    resumed = [(e.kind, e.step, str(e.finding.severity)) for e in begun if e.finding] + kinds(second, made[split:])
    assert resumed == expected and second.findings == whole.findings


def test_the_journal_and_the_terminal_tell_when_a_note_became_a_warning(tmp_path):
    called = []
    actions = {"info": called.append, "warning": ["warn", called.append, {"focus": 3}]}
    reporter, outlet, _ = started(tmp_path, Wide(), actions=actions)
    consume(reporter, views(FLAT))
    events = [event for event in read_events(tmp_path) if event.finding]
    assert [(event.kind, str(event.finding.severity)) for event in events] == [("new", "info"), ("raised", "warning")]
    assert [str(finding.severity) for finding in standing(read_events(tmp_path))[0]] == ["warning"]
    assert [str(finding.severity) for finding in read_findings(tmp_path).findings] == ["warning"]
    (block,) = outlet.blocks
    assert block.startswith("WARNING: Wide, since step 5.") and "the loss has not fallen" in block
    assert [str(finding.severity) for finding in called] == ["info"] and outlet.focuses == [3]


def test_a_loss_whose_noise_hides_a_fall_by_a_tenth_is_not_said_to_stand():
    wild = np.random.default_rng(1).normal(0, 1.0, 120)
    still, falling = np.full(120, 6.0), np.linspace(7.0, 5.0, 120)
    assert "the loss has not fallen" in harm_of(evidence_of(still + 0.2 * wild))
    assert harm_of(evidence_of(still + 2 * wild)) == harm_of(evidence_of(falling + wild)) == ""
    # The medians of all losses have less noise than those of the last 50.
    assert "the loss has not fallen: it was 6.034 at step 0 and is " in harm_of(evidence_of(still + wild))


def test_a_note_is_not_told_in_the_terminal(tmp_path):
    reporter, outlet, _ = started(tmp_path, Wide())
    consume(reporter, views(FALLING))
    assert outlet.blocks == [] and outlet.lines[0].startswith("Healthy in 120 steps (1 note).")


def test_a_rule_states_one_of_three_kinds():
    with pytest.raises(RuleError, match="Odd.kind must be one of structure, numbers, pattern, got 'hunch'"):

        class Odd(HealthRule):
            kind: ClassVar = "hunch"
