import math

import torch

from lightning_hooks.transforms import Context, Zero


def test_zero_even_where_not_a_number() -> None:
    value = torch.tensor([1.0, math.nan, math.inf, -1.0])
    (result,) = Zero()([value], Context())
    assert result.tolist() == [0.0] * 4 and not result.signbit().any()
    (owned,) = Zero()([value], Context(owned=True))
    assert owned is value and value.tolist() == [0.0] * 4


def test_sparse_keeps_its_indices() -> None:
    value = torch.eye(3).to_sparse()
    (result,) = Zero()([value], Context())
    assert result._nnz() == 3 and result.to_dense().abs().sum() == 0


def test_activation_stays_in_the_graph() -> None:
    value = torch.tensor([1.0, math.nan], requires_grad=True)
    (result,) = Zero()([value * 1.0], Context())
    assert result.tolist() == [0.0, 0.0] and result.requires_grad
    torch.autograd.backward(result.sum())
    assert value.grad is not None and value.grad.tolist() == [0.0, 0.0]
