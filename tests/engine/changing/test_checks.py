"""Checks of bound transforms need no participant and change no state."""

import pytest
import torch
from torch import nn

from lightning_hooks import Apply, RuleError, UnsupportedError, Watch
from lightning_hooks.engine.changing.checks import refuse_changed_sums, refuse_unsupported
from lightning_hooks.engine.changing.resolve import resolve_applies
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.transforms import Scale, SkipStep, ZeroNonFinite


def bound(*rules):
    return resolve_applies(nn.Sequential(nn.Linear(2, 2)), rules)


class Unknown(torch.optim.SGD):
    __module__ = "somewhere"


def test_a_transform_that_skips_needs_an_optimizer_that_leaves_parameters_without_a_gradient_alone():
    transforms = bound(Apply(SkipStep(), params="*"))
    parameters = [transforms[0].targets[0].value]
    refuse_unsupported(transforms, [torch.optim.Adam(parameters)], scaled=False)
    with pytest.raises(UnsupportedError, match=r"^apply\[0\].transform.*Unknown is not known to keep"):
        refuse_unsupported(transforms, [Unknown(parameters, lr=0.1)], scaled=False)
    refuse_unsupported(transforms, [], scaled=False)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_repair_in_backward_hides_the_overflow_from_a_scaler(scaled):
    transforms = bound(Apply(ZeroNonFinite(), modules="0"))
    if scaled:
        with pytest.raises(UnsupportedError, match="in backward would hide the overflow"):
            refuse_unsupported(transforms, [], scaled=True)
    else:
        refuse_unsupported(transforms, [], scaled=False)


@pytest.mark.parametrize(("when", "stats", "refused"), [("step", "micro_cosine", True), ("step", "norm", False)])
def test_a_changed_gradient_is_not_compared_with_those_of_micro_batches(when, stats, refused):
    model = nn.Sequential(nn.Linear(2, 2))
    plan = resolve(model, [Watch(params="*", tensors="grad", stats=stats)], EveryN())
    transforms = bound(Apply(Scale(0.5), params="*", when=when))
    refuse_changed_sums(plan, [])
    refuse_changed_sums(plan, bound(Apply(Scale(0.5), params="*", when="backward")))
    if refused:
        with pytest.raises(RuleError, match=f"watch: '{stats}' compares the gradient of the step"):
            refuse_changed_sums(plan, transforms)
    else:
        refuse_changed_sums(plan, transforms)
