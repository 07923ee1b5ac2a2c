"""The rule on noise knows normal numbers by their largest element, and leaves factors and other changes of gradients alone."""

import pytest

from lightning_hooks.health.rules.noise import GradientsNoisy
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.rules.made import Made, diagnosed, found, run, structure_of

MODEL = structure_of({"a": "Linear", "head": "Linear"})
NAMES = "a.weight", "head.weight"
FACTS = StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, NAMES),)),))
NORMAL = 3.6  # about the largest of 2,048 normal numbers, in standard deviations


def peaked(size, peak):
    """A gradient of a size whose largest element is so many times as large."""
    return Made(std=size, low=-peak * size, high=size)


def stepped(final, steps=60, **options):
    """A run whose gradients are 1 with a peak of 9, and at every tenth step `final` right before the update."""
    tensors = {("param", name): Made() for name in NAMES} | {("grad", name): peaked(1.0, 9.0) for name in NAMES}
    tensors |= {("final_grad", name): lambda step: final(step) if step % 10 == 9 else None for name in NAMES}
    return run(MODEL, tensors, steps, facts=FACTS, **options)


def test_noise_is_told_at_the_third_measured_step_with_its_size():
    (finding,) = diagnosed(GradientsNoisy(), stepped(lambda step: peaked(5.0, NORMAL))).findings
    assert (finding.severity, finding.first_step) == ("warning", 9)
    assert finding.message == (
        "Right before the step gradients are 5 times as large as those of the backward pass, and their largest elements are "
        "those of normally distributed noise."
    )
    assert not found(GradientsNoisy(), stepped(lambda step: peaked(5.0, NORMAL), steps=29))


def test_noise_that_is_meant_is_a_note_while_the_loss_falls():
    views = stepped(lambda step: peaked(5.0, NORMAL), loss=lambda step: 3.0 * 0.97**step)
    assert [each.severity for each in diagnosed(GradientsNoisy(), views).findings] == ["info"]


@pytest.mark.parametrize(
    "final",
    [
        lambda step: peaked(5.0, 9.0),
        lambda step: peaked(1.9, NORMAL),
        lambda step: peaked(5.0, 6.0),
        lambda step: peaked(0.1, NORMAL),
        lambda step: peaked(5.0, NORMAL if step % 20 == 9 else 9.0),
    ],
    ids=["a factor", "little noise", "a preconditioner", "clipped", "at every second step"],
)
def test_other_changes_of_gradients_are_silent(final):
    assert not found(GradientsNoisy(), stepped(final))


def test_small_parameters_say_nothing_of_a_distribution():
    tensors = {("param", NAMES[0]): Made(count=8), ("grad", NAMES[0]): Made(count=8, low=-9.0)}
    tensors["final_grad", NAMES[0]] = Made(std=5.0, low=-18.0, count=8)
    assert not found(GradientsNoisy(), run(MODEL, tensors, 60, facts=FACTS))
