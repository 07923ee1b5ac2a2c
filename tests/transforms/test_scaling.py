import pytest
import torch

from lightning_hooks.errors import RuleError
from lightning_hooks.transforms import Context, Scale


def test_numbers() -> None:
    tensors = [torch.tensor([1.0, -2.0]), torch.tensor(4.0, dtype=torch.float64), torch.tensor([2.0]).half()]
    assert [value.tolist() for value in Scale(-0.5)(tensors, Context())] == [[-0.5, 1.0], -2.0, [-1.0]]


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_is_rounded_once(dtype: torch.dtype, owned: bool) -> None:
    value = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = (value.float() * 0.1).to(dtype)
    assert torch.equal(Scale(0.1)([value], Context(owned=owned))[0], expected)


def test_sparse_entries_that_share_an_index_are_summed() -> None:
    value = torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]]), [1.0, 2.0, 3.0], (4,), check_invariants=True)
    (result,) = Scale(10.0)([value], Context())
    assert result.is_sparse and result.is_coalesced()
    assert result.to_dense().tolist() == [20.0, 0.0, 40.0, 0.0]


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), "2", None, True])
def test_refused(factor: object) -> None:
    with pytest.raises(RuleError) as error:
        Scale(factor)  # type: ignore[arg-type]
    assert str(error.value) == f"Scale.factor must be a finite number, got {factor!r}"
