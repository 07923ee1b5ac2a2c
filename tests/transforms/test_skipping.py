import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms, instrument
from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import Context, SkipStep

GOOD, NAN, INF = torch.tensor([3.0, 4.0]), torch.tensor([math.nan, 1.0]), torch.tensor([1.0, -math.inf])


def reason(transform: SkipStep, *tensors: Tensor, context: Context | None = None) -> str | None:
    context = context or Context()
    context.skip_reason = None
    result = transform(list(tensors), context)
    assert all(new is old for new, old in zip(result, tensors, strict=True))
    return context.skip_reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_not_finite(dtype: torch.dtype) -> None:
    assert reason(SkipStep(), GOOD.to(dtype), torch.empty(0)) is None
    assert reason(SkipStep(), GOOD.to(dtype), NAN.to(dtype)) == "a gradient is not finite"
    assert reason(SkipStep(), INF.to(dtype), GOOD.to(dtype)) == "a gradient is not finite"


def test_large_finite_numbers_are_finite() -> None:
    assert reason(SkipStep(), torch.full((9,), 3e38), torch.full((9,), 6e4).half()) is None


def test_norm_above() -> None:
    assert reason(SkipStep(if_norm_above=7.1), GOOD, GOOD) is None
    assert reason(SkipStep(if_norm_above=7.0), GOOD, GOOD) == "the norm of the gradients is above 7"
    assert reason(SkipStep(if_norm_above=7.0), GOOD, NAN) == "a gradient is not finite"
    assert reason(SkipStep(if_nonfinite=False, if_norm_above=7.0), NAN) is None
    assert reason(SkipStep(if_nonfinite=False, if_norm_above=7.0), INF) == "the norm of the gradients is above 7"


def test_sparse() -> None:
    loose = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), [6.0, 8.0], (3,), check_invariants=True)
    assert reason(SkipStep(if_norm_above=13.9), loose) == "the norm of the gradients is above 13.9"
    assert reason(SkipStep(if_norm_above=14.1), loose) is None


def test_more_than_the_greatest_number_in_a_row_raises() -> None:
    transform, context = SkipStep(max_consecutive=2), Context(step=7)
    for value in (NAN, NAN, GOOD, NAN, NAN):
        reason(transform, value, context=context)
    message = "SkipStep would skip step 7, number 3 in a row and more than max_consecutive=2: a gradient is not finite"
    with pytest.raises(TransformError, match=re.escape(message)):
        transform([NAN], context)
    with pytest.raises(TransformError, match="number 1 in a row and more than max_consecutive=0"):
        SkipStep(max_consecutive=0)([NAN], Context())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_the_optimizer_step_is_skipped(kind: Any) -> None:
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))

    def state() -> list[Tensor]:
        kept = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
        return [value.detach().clone() for value in (*model.parameters(), *kept)]

    with instrument(model, [GradientTransforms([Apply(SkipStep(), params="*")])], optimizer=optimizer):
        for value in (1.0, math.nan, 1.0):
            before = state()
            optimizer.zero_grad()
            model(torch.full((1, 2), value)).sum().backward()
            optimizer.step()
            after = state()
            unchanged = len(before) == len(after) and all(map(torch.equal, before, after))
            assert unchanged is math.isnan(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"if_nonfinite": False}, "SkipStep needs if_nonfinite=True or if_norm_above, got neither"),
        ({"if_nonfinite": 1}, "SkipStep.if_nonfinite must be True or False, got 1"),
        ({"if_norm_above": 0}, "SkipStep.if_norm_above must be a finite number above 0, got 0"),
        ({"max_consecutive": -1}, "SkipStep.max_consecutive must be an integer of at least 0, got -1"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError) as error:
        SkipStep(**arguments)
    assert str(error.value) == message
