import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import Context, Dropout, TopK, Transform, Zero


def test_zero_replaces_nan_and_infinity() -> None:
    value = torch.tensor([1.0, math.nan, math.inf, -1.0])
    (result,) = Zero()([value], Context())
    assert result.tolist() == [0.0] * 4 and not result.signbit().any()
    (owned,) = Zero()([value], Context(owned=True))
    assert owned is value and value.tolist() == [0.0] * 4


def test_sparse_keeps_its_indices() -> None:
    value = torch.eye(3).to_sparse()
    (result,) = Zero()([value], Context())
    assert result._nnz() == 3 and result.to_dense().abs().sum() == 0


@pytest.mark.parametrize("transform", [Zero(), Zero(index=[0, 1], dim=0)], ids=repr)
def test_activation_stays_in_the_graph(transform: Transform) -> None:
    value = torch.tensor([1.0, math.nan], requires_grad=True)
    (result,) = transform([value * 1.0], Context())
    assert result.tolist() == [0.0, 0.0] and result.requires_grad
    torch.autograd.backward(result.sum())
    assert value.grad is not None and value.grad.tolist() == [0.0, 0.0]


def test_zero_of_channels() -> None:
    value = torch.ones(2, 5, 3)
    value[0, 3, 1] = math.nan
    (result,) = Zero(index=[0, 3, -2])([value], Context())
    assert result[:, [0, 3]].eq(0).all() and result[:, [1, 2, 4]].eq(1).all()
    assert value[0, 3, 1].isnan() and value[0, 0, 0] == 1
    (owned,) = Zero(index=1)([value], Context(owned=True))
    assert owned is value and value[:, 1].eq(0).all() and value[:, 0].eq(1).all()


def test_gradient_passes_the_other_channels_only() -> None:
    value = torch.ones(2, 4, requires_grad=True)
    torch.autograd.backward(Zero(index=[1, 2])([value * 3], Context())[0].sum())
    assert value.grad is not None and value.grad.tolist() == [[3.0, 0.0, 0.0, 3.0]] * 2


def test_zero_of_rows_of_a_sparse_gradient() -> None:
    rows = torch.tensor([[0, 2, 2, 3]])
    value = torch.sparse_coo_tensor(rows, torch.ones(4, 2), (5, 2), check_invariants=True)
    (by_row,) = Zero(index=[2, 4], dim=0)([value], Context())
    assert by_row.to_dense().tolist() == [[1, 1], [0, 0], [0, 0], [1, 1], [0, 0]]
    (by_column,) = Zero(index=1, dim=1)([value], Context())
    assert by_column.to_dense().tolist() == [[1, 0], [0, 0], [2, 0], [1, 0], [0, 0]]
    (owned,) = Zero(index=2, dim=0)([value], Context(owned=True))
    assert owned is value and value.to_dense()[2].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("transform", "shape", "message"),
    [
        (
            Zero(index=[0, 4]),
            (2, 4),
            "Zero.index 4 is out of range for 'conv.out': its shape is (2, 4), so dimension 1 has the entries 0 to 3",
        ),
        (
            Zero(index=-3, dim=0),
            (2, 4),
            "Zero.index -3 is out of range for 'conv.out': its shape is (2, 4), so dimension 0 has the entries 0 to 1",
        ),
        (
            Zero(index=0),
            (2, 0),
            "Zero.index 0 is out of range for 'conv.out': its shape is (2, 0), and dimension 1 has no entries",
        ),
        (
            Zero(index=0),
            (3,),
            "Zero.index [0] selects entries of dimension 1 (the default), but 'conv.out' of shape (3,) has one dimension: "
            "give dim=0 for the first, or exclude it from the rule",
        ),
    ],
)
def test_zero_out_of_range(transform: Zero, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(TransformError) as error:
        transform([torch.ones(shape)], Context(names=["conv.out"]))
    assert str(error.value) == message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dropout_keeps_the_mean(dtype: torch.dtype) -> None:
    (result,) = Dropout(0.25)([torch.full((100_000,), 3.0, dtype=dtype)], Context(seed=2))
    assert result.unique().tolist() == [0.0, 4.0]
    assert (result == 0).double().mean().item() == pytest.approx(0.25, abs=5e-3)


def test_dropout_draws_from_the_context_only() -> None:
    state, context = torch.get_rng_state(), Context(seed=4)
    tensors = [torch.ones(50), torch.ones(60).half()]
    first, second = Dropout(0.5)(tensors, context), Dropout(0.5)(tensors, context)
    again = Dropout(0.5)(tensors, Context(seed=4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], second[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_is_rounded_once() -> None:
    # If the factor were rounded to bfloat16 first, the result would be 1.4296875.
    (result,) = Dropout(0.3)([torch.full((64,), 1.001, dtype=torch.float64).bfloat16()], Context())
    assert set(result.tolist()) == {0.0, torch.tensor(1 / 0.7).bfloat16().item()}


def test_no_dropout() -> None:
    value = torch.tensor([1.0, -2.0])
    assert torch.equal(Dropout(0.0)([value], Context())[0], value)


def test_largest() -> None:
    value = torch.tensor([[1.0, -5.0, 0.5], [2.0, -3.0, 4.0]])
    assert TopK(k=2)([value], Context())[0].tolist() == [[0, -5, 0], [0, 0, 4]]
    assert TopK(fraction=0.5)([value.T], Context())[0].tolist() == [[0, 0], [-5, -3], [0, 4]]
    assert TopK(k=10)([value], Context())[0].tolist() == value.tolist()


@pytest.mark.parametrize(
    ("fraction", "numel", "kept"), [(0.07, 100, 7), (0.3, 10, 3), (0.01, 10, 1), (1, 9, 9), (0.5, 1, 1), (0.5, 0, 0)]
)
def test_number_kept(fraction: float, numel: int, kept: int) -> None:
    (result,) = TopK(fraction=fraction)([torch.arange(1.0, numel + 1)], Context())
    assert int(result.count_nonzero()) == kept


def test_ties_keep_the_exact_number() -> None:
    for value in (torch.ones(40), -torch.ones(5, 8), torch.ones(40, dtype=torch.complex64)):
        assert int(TopK(k=7)([value], Context())[0].count_nonzero()) == 7


def test_largest_counts_what_is_not_stored() -> None:
    value = torch.zeros(10, 2)
    value[3], value[7] = torch.tensor([1.0, 5.0]), torch.tensor([-4.0, 2.0])
    (result,) = TopK(fraction=0.1)([value.to_sparse(1)], Context())
    assert result.to_dense()[[3, 7]].tolist() == [[0, 5], [-4, 0]]


def test_largest_not_a_number() -> None:
    (result,) = TopK(k=1)([torch.tensor([1.0, math.nan, 9.0])], Context())
    assert result.nan_to_num(nan=-7.0).tolist() == [0.0, -7.0, 0.0]


def dynamic(make_it: Callable[..., Transform], **options: Any) -> Transform:
    return make_it(**options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Zero, {"index": 1.5}, "Zero.index must be an integer or a list of them, got 1.5"),
        (Zero, {"index": []}, "Zero.index must be an integer or a list of them, got []"),
        (Zero, {"index": "0"}, "Zero.index must be an integer or a list of them, got '0'"),
        (Zero, {"index": [True]}, "Zero.index must be an integer or a list of them, got [True]"),
        (Zero, {"index": 0, "dim": None}, "Zero.dim must be an integer, got None"),
        (Dropout, {"p": 1.0}, "Dropout.p must be a number of at least 0 and below 1, got 1.0"),
        (Dropout, {"p": math.nan}, "Dropout.p must be a number of at least 0 and below 1, got nan"),
        (TopK, {}, "TopK needs exactly one of fraction and k, got neither"),
        (TopK, {"k": 1, "fraction": 0.5}, "TopK needs exactly one of fraction and k, got both"),
        (TopK, {"k": 0}, "TopK.k must be an integer of at least 1, got 0"),
        (TopK, {"fraction": 1.5}, "TopK.fraction must be a number above 0 and at most 1, got 1.5"),
        (TopK, {"fraction": "1e-2"}, "TopK.fraction must be a number above 0 and at most 1, got '1e-2'"),
    ],
)
def test_refused(kind: Callable[..., Transform], options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError) as error:
        dynamic(kind, **options)
    assert str(error.value) == message


def test_index_is_a_value() -> None:
    assert Zero(index=[0, 3]) == Zero(index=(0, 3)) and repr(Zero(index=[2])) == "Zero(index=(2,), dim=1)"
    assert hash(Zero(index=[0])) == hash(Zero(index=0))


def largest_of(value: Tensor) -> Tensor:
    return TopK(k=1)([value], Context())[0]


def test_largest_is_differentiable() -> None:
    value = torch.tensor([1.0, 3.0], requires_grad=True)
    torch.autograd.backward(largest_of(value * 2).sum())
    assert value.grad is not None and value.grad.tolist() == [0.0, 2.0]
