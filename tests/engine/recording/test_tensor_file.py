"""Files of tensors: the format is that of safetensors, and a damaged file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks.engine.recording.tensor_file import DTYPES, read_tensors, write_tensors
from lightning_hooks.untrusted import UnreadableError

library: Any = pytest.importorskip("safetensors.torch")

TENSORS = {
    **{f"of {name}": torch.arange(6).reshape(2, 3).to(dtype) for name, dtype in DTYPES.items()},
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "é": torch.tensor([True, False, True]),
}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    def bits(tensor: torch.Tensor) -> Any:
        return tensor.dtype, tensor.shape, tensor.reshape(-1).view(torch.uint8).tolist()

    return {name: bits(each) for name, each in first.items()} == {name: bits(each) for name, each in second.items()}


def test_the_library_reads_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    write_tensors(TENSORS, tmp_path / "own")
    assert same(library.load_file(tmp_path / "own"), TENSORS) and same(read_tensors(tmp_path / "own"), TENSORS)
    library.save_file(TENSORS, tmp_path / "other", metadata={"made": "elsewhere"})
    assert same(read_tensors(tmp_path / "other"), TENSORS)
    assert list(read_tensors(tmp_path / "own")) == list(TENSORS)


def file_of(header: Any, elements: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + elements


def one(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2], **changes}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "its header of 0 bytes does not fit into 0 bytes"),
        (b"\xff" * 20, "does not fit into 20 bytes"),
        (file_of(b"{", b""), "it is not JSON"),
        (file_of(b"[" * 9999, b""), "nested deeper than 3 levels"),
        (file_of([], b""), "its header must be an object, got []"),
        (file_of(one(dtype="C64"), b"12"), "'x' cannot be described by"),
        (file_of(one(shape=[-2]), b"12"), "'x' cannot be described by"),
        (file_of(one(shape=[1] * 99), b"12"), "'x' cannot be described by"),
        (file_of(one(shape=[True, 2]), b"12"), "'x' cannot be described by"),
        (file_of(one(shape=[3]), b"12"), "'x' cannot be described by"),
        (file_of(one(shape=[0, 2**62, 2**62], data_offsets=[0, 0]), b""), "cannot be read"),
        (file_of(one(shape=[2**50], data_offsets=[0, 2**50]), b"12"), "the file ends before 'x' does"),
        (file_of(one(data_offsets=[1, 3]), b"123"), "'x' begins at byte 1, and the tensor before it ends at 0"),
        (file_of(one(), b"1"), "the file ends before 'x' does"),
        (file_of(one(), b"123"), "its tensors have 2 bytes, and the file 3"),
        (file_of({**one(), "y": one()["x"]}, b"12"), "'y' begins at byte 0, and the tensor before it ends at 2"),
        (file_of(one(dtype="BOOL"), b"\x01\x02"), "'x' has truth values other than 0 and 1"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "batch.safetensors").write_bytes(content)
    with pytest.raises(UnreadableError, match="batch.safetensors (is damaged|cannot be read): ") as raised:
        read_tensors(tmp_path / "batch.safetensors")
    assert reason in str(raised.value)
