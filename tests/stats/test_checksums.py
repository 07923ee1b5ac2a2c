"""Checksums of tensors: equal for equal bits, different for one changed bit, in every format."""

from __future__ import annotations

import pytest
import torch

from lightning_hooks.stats.checksums import checksums

FORMATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64]


@pytest.mark.parametrize("dtype", FORMATS)
def test_one_changed_element_changes_the_sum(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).to(dtype).reshape(3, 4)
    other = tensor.clone()
    other[1, 2] += 1
    assert checksums([tensor, tensor]).equal(checksums([tensor.clone(), tensor.clone()]))
    assert not checksums([tensor]).equal(checksums([other]))


def test_a_view_is_read_in_place() -> None:
    tensor = torch.randn(4, 6)
    assert checksums([tensor.T]).equal(checksums([tensor])) and checksums([tensor[:, ::2]]).equal(
        checksums([tensor[:, ::2].clone()])
    )
