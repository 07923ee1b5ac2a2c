"""Every transform on a device: what it does on the CPU, up to rounding, without waiting."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from lightning_hooks.transforms import SkipStep, Transform
from tests.transforms._catalogue import EXAMPLES, context_of, each, has, label

pytestmark = pytest.mark.cuda
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}


def on(device: str, tensors: list[Tensor], owned: bool = False) -> tuple[list[Tensor], object]:
    context = context_of(tensors, owned)
    context.params = [None if param is None else param.to(device) for param in context.params]
    return [tensor.to(device) for tensor in tensors], context


@each
def test_what_it_does_on_the_cpu(device: str, transform: Transform) -> None:
    generator = torch.Generator().manual_seed(4)
    shapes = [((4, 3), torch.float32), ((5,), torch.float16), ((2, 3, 2, 2), torch.bfloat16), ((1, 4), torch.float64)]
    steps = [[torch.randn(shape, generator=generator).to(dtype) for shape, dtype in shapes] for _ in range(4)]
    _, here = on("cpu", steps[0])
    _, there = on(device, steps[0])
    for step, tensors in enumerate(steps):
        here.step = there.step = step  # type: ignore[attr-defined]
        wanted = transform([tensor.clone() for tensor in tensors], here)  # type: ignore[arg-type]
        found = transform([tensor.to(device) for tensor in tensors], there)  # type: ignore[arg-type]
        for one, other in zip(found, wanted, strict=True):
            assert (one.shape, one.dtype, one.device.type) == (other.shape, other.dtype, device)
            if not transform.random:  # each device has random numbers of its own
                slack = TOLERANCE[one.dtype]
                torch.testing.assert_close(one.cpu(), other, rtol=slack, atol=slack, equal_nan=True)


@pytest.mark.parametrize("transform", [t for t in EXAMPLES if not has(t, SkipStep)], ids=label)
@pytest.mark.parametrize("owned", [False, True])
def test_it_waits_for_nothing(
    device: str, transform: Transform, owned: bool, without_waiting: Callable[[], AbstractContextManager[None]]
) -> None:
    tensors, context = on(device, [torch.randn(3, 2), torch.randn(4, 4).half()], owned)
    transform([value.clone() for value in tensors], context)  # type: ignore[arg-type]
    with without_waiting():
        transform(tensors, context)  # type: ignore[arg-type]
