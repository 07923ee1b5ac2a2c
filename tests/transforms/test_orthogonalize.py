import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import Context, Orthogonalize


def made(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("shape", [(8, 8), (4, 30), (30, 4), (1, 5), (5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
def test_singular_values_are_near_one_and_the_directions_stay(shape: tuple[int, int], dtype: torch.dtype) -> None:
    value = made(*shape, dtype=dtype) * 100
    (result,) = Orthogonalize()([value], Context())
    wide = torch.complex128 if dtype.is_complex else torch.float64
    u, s, vh = torch.linalg.svd(value.to(wide), full_matrices=False)
    inner = u.mH @ result.to(wide) @ vh.mH
    # Check the singular values above a hundredth of the norm: smaller values need more steps.
    large = s / s.norm() > 0.01
    values = inner.diagonal().real[large]
    assert ((values > 0.65) & (values < 1.25)).all() and large.any()
    assert (inner - inner.diagonal().diag()).abs().max() < (3e-2 if dtype is torch.bfloat16 else 1e-4)


def test_the_polynomial_acts_on_the_singular_values() -> None:
    a, b, c = 3.4445, -4.7750, 2.0315
    s = torch.tensor([4.0, 3.0], dtype=torch.float64)
    expected = s / (s.norm() + 1e-7)
    for _ in range(3):
        expected = a * expected + b * expected**3 + c * expected**5
    (result,) = Orthogonalize(steps=3)([s.diag()], Context())
    assert torch.allclose(result, expected.diag(), rtol=1e-12, atol=1e-12)


def test_other_coefficients_and_steps() -> None:
    # The cubic Newton-Schulz iteration brings all singular values to 1.
    (result,) = Orthogonalize(steps=60, coefficients=[1.5, -0.5, 0.0])([made(5, 9, dtype=torch.float64)], Context())
    assert torch.allclose(result @ result.T, torch.eye(5, dtype=torch.float64), atol=1e-10)


def test_batched_as_one_by_one() -> None:
    shapes = [(4, 6), (6, 4), (3, 3), (4, 6), (5,), (2, 2, 3), (4, 6)]
    tensors = [made(*shape, seed=i) for i, shape in enumerate(shapes)]
    together = Orthogonalize()(tensors, Context())
    for value, result in zip(tensors, together, strict=True):
        (alone,) = Orthogonalize()([value], Context())
        assert torch.allclose(result, alone, rtol=1e-5, atol=1e-6) and result.stride() == value.stride()


def test_convolutions_by_option() -> None:
    value = made(3, 2, 2, 2)
    (flat,) = Orthogonalize()([value.reshape(3, 8)], Context())
    assert torch.allclose(Orthogonalize()([value], Context())[0].reshape(3, 8), flat, atol=1e-6)
    assert torch.equal(Orthogonalize(flatten=False)([value], Context())[0], value)


@pytest.mark.parametrize("shape", [(), (4,), (0, 4), (3, 0), (2, 0, 3)])
@pytest.mark.parametrize("owned", [False, True])
def test_tensors_that_are_no_matrix_stay_unchanged(shape: tuple[int, ...], owned: bool) -> None:
    value = torch.full(shape, 3.0)
    (result,) = Orthogonalize()([value], Context(owned=owned))
    assert torch.equal(result, torch.full(shape, 3.0)) and (result is value) == owned


def test_zero_stays_and_nan_spreads_through_its_own_matrix_only() -> None:
    bad, good = made(3, 3), made(3, 3, seed=1)
    bad[0, 0] = math.nan
    result = Orthogonalize()([torch.zeros(3, 3), bad, good], Context())
    assert result[0].eq(0).all() and result[1].isnan().all() and result[2].isfinite().all()


def test_sparse_is_refused() -> None:
    with pytest.raises(
        TransformError, match="Orthogonalize cannot take the sparse gradient of 'emb.weight': its orthogonal form"
    ):
        Orthogonalize()([torch.eye(2).to_sparse()], Context(names=["emb.weight"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "Orthogonalize.steps must be an integer of at least 1, got 0"),
        ({"eps": -1e-7}, "Orthogonalize.eps must be a finite number of at least 0, got -1e-07"),
        ({"coefficients": [1.0, 2.0]}, "Orthogonalize.coefficients must be three finite numbers, got [1.0, 2.0]"),
        ({"coefficients": "abc"}, "Orthogonalize.coefficients must be three finite numbers, got 'abc'"),
        (
            {"coefficients": [1.0, math.nan, 2.0]},
            "Orthogonalize.coefficients must be three finite numbers, got [1.0, nan, 2.0]",
        ),
        ({"flatten": "false"}, "Orthogonalize.flatten must be True or False, got 'false'"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError) as error:
        Orthogonalize(**options)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 10**30}, "Orthogonalize.steps must be an integer of at least 1 and below 2**63, got 1" + "0" * 30),
        ({"steps": 1001}, "Orthogonalize.steps must be at most 1000, got 1001"),
        (
            {"coefficients": (3, 0, 4)},
            "Orthogonalize.coefficients (3.0, 0.0, 4.0) make singular values grow without end: after at most steps=5 "
            "iterations one is above 1e+06",
        ),
        (
            {"coefficients": (1e300, 1e300, 1e300), "steps": 1},
            "Orthogonalize.coefficients (1e+300, 1e+300, 1e+300) make singular values grow without end: after at most steps=1 "
            "iterations one is above 1e+06",
        ),
    ],
)
def test_options_that_never_end_or_diverge_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError) as caught:
        Orthogonalize(**options)
    assert str(caught.value) == message


def test_many_steps_of_the_default_coefficients_are_accepted() -> None:
    assert Orthogonalize(steps=1000).steps == 1000
