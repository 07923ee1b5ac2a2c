import math
import pickle

import pytest
import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import EMA, Context


def gradients(steps: int, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(6)
    return [[torch.randn(shape, generator=generator).to(dtype) for shape in ((3, 2), (4,), ())] for _ in range(steps)]


@pytest.mark.parametrize("owned", [False, True])
def test_the_recursion_of_the_authors(owned: bool) -> None:
    transform, context = EMA(decay=0.9, weight=3.0), Context(names=["a", "b", "c"], owned=owned)
    averages: list[Tensor] = []
    for grads in gradients(4):
        averages = averages or grads
        averages = [m * 0.9 + g * (1 - 0.9) for m, g in zip(averages, grads, strict=True)]
        expected = [g + m * 3.0 for g, m in zip(grads, averages, strict=True)]
        for new, wanted in zip(transform([g.clone() for g in grads], context), expected, strict=True):
            assert torch.allclose(new, wanted, rtol=1e-6, atol=1e-7)
    assert list(context.state) == ["a", "b", "c"]


def test_defaults_and_the_first_gradient() -> None:
    assert EMA() == EMA(decay=0.98, weight=2.0)
    assert EMA()([torch.tensor([1.0, -2.0])], Context())[0].tolist() == pytest.approx([3.0, -6.0])


def test_half_is_averaged_in_float32() -> None:
    transform, context = EMA(decay=0.999), Context(names=["w"])
    for _ in range(200):
        transform([torch.tensor([1.0]).bfloat16()], context)
    for _ in range(100):
        transform([torch.tensor([2.0]).bfloat16()], context)
    # In bfloat16, rounding would keep the average constant.
    assert context.state["w"].dtype is torch.float32 and context.state["w"].item() == pytest.approx(2 - 0.999**100, rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_overflow_does_not_stay(bad: float) -> None:
    transform, context = EMA(decay=0.5, weight=1.0), Context(names=["w"])
    results = [transform([torch.tensor(pair)], context)[0] for pair in ([bad, 1.0], [4.0, 1.0], [bad, bad], [8.0, 1.0])]
    assert [value.isfinite().tolist() for value in results] == [[False, True], [True, True], [False, False], [True, True]]
    # 4 starts the average of the first element, the third step changes neither average, and 8 enters the first average.
    assert results[1].tolist() == [8.0, 2.0] and results[3].tolist() == [14.0, 2.0]
    assert context.state["w"].tolist() == [6.0, 1.0]


def test_a_tensor_that_joins_later_starts_with_its_own_first_gradient() -> None:
    transform, context = EMA(decay=0.5, weight=1.0), Context(names=["a"])
    transform([torch.tensor([1.0])], context)
    context.names = ["b", "a"]
    assert [value.item() for value in transform([torch.tensor([4.0]), torch.tensor([3.0])], context)] == [8.0, 5.0]


def test_a_pickled_state_is_a_snapshot_and_goes_on_bit_equal() -> None:
    steps, transform, context = gradients(6), EMA(), Context(names=["a", "b", "c"])
    for grads in steps[:3]:
        transform(grads, context)
    saved, held = pickle.dumps(context.state), dict(context.state)
    expected = [transform(grads, context) for grads in steps[3:]]
    # The tensors of the state are replaced, not overwritten.
    assert all(torch.equal(held[name], value) for name, value in pickle.loads(saved).items())
    resumed = Context(names=["a", "b", "c"], state=pickle.loads(saved))
    for grads, wanted in zip(steps[3:], expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(transform(grads, resumed), wanted, strict=True))


def test_results_do_not_share_memory_with_the_state() -> None:
    transform, context, grad = EMA(weight=0.0), Context(names=["w"], owned=True), torch.ones(2)
    (result,) = transform([grad], context)
    result.zero_()
    assert result is grad and context.state["w"].tolist() == [1.0, 1.0]


def test_refusals() -> None:
    transform, context = EMA(), Context(names=["head"])
    transform([torch.ones(3, 2)], context)
    with pytest.raises(TransformError) as error:
        transform([torch.ones(1, 2)], context)
    assert str(error.value) == (
        "EMA keeps an average of shape (3, 2) for 'head', and its gradient now has shape (1, 2): use it in a rule on params"
    )
    with pytest.raises(TransformError, match="EMA cannot take the sparse gradient of 'head': its stored rows differ from step"):
        transform([torch.eye(2).to_sparse()], context)
    with pytest.raises(RuleError, match=r"EMA.decay must be a number of at least 0 and below 1, got 1.0"):
        EMA(decay=1.0)
    with pytest.raises(RuleError, match=r"EMA.weight must be a finite number, got inf"):
        EMA(weight=math.inf)
