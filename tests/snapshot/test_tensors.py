"""A tensor gets back its elements bit for bit, its memory, its gradient and its hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks.snapshot.tensors import copy_of, saved_tensor


class Written(TorchDispatchMode):
    """Counts the operators that write to a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.copy_.default
        return func(*args, **(kwargs or {}))


def writes(tensor: Tensor, restore: Any) -> int:
    with Written() as written, torch.no_grad():
        restore()
    return written.count


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_sign_that_code_changed_behind_autograd_comes_back(value: float, dtype: torch.dtype) -> None:
    tensor = torch.full((3,), value, dtype=dtype)
    before, restore = tensor.signbit().tolist(), saved_tensor(tensor, copy_of(tensor))
    tensor.data.neg_()
    assert tensor.signbit().tolist() != before
    assert writes(tensor, restore) == 1 and tensor.signbit().tolist() == before and tensor._version == 0


def test_a_tensor_that_is_the_same_is_not_written_because_its_memory_may_be_read_only() -> None:
    whole = torch.randn(9)
    for tensor in (whole, whole[1:], torch.ones(3, dtype=torch.bool), torch.tensor(float("nan"))):
        assert writes(tensor, saved_tensor(tensor, copy_of(tensor))) == 0


def test_memory_that_code_has_replaced_comes_back() -> None:
    tensor = torch.ones(2)
    address, restore = tensor.data_ptr(), saved_tensor(tensor, copy_of(tensor))
    tensor.data = torch.zeros(3)
    restore()
    assert tensor.data_ptr() == address and tensor.tolist() == [1.0, 1.0]


def test_a_gradient_and_the_hooks_on_a_tensor_come_back_without_its_elements() -> None:
    tensor = torch.ones(2, requires_grad=True)
    tensor.grad = grad = torch.ones(2)
    restore = saved_tensor(tensor, None)
    with torch.no_grad():
        tensor.zero_()
    tensor.grad = None
    tensor.register_hook(lambda grad: grad)
    restore()
    assert tensor.grad is grad and not tensor._backward_hooks and tensor.tolist() == [0.0, 0.0]
