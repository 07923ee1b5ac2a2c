from __future__ import annotations

import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_hooks.capture import CaptureWriter, load_capture
from lightning_hooks.capture.writer import STORED

DTYPES = sorted(STORED, key=str)
LAYOUTS = ["contiguous", "transposed", "every second", "expanded"]


def tensor_of(dtype: torch.dtype, shape: list[int], layout: str) -> Tensor:
    if layout == "transposed":
        return tensor_of(dtype, shape[::-1], "contiguous").permute(tuple(range(len(shape)))[::-1])
    if layout == "every second" and shape:
        return tensor_of(dtype, [2 * shape[0], *shape[1:]], "contiguous")[::2]
    if layout == "expanded":
        return tensor_of(dtype, [1] * len(shape), "contiguous").expand(shape)
    number = int(torch.tensor(shape).prod()) * dtype.itemsize if shape else dtype.itemsize
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    # Fill the tensor with random bytes, which include NaN and subnormal numbers.
    return torch.randint(0, 256, (number,), dtype=torch.uint8).view(dtype).reshape(shape)


def bits(tensor: Tensor) -> list[int]:
    pairs = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    result: list[int] = pairs.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).tolist()
    return result


@settings(max_examples=60, deadline=None)
@given(
    tensors=st.lists(
        st.tuples(
            st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4), st.sampled_from(LAYOUTS), st.integers(0, 2**30)
        ),
        min_size=1,
        max_size=5,
    ),
    batches_per_file=st.integers(1, 3),
)
def test_what_was_captured_comes_back_bit_for_bit(
    tensors: list[tuple[torch.dtype, list[int], str, int]], batches_per_file: int
) -> None:
    captured = []
    for dtype, shape, layout, seed in tensors:
        torch.manual_seed(seed)
        captured.append(tensor_of(dtype, shape, layout))
    with tempfile.TemporaryDirectory() as folder:
        with CaptureWriter(folder, batches_per_file=batches_per_file) as writer:
            for batch_idx, tensor in enumerate(captured):
                writer.add("x", tensor, step=0, stage="train", batch_idx=batch_idx)
                writer.end_batch()
        entries = load_capture(folder)["x"]
        assert entries.shapes == tuple(tuple(tensor.shape) for tensor in captured)
        assert entries.dtypes == tuple(tensor.dtype for tensor in captured)
        for read, tensor in zip(entries, captured, strict=True):
            assert (read.shape, read.dtype) == (tensor.shape, tensor.dtype)
            assert bits(read) == bits(tensor)


@pytest.mark.parametrize("name", ["", "a b", "with/slash", "umlaut_ä", 'quote"', "line\nend", "__metadata__", "../up"])
def test_any_name_comes_back(tmp_path: object, name: str) -> None:
    with CaptureWriter(str(tmp_path)) as writer:
        writer.add(name, torch.ones(1), step=0, stage="train", batch_idx=0)
    assert load_capture(str(tmp_path)).names == (name,)
    assert load_capture(str(tmp_path))[name][0].tolist() == [1.0]


def test_lazily_conjugated_and_negated_numbers_are_stored_as_they_read(tmp_path: object) -> None:
    number = torch.tensor([1.0 + 2.0j])
    with CaptureWriter(str(tmp_path)) as writer:
        writer.add("conjugated", number.conj(), step=0, stage="train", batch_idx=0)
        writer.add("negated", number.conj().imag, step=0, stage="train", batch_idx=0)
    capture = load_capture(str(tmp_path))
    assert (capture["conjugated"][0].tolist(), capture["negated"][0].tolist()) == ([1 - 2j], [-2.0])
