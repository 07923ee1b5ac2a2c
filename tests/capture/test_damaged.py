"""A damaged capture: whatever is wrong with it, it is read as far as it is whole, or refused with a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_hooks.capture import CaptureWriter, load_capture
from lightning_hooks.errors import RuleError
from tests.damage import damaged

INDEX = "index-rank0.jsonl"
FILE = "train-rank0-000000.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with CaptureWriter(tmp_path, batches_per_file=1) as writer:
        for step, tensor in enumerate((torch.ones(2, 3), torch.ones(2, dtype=torch.complex64))):
            writer.add("layer", tensor, step=step, stage="train", batch_idx=step, sample_indices=(2 * step, 2 * step + 1))
            writer.end_batch()
    return tmp_path


def read_all(folder: Path) -> None:
    capture = load_capture(folder)
    assert repr(capture) and capture.steps is not None and capture.stages is not None and capture.sample_indices is not None
    for name in capture.names:
        entries = capture[name]
        assert repr(entries) and len(entries.where(step=0)) <= len(entries)
        for index in range(len(entries)):
            tensor = entries[index]
            assert (tensor.dtype, tuple(tensor.shape)) == (entries.dtypes[index], entries.shapes[index])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_capture_is_read_or_refused(folder: Path, data: st.DataObject) -> None:
    whole = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    first, second = whole[INDEX].splitlines(keepends=True)
    if data.draw(st.booleans()):
        (folder / INDEX).write_bytes(data.draw(damaged(first.rstrip(b"\n"))) + b"\n" + second)
    else:
        (folder / FILE).write_bytes(data.draw(damaged(whole[FILE], is_json=False)))
    try:
        read_all(folder)
    except RuleError as error:
        assert str(folder) in str(error)
    for name, content in whole.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("name", 5, "line.entries[0].name must be a string, got 5"),
        ("step", "x", "line.entries[0].step must be an integer below 2**63, got 'x'"),
        ("shape", 3, "line.entries[0].shape must be a list, got 3"),
        ("dtype", "load", "line.entries[0]: dtype must be the name of a dtype, got 'load'"),
        ("sample_indices", [None], "line.entries[0].sample_indices[0] must be an integer below 2**63, got None"),
    ],
)
def test_a_damaged_field_is_named(field: str, value: Any, reason: str, folder: Path) -> None:
    first, second = map(json.loads, (folder / INDEX).read_text().splitlines())
    first["entries"][0][field] = value
    (folder / INDEX).write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    with pytest.raises(RuleError) as raised:
        load_capture(folder)
    assert str(raised.value) == f"{folder / INDEX}, line 1 is not a line of a capture's index: {reason}"


def test_deep_nesting_and_other_bytes_are_refused(folder: Path) -> None:
    whole = (folder / INDEX).read_bytes()
    for line, reason in ((b"[" * 100_000, "nested deeper than 100 levels"), (b"\xff\xfe", "it is not UTF-8")):
        (folder / INDEX).write_bytes(line + b"\n" + whole)
        with pytest.raises(RuleError, match=f"line 1 is not a line of a capture's index: .*{reason}"):
            load_capture(folder)


def test_a_tensor_that_is_not_as_the_index_says_is_refused(folder: Path) -> None:
    whole = (folder / INDEX).read_text()
    (folder / INDEX).write_text(whole.replace("[2,3]", "[3,2]"))
    with pytest.raises(RuleError, match=r"'layer' is torch.float32 \[2, 3\] there and torch.float32 \[3, 2\] in the index"):
        _ = load_capture(folder)["layer"][0]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_a_link_out_of_the_folder_and_a_pipe_are_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / FILE
    (folder / FILE).rename(outside)
    (folder / FILE).symlink_to(outside)
    with pytest.raises(RuleError, match="leads out of the folder .* and is not read"):
        _ = load_capture(folder)["layer"][0]
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)
    with pytest.raises(RuleError, match="is a named pipe, not a regular file"):
        _ = load_capture(folder)["layer"][0]
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)
    with pytest.raises(RuleError, match="is a named pipe, not a regular file"):
        load_capture(folder)
