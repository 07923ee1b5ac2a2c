import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_hooks.errors import RuleError
from lightning_hooks.transforms import ClipByGlobalNorm, ClipByNorm, ClipByValue, Context, Transform

# PyYAML reads an exponent without a decimal point as a string.
STRING: Any = "1e-3"

seeds = st.integers(0, 2**31)
shapes = st.lists(st.lists(st.integers(0, 17), max_size=2).map(tuple), min_size=1, max_size=7)
limits = st.floats(1e-3, 1e3)
norm_types = st.sampled_from([0.5, 1.0, 2.0, 3.0, math.inf])


def make(shapes: list[tuple[int, ...]], seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * 3).to(dtype) for shape in shapes]


def norm_of(*tensors: Tensor) -> float:
    return float(torch.cat([value.double().flatten() for value in tensors]).norm())


def gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def as_parameters(gradients: list[Tensor]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros_like(value)) for value in gradients]
    for parameter, value in zip(parameters, gradients, strict=True):
        parameter.grad = value.clone()
    return parameters


@settings(max_examples=150, deadline=None)
@given(shapes=shapes, seed=seeds, limit=limits, norm_type=norm_types, owned=st.booleans())
def test_global_norm_is_bit_equal_to_torch(
    shapes: list[tuple[int, ...]], seed: int, limit: float, norm_type: float, owned: bool
) -> None:
    # Torch raises for the maximum of an empty tensor.
    assume(norm_type != math.inf or all(math.prod(shape) for shape in shapes))
    gradients = make(shapes, seed)
    parameters = as_parameters(gradients)
    nn.utils.clip_grad_norm_(parameters, limit, norm_type)
    result = ClipByGlobalNorm(limit, norm_type=norm_type)(gradients, Context(owned=owned))
    for new, parameter in zip(result, parameters, strict=True):
        assert torch.equal(new, gradient(parameter))


@settings(max_examples=50, deadline=None)
@given(shapes=shapes, seed=seeds, limit=limits)
def test_norm_of_each_is_bit_equal_to_torch(shapes: list[tuple[int, ...]], seed: int, limit: float) -> None:
    gradients = make(shapes, seed)
    parameters = as_parameters(gradients)
    for parameter in parameters:
        nn.utils.clip_grad_norm_([parameter], limit)
    for new, parameter in zip(ClipByNorm(limit)(gradients, Context()), parameters, strict=True):
        assert torch.equal(new, gradient(parameter))


@settings(max_examples=50, deadline=None)
@given(shapes=shapes, seed=seeds, limit=limits)
def test_value_is_bit_equal_to_torch(shapes: list[tuple[int, ...]], seed: int, limit: float) -> None:
    gradients = make(shapes, seed)
    parameters = as_parameters(gradients)
    nn.utils.clip_grad_value_(parameters, limit)
    for new, parameter in zip(ClipByValue(-limit, max=limit)(gradients, Context()), parameters, strict=True):
        assert torch.equal(new, gradient(parameter))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [ClipByNorm, ClipByGlobalNorm])
@settings(max_examples=50, deadline=None)
@given(shapes=shapes, seed=seeds, limit=limits)
def test_norm_never_grows_and_a_smaller_one_stays(
    kind: type[ClipByNorm], dtype: torch.dtype, shapes: list[tuple[int, ...]], seed: int, limit: float
) -> None:
    tensors = make(shapes, seed, dtype)
    result = kind(limit)(tensors, Context())
    groups = [(tensors, result)]
    if kind is ClipByNorm:
        groups = [([before], [after]) for before, after in zip(tensors, result, strict=True)]
    # Rounding the clipped values may increase the norm; float16 rounds to 11 bits, bfloat16 to 8.
    slack = 1 + 2 * torch.finfo(dtype).eps + 1e-6
    for before, after in groups:
        assert norm_of(*after) <= norm_of(*before)
        assert norm_of(*after) <= limit * slack
        # The formula, as in torch, adds 1e-6 to the norm.
        if norm_of(*before) < (limit - 1e-6) * (1 - 1e-5):
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_numbers() -> None:
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor([0.0, 12.0])]
    each = ClipByNorm(6.5)(tensors, Context())
    assert each[0].tolist() == [3.0, 4.0] and each[1].tolist() == pytest.approx([0.0, 6.5], rel=1e-6)
    together = ClipByGlobalNorm(6.5)(tensors, Context())
    assert together[0].tolist() == pytest.approx([1.5, 2.0]) and together[1].tolist() == pytest.approx([0.0, 6.0])
    greatest = ClipByGlobalNorm(6.0, norm_type=math.inf)(tensors, Context())
    assert greatest[0].tolist() == pytest.approx([1.5, 2.0])
    (clipped,) = ClipByValue(max=1.0)([torch.tensor([-5.0, 2.0, math.nan])], Context())
    assert clipped[:2].tolist() == [-5.0, 1.0] and clipped[2].isnan()


def test_sparse_counts_as_its_dense_form() -> None:
    loose = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2]]), [1.0, 2.0, 4.0], (4,), check_invariants=True)
    for transform in (ClipByNorm(1.0), ClipByGlobalNorm(1.0)):
        (result,) = transform([loose], Context())
        assert result.to_dense().tolist() == pytest.approx([0.6, 0.0, 0.8, 0.0])
    (result,) = ClipByValue(max=2.0)([loose], Context())
    assert result.to_dense().tolist() == [2.0, 0.0, 2.0, 0.0]


def test_half_norm_and_coefficient_are_float32() -> None:
    # In float16 the norm, 256 * 300, would overflow, and the coefficient, about 1e-7, would be rounded.
    value = torch.full((65536,), 300.0, dtype=torch.float16)
    for transform in (ClipByNorm(1e-2), ClipByGlobalNorm(1e-2)):
        (result,) = transform([value], Context())
        assert norm_of(result) == pytest.approx(1e-2, rel=1e-2)


def test_float64_stays_float64() -> None:
    # float32 holds neither the square of 1e30 nor ten digits.
    value = torch.tensor([3e30, 4e30], dtype=torch.float64)
    for transform in (ClipByNorm(1.0), ClipByGlobalNorm(1.0)):
        (result,) = transform([value], Context())
        assert result.tolist() == pytest.approx([0.6, 0.8], rel=1e-14)


def test_mixed_dtypes_share_one_coefficient() -> None:
    tensors = [torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.float64), torch.tensor([12.0]).bfloat16()]
    result = ClipByGlobalNorm(1.3)(tensors, Context())
    assert [value.item() for value in result] == pytest.approx([0.3, 0.4, 1.2], rel=4e-3)
    assert [value.dtype for value in result] == [value.dtype for value in tensors]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_not_a_number_spreads_as_in_torch(bad: float) -> None:
    gradients = [torch.tensor([bad, 1.0]), torch.tensor([2.0])]
    parameters = as_parameters(gradients)
    nn.utils.clip_grad_norm_(parameters, 1.0)
    for new, parameter in zip(ClipByGlobalNorm(1.0)(gradients, Context()), parameters, strict=True):
        assert torch.equal(new.nan_to_num(-7), gradient(parameter).nan_to_num(-7))
    assert ClipByNorm(1.0)(gradients, Context())[0][0].isnan()
    assert ClipByNorm(3.0)(gradients, Context())[1].tolist() == [2.0]


@pytest.mark.parametrize("norm_type", [2.0, math.inf])
@pytest.mark.parametrize("kind", [ClipByNorm, ClipByGlobalNorm])
def test_tensors_without_elements(kind: type[ClipByNorm], norm_type: float) -> None:
    result = kind(1.0, norm_type=norm_type)([torch.empty(0, 3), torch.tensor([2.0])], Context())
    assert result[0].shape == (0, 3) and result[1].tolist() == pytest.approx([1.0], rel=1e-6)
    assert kind(1.0, norm_type=norm_type)([torch.empty(0)], Context())[0].shape == (0,)


def test_complex_norm_counts_both_parts() -> None:
    (result,) = ClipByNorm(1.0)([torch.tensor([3 + 4j])], Context())
    assert result.item() == pytest.approx(0.6 + 0.8j, rel=1e-6)


def test_bound_beyond_the_dtype() -> None:
    (result,) = ClipByValue(-1e6, max=1e6)([torch.tensor([math.inf, 2.0]).half()], Context())
    assert result.tolist() == [65504.0, 2.0]


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: ClipByNorm(-1.0), "ClipByNorm.max_norm must be a finite number above 0, got -1.0"),
        (lambda: ClipByNorm(math.inf), "ClipByNorm.max_norm must be a finite number above 0, got inf"),
        (lambda: ClipByGlobalNorm(STRING), "ClipByGlobalNorm.max_norm must be a finite number above 0, got '1e-3'"),
        (lambda: ClipByGlobalNorm(0), "ClipByGlobalNorm.max_norm must be a finite number above 0, got 0"),
        (lambda: ClipByNorm(1, norm_type=0), "ClipByNorm.norm_type must be a number above 0 or infinity, got 0"),
        (lambda: ClipByNorm(1, norm_type=math.nan), "ClipByNorm.norm_type must be a number above 0 or infinity, got nan"),
        (lambda: ClipByValue(), "ClipByValue needs min or max, got neither"),
        (lambda: ClipByValue(min=math.nan), "ClipByValue.min must be a finite number, got nan"),
        (lambda: ClipByValue(max=STRING), "ClipByValue.max must be a finite number, got '1e-3'"),
        (lambda: ClipByValue(2.0, max=1.0), "ClipByValue.min must not be above max, got min=2.0 and max=1.0"),
    ],
)
def test_refused(make_it: Callable[[], Transform], message: str) -> None:
    with pytest.raises(RuleError) as error:
        make_it()
    assert str(error.value) == message


def test_one_interval_is_allowed_to_be_a_point() -> None:
    transform: Transform = ClipByValue(1.0, max=1.0)
    assert transform([torch.tensor([-3.0, 5.0])], Context())[0].tolist() == [1.0, 1.0]
