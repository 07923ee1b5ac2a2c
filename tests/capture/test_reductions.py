from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_hooks.capture import REDUCTIONS, reduction
from lightning_hooks.errors import RuleError

IMAGES = torch.tensor([[[[3.0, -4.0]], [[0.0, 0.0]]], [[[1.0, 1.0]], [[1.0, 5.0]]]])  # [N=2, C=2, H=1, W=2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean", [-0.25, 2.0]),
        ("sum", [-1.0, 8.0]),
        ("min", [-4.0, 1.0]),
        ("max", [3.0, 5.0]),
        ("abs_max", [4.0, 5.0]),
        ("norm", [5.0, math.sqrt(28.0)]),
        ("rms", [2.5, math.sqrt(7.0)]),
        ("std", [math.sqrt(6.25 - 0.0625), math.sqrt(3.0)]),
        ("channel_mean", [[-0.5, 0.0], [1.0, 3.0]]),
        ("token_mean", [[1.5, -2.0], [1.0, 3.0]]),
    ],
)
def test_numbers(name: str, expected: list[float]) -> None:
    torch.testing.assert_close(reduction(name)(IMAGES), torch.tensor(expected))


def test_none_is_the_tensor_itself() -> None:
    assert reduction(None)(IMAGES) is IMAGES


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_every_dtype_gives_floating_numbers(name: str, dtype: torch.dtype) -> None:
    result = reduction(name)(IMAGES.to(dtype))
    if dtype == torch.complex64 and name in ("mean", "sum", "channel_mean", "token_mean"):
        assert result.dtype == torch.complex64
    else:
        assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_half_precision_does_not_overflow() -> None:
    assert reduction("norm")(torch.full((1, 4), 60000.0, dtype=torch.float16)).tolist() == [120000.0]


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(REDUCTIONS), shape=st.lists(st.integers(0, 3), max_size=4))
def test_any_shape_gives_a_row_for_each_sample_and_never_raises(name: str, shape: list[int]) -> None:
    result = reduction(name)(torch.ones(shape))
    if name in ("channel_mean", "token_mean"):
        kept = shape if len(shape) < 3 else [shape[0], shape[1] if name == "channel_mean" else shape[-1]]
        assert list(result.shape) == kept
    else:
        assert list(result.shape) == (shape[:1] or [1])
        expected = {"std": 0.0, "sum": float(math.prod(shape[1:])), "norm": math.sqrt(math.prod(shape[1:]))}.get(name, 1.0)
        if math.prod(shape[1:]) == 0 and name not in ("sum", "norm"):
            expected = math.nan
        torch.testing.assert_close(result, torch.full_like(result, expected), equal_nan=True)


@pytest.mark.parametrize("name", ["mean", "max", "norm", "abs_max"])
def test_a_hidden_nan_shows(name: str) -> None:
    tensor: Tensor = torch.tensor([[1.0, math.nan], [1.0, 1.0]])
    assert [math.isnan(value) for value in reduction(name)(tensor).tolist()] == [True, False]


def test_an_unknown_name_offers_the_nearest() -> None:
    message = "no reduction 'menu' (did you mean 'mean' or "
    with pytest.raises(RuleError, match=re.escape(message)) as caught:
        reduction("menu")
    assert str(caught.value).endswith("; there are None, " + ", ".join(REDUCTIONS))
