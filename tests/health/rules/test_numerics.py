"""Rules on numerics: what is not finite is named at its origin, and what a loss scaler handles is no finding."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from lightning_hooks.health.rules.nonfinite import NonFinite
from lightning_hooks.health.rules.numerics import LostUpdates, Underflow
from lightning_hooks.plan.rows import WHOLE
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.rules.made import Made, diagnosed, falling, found, of_rms, reason, run, structure_of, warned

MODEL = structure_of({"a": "Linear", "b": "Linear", "c": "Linear"})
WEIGHTS = ("a.weight", "b.weight", "c.weight")


@dataclass(frozen=True)
class Broken(Made):
    """A tensor with one element that is not finite: NaN, or infinity if `top` is."""

    top: float = float("nan")

    def moments(self):
        moments = super().moments()
        moments[[1, 2, 3, 5]], moments[7] = np.nan, 1
        moments[5] = self.top
        return moments


NAN, INF = Broken(), Broken(top=float("inf"))


def steps_of(changes=None, *, begin=0, steps=30, facts=None, loss=None):
    """A run of finite rows, some of which are replaced from a step on."""
    tensors = {("output", each.name): of_rms(1.0) for each in MODEL.modules}
    tensors |= {(tensor, name): of_rms(1e-3) for tensor in ("param", "grad", "update") for name in WEIGHTS}
    tensors["loss", "loss"] = of_rms(1.0)
    for key, made in (changes or {}).items():
        tensors[key] = lambda step, key=key, made=made, usual=tensors[key]: made if step >= begin else usual
    return run(MODEL, tensors, steps=steps, facts=facts or StepFacts(), loss=loss)


def rows_of(views, **options):
    findings = diagnosed(NonFinite(**options), views).findings
    return {(symptom.tensor, row) for each in findings for row in each.rows for symptom in each.evidence if symptom.row == row}


def test_a_loss_that_is_not_finite_is_critical_at_its_step():
    (finding,) = diagnosed(NonFinite(), steps_of({("loss", "loss"): NAN}, begin=17)).findings
    assert finding.severity == "critical" and finding.first_step == 17
    assert finding.message == "The loss is not finite, although all gradients are."


def test_beside_a_gradient_that_is_not_finite_the_loss_has_no_exception():
    broken = {("loss", "loss"): NAN, ("grad", WEIGHTS[0]): NAN}
    (finding,) = diagnosed(NonFinite(), steps_of(broken, begin=17)).findings
    assert finding.message == "The loss is not finite."


def test_the_weight_and_the_first_output_are_named_where_the_weight_breaks():
    everything = {("param", "b.weight"): NAN, ("output", "b"): NAN, ("output", "c"): NAN, ("loss", "loss"): NAN}
    assert rows_of(steps_of(everything, begin=9)) == {("param", "b.weight"), ("output", "b"), ("loss", "")}


def test_numbers_that_stay_bad_are_one_finding_when_their_begin_has_left_the_window():
    changes = {("loss", "loss"): NAN, ("grad", "c.weight"): NAN, ("update", "c.weight"): NAN}
    views = steps_of(changes, begin=17, steps=700)
    later = steps_of({("param", name): NAN for name in WEIGHTS} | {("output", "a"): NAN} | changes, begin=18, steps=700)
    (finding,) = diagnosed(NonFinite(), [*views[:18], *later[18:]]).findings
    assert (finding.rows, finding.tensors, finding.first_step) == (("", "c.weight"), ("grad", "loss"), 17)
    assert finding.is_over is None and finding.last_step == 699


def between(changes, *, at, steps=40, every=5, facts=None):
    """A run of which rows are measured at each fifth step, and the loss, the whole gradient and the batch at all.

    Args:
        changes: {tensor: a row of the whole step that is broken, or a function of the step}.
        at: the step from which on they are.
        steps: how many.
        every: the interval of the rows.
        facts: of all steps.
    """
    usual = {"loss": of_rms(1.0), "gradient": of_rms(1e-3), "batch": of_rms(1.0)}
    whole = {(tensor, tensor): changes.get(tensor, made) for tensor, made in usual.items()}
    whole = {
        (tensor, tensor): lambda step, tensor=tensor, made=made: (
            usual[tensor] if step < at else made(step) if callable(made) else made
        )
        for (tensor, _), made in whole.items()
    }
    rows = {("output", each.name): of_rms(1.0) for each in MODEL.modules}
    rows |= {(tensor, name): of_rms(1e-3) for tensor in ("param", "grad", "update") for name in WEIGHTS}
    rows = {key: lambda step, made=made: made if (step + 1) % every == 0 else None for key, made in rows.items()}
    views = run(MODEL, {**rows, **whole}, steps=steps, facts=facts or StepFacts(), loss=None)
    return [replace(view, is_between=(view.step + 1) % every != 0) for view in views]


@pytest.mark.parametrize("at", [21, 24])
def test_a_loss_is_looked_at_at_every_step_whatever_the_interval_of_rows(at):
    (finding,) = diagnosed(NonFinite(), between({"loss": NAN}, at=at)).findings
    assert finding.first_step == at and finding.message == "The loss is not finite, although all gradients are."


def test_a_batch_that_is_not_finite_is_named_beside_the_loss_that_it_breaks():
    views = between({"loss": NAN, "gradient": NAN, "batch": NAN}, at=21)
    assert ("input", "") in rows_of(views)
    (finding,) = diagnosed(NonFinite(), views).findings
    assert {each.text for each in finding.evidence} >= {"1 elements of the batch are not finite"}
    assert found(NonFinite(), between({"batch": NAN}, at=21)) == {}


def test_a_batch_that_always_holds_nan_as_a_mask_is_no_origin():
    views = between({"batch": NAN, "loss": lambda step: NAN if step >= 21 else of_rms(1.0)}, at=0)
    assert rows_of(views) == {("loss", "")}


def test_a_gradient_between_rows_is_the_beginning_of_what_it_breaks():
    changes = {"gradient": NAN, "loss": lambda step: NAN if step > 21 else of_rms(1.0)}
    assert found(NonFinite(), between(changes, at=21)) == {"": 21}
    assert found(NonFinite(), between({"gradient": NAN}, at=21)) == {}
    assert found(NonFinite(), between(changes, at=21, facts=scaled(128.0))) == {"": 22}


def test_rules_on_the_whole_step_look_between_the_steps_of_rows():
    assert NonFinite().looks_between and not Underflow().looks_between
    for tensor in WHOLE:
        assert type("Reads", (NonFinite,), {"needs": ((tensor, "mean"),)})().looks_between


def test_rows_that_break_later_are_no_origin():
    views = steps_of({("param", "b.weight"): NAN}, begin=9)
    later = steps_of({("param", name): NAN for name in WEIGHTS}, begin=9)
    assert found(NonFinite(), [*views[:10], *later[10:]]) == {"b.weight": 9}


def test_a_gradient_that_the_optimizer_uses_is_named_from_the_last_module_on():
    bad = {(tensor, name): NAN for tensor in ("grad", "update") for name in ("a.weight", "b.weight")}
    views = steps_of(bad, begin=5, steps=6)
    assert found(NonFinite(), views) == {"a.weight": 5, "b.weight": 5}


def test_a_batch_that_is_not_finite_is_told_by_the_first_output_of_finite_weights():
    assert ("input", "a") in rows_of(steps_of({("output", "a"): NAN, ("loss", "loss"): NAN}, begin=5))
    broken = {("output", "a"): NAN, ("loss", "loss"): NAN, ("param", "a.weight"): NAN}
    assert ("input", "a") not in rows_of(steps_of(broken, begin=5))


def test_what_computes_a_weight_from_another_one_is_not_the_first_module():
    tensors = {("output", "fc.parametrizations.weight.0"): of_rms(1.0), ("output", "fc"): NAN, ("loss", "loss"): NAN}
    model = structure_of({"fc.parametrizations.weight.0": "Other", "fc": "Linear"})
    assert ("input", "fc") in rows_of(run(model, {**tensors, ("param", "fc.bias"): of_rms(1.0)}, 5, loss=None))


@pytest.mark.parametrize(
    "changes",
    [
        {("output", "b"): INF},
        {("output", "b"): NAN},
        {("grad", "b.weight"): NAN},
        {("grad", "b.weight"): INF, ("update", "b.weight"): Made(std=0.0, zeros=1.0)},
    ],
    ids=["a mask", "an output that nothing uses", "a gradient that is repaired", "a step that is skipped"],
)
def test_what_reaches_neither_loss_nor_weights_is_no_finding(changes):
    assert found(NonFinite(), steps_of(changes, begin=5)) == {}


def scaled(scale):
    return StepFacts(precision="16-mixed", loss_scale=scale)


def test_a_scaler_has_four_steps_to_find_a_scale():
    bad = {("grad", "b.weight"): INF}
    assert found(NonFinite(), steps_of(bad, begin=5, steps=8, facts=scaled(128.0))) == {}
    assert found(NonFinite(), steps_of(bad, begin=5, steps=9, facts=scaled(128.0))) == {"b.weight": 8}


def test_an_overflow_that_the_scale_explains_is_no_finding_until_the_scale_is_one():
    near = {("grad", "b.weight"): INF, ("grad", "a.weight"): of_rms(1.0)}
    assert found(NonFinite(), steps_of(near, facts=scaled(4096.0))) == {}
    assert found(NonFinite(), steps_of(near, facts=scaled(1.0))) == {"b.weight": 3}


def halved(dtype="float16"):
    return replace(MODEL, parameters=tuple(replace(each, dtype=dtype) for each in MODEL.parameters))


def gradients(sizes, structure, facts=None):
    tensors = {("grad", name): of_rms(size, low=-size, high=size) for name, size in zip(WEIGHTS, sizes, strict=True)}
    return run(structure, tensors, steps=30, facts=facts)


def test_a_gradient_below_the_range_of_float16_is_named():
    assert found(Underflow(), gradients([1e-5, 1e-3, 0.0], halved())) == {"a.weight": 0, "c.weight": 0}
    assert found(Underflow(), gradients([1e-6, 1e-3, 1e-3], MODEL, scaled(16.0))) == {"a.weight": 0}


def test_a_gradient_in_range_by_itself_or_by_the_scale_is_no_finding():
    assert found(Underflow(), gradients([6.2e-5, 1e-3, 1e-3], halved())) == {}
    assert found(Underflow(), gradients([1e-6, 1e-3, 1e-3], MODEL, scaled(65536.0))) == {}
    assert found(Underflow(), gradients([0.0, 1e-3, 1e-3], halved())) == {}
    assert reason(Underflow(), gradients([1e-9] * 3, halved("bfloat16"))) == "no parameter is computed in float16"


def updates(lost, zeros=0.0, loss=lambda step: 3.0, lr=0.1, **options):
    tensors = {("grad", "a.weight"): Made(zeros=zeros), ("update", "a.weight"): Made(zeros=lost)}
    facts = StepFacts((OptimizerFacts("SGD", (GroupFacts(lr, 0.0, ("a.weight",)),)),))
    return run(MODEL, tensors, loss=loss, facts=facts, **options)


def test_updates_that_are_lost_while_the_loss_stands_are_told_since_they_are_lost():
    (finding,) = diagnosed(LostUpdates(), updates(0.8)).findings
    assert finding.rows == ("a.weight",) and finding.first_step == 0
    assert finding.message.startswith("a.weight: the step changes no bit of 80 % of the elements that have a gradient")


@pytest.mark.parametrize(
    "options",
    [
        {"lost": 0.49},
        {"lost": 0.8, "loss": falling},
        {"lost": 0.8, "zeros": 0.75},
        {"lost": 0.8, "lr": 0.0},
        {"lost": 0.8, "loss": lambda step: 3.0 if step < 5 else 1.0},
    ],
    ids=["below", "the loss falls", "no gradient either", "rate 0", "has learned"],
)
def test_usual_updates_are_not_lost(options):
    assert warned(LostUpdates(), updates(**options)) == {}


def test_a_rule_says_why_it_cannot_run():
    assert reason(LostUpdates(), updates(0.8, loss=None)) == "no row has `loss`"
    views = run(MODEL, {("output", "a"): of_rms(1.0)}, loss=None)
    assert reason(NonFinite(), views) == "no row has `loss`, `param` or `grad`"
