import math

import pytest
import torch

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import Context, ZeroNonFinite

BAD = [1.5, math.nan, math.inf, -math.inf, -0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("owned", [False, True])
def test_zero_by_default(dtype: torch.dtype, owned: bool) -> None:
    (result,) = ZeroNonFinite()([torch.tensor(BAD, dtype=dtype)], Context(owned=owned))
    assert result.tolist() == [1.5, 0.0, 0.0, 0.0, 0.0]
    # A finite element stays bit-equal, -0.0 included; a replaced element is 0.0, not -0.0.
    assert result.signbit().tolist() == [False, False, False, False, True]


def test_numbers_of_your_own() -> None:
    (result,) = ZeroNonFinite(nan=-1.0, inf=8.0)([torch.tensor(BAD)], Context())
    assert result.tolist() == [1.5, -1.0, 8.0, -8.0, 0.0]


@pytest.mark.parametrize("owned", [False, True])
def test_complex_parts_on_their_own(owned: bool) -> None:
    value = torch.tensor([complex(math.nan, 2.0), complex(1.0, -math.inf)])
    (result,) = ZeroNonFinite()([value], Context(owned=owned))
    assert result.tolist() == [2j, 1 + 0j] and (result is value) == owned


def test_conjugated_in_place() -> None:
    value = torch.tensor([complex(math.nan, 2.0)]).conj()
    (result,) = ZeroNonFinite()([value], Context(owned=True))
    assert result is value and result.tolist() == [-2j]


def test_too_large_for_the_dtype() -> None:
    with pytest.raises(TransformError) as error:
        ZeroNonFinite(inf=1e6)([torch.ones(1).half()], Context(names=["net.bias"]))
    assert str(error.value) == (
        "ZeroNonFinite.inf is 1000000.0, too large for 'net.bias': the greatest finite torch.float16 is 65504"
    )


@pytest.mark.parametrize("field", ["nan", "inf"])
def test_refused(field: str) -> None:
    with pytest.raises(RuleError) as error:
        ZeroNonFinite(**{field: math.inf})
    assert str(error.value) == f"ZeroNonFinite.{field} must be a finite number, got inf"
