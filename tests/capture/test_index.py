from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_hooks.capture import load_capture
from lightning_hooks.capture.index import FileRecord, read_index
from lightning_hooks.errors import RuleError

from ._tools import batch, capture_batches, check_whole, records


def index_of(folder: Path) -> Path:
    return folder / "index-rank0.jsonl"


def test_a_line_says_everything_about_its_tensors(tmp_path: Path) -> None:
    capture_batches(tmp_path, 1).close()
    (line,) = index_of(tmp_path).read_text().splitlines()
    assert json.loads(line) == {
        "version": 1,
        "file": "train-rank0-000000.safetensors",
        "rank": 0,
        "run": 0,
        "entries": [
            {
                "name": "layer",
                "call": 0,
                "step": 0,
                "stage": "train",
                "dataloader_idx": 0,
                "batch_idx": 0,
                "shape": [2, 3],
                "dtype": "float32",
                "sample_indices": None,
                "bytes": 24,
                "key": "0:layer",
            }
        ],
    }


def test_the_index_is_appended_to_and_never_rewritten(tmp_path: Path) -> None:
    writer = capture_batches(tmp_path, 1, batches_per_file=1)
    before = index_of(tmp_path).stat()
    writer.add("layer", batch(1), step=1, stage="train", batch_idx=1)
    writer.end_batch()
    after = index_of(tmp_path).stat()
    assert before.st_ino == after.st_ino
    assert after.st_size == pytest.approx(2 * before.st_size, abs=4)


@pytest.mark.parametrize("torn", [b'{"version":1,"file":"tr', b"\0\0\0\0", b"\0\0\0\n", b"{}\n"])
def test_a_torn_last_line_is_ignored_also_after_the_next_run(tmp_path: Path, torn: bytes) -> None:
    capture_batches(tmp_path, 2, batches_per_file=1).close()
    whole = index_of(tmp_path).read_bytes()
    index_of(tmp_path).write_bytes(whole + torn)
    assert load_capture(tmp_path)["layer"].steps == (0, 1)
    capture_batches(tmp_path, 1, first=2).close()
    assert load_capture(tmp_path)["layer"].steps == (0, 1, 2)


def test_a_line_cut_anywhere_leaves_the_ones_before_it(tmp_path: Path) -> None:
    capture_batches(tmp_path, 2, batches_per_file=1).close()
    whole = index_of(tmp_path).read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        index_of(tmp_path).write_bytes(whole[:end])
        found, length = read_index(index_of(tmp_path))
        assert (len(found), length) == (1, first)


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    capture_batches(tmp_path, 2, batches_per_file=1).close()
    first, second = index_of(tmp_path).read_bytes().splitlines(keepends=True)
    index_of(tmp_path).write_bytes(first[:10] + b"\n" + second)
    with pytest.raises(RuleError, match="index-rank0.jsonl, line 1 is not a line of a capture's index"):
        load_capture(tmp_path)


def test_an_index_of_a_later_version_is_refused(tmp_path: Path) -> None:
    index_of(tmp_path).write_text('{"version":2}\n')
    with pytest.raises(RuleError, match="line 1: the index has version 2, this lightning_hooks reads up to version 1"):
        load_capture(tmp_path)


def test_a_whole_file_without_its_line_is_read_all_the_same(tmp_path: Path) -> None:
    capture_batches(tmp_path, 3, batches_per_file=1).close()
    first, second, _ = index_of(tmp_path).read_bytes().splitlines(keepends=True)
    # A run that is killed between the rename of a file and the append of its line leaves this index.
    index_of(tmp_path).write_bytes(first + second)
    assert load_capture(tmp_path)["layer"].steps == (0, 1, 2)
    capture_batches(tmp_path, 1, first=3).close()
    assert index_of(tmp_path).read_bytes() == first + second
    assert [(record.file, record.run) for record in records(tmp_path)] == [
        ("train-rank0-000000.safetensors", 0),
        ("train-rank0-000001.safetensors", 0),
        ("train-rank0-000002.safetensors", 0),
        ("train-rank0-run1-000000.safetensors", 1),
    ]
    assert check_whole(tmp_path) == 3


def test_a_capture_that_has_lost_its_index_is_read_and_continued(tmp_path: Path) -> None:
    capture_batches(tmp_path, 1).close()
    index_of(tmp_path).unlink()
    assert load_capture(tmp_path)["layer"].steps == (0,)
    capture_batches(tmp_path, 1, first=1).close()
    assert [record.run for record in records(tmp_path)] == [0, 1]
    assert load_capture(tmp_path)["layer"].steps == (0, 1)


def test_a_leftover_of_a_killed_run_is_cleared_up(tmp_path: Path) -> None:
    left = tmp_path / ".rank0.tmp"
    other = tmp_path / ".rank1.tmp"
    for folder in (left, other):
        folder.mkdir()
        (folder / ".tmpA1b2C3").write_bytes(b"half")
    capture_batches(tmp_path, 1).close()
    assert not left.exists()
    assert (other / ".tmpA1b2C3").exists()  # the folder belongs to another rank, which may be running


@pytest.mark.parametrize("line", ["[]", "{", '{"version":1,"file":"a"}', '{"file":"a","rank":0,"run":0,"entries":[3]}'])
def test_a_line_that_is_not_a_record_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):
        FileRecord.from_line(line)


@pytest.mark.parametrize("kind", ["above", "absolute", "nested", "windows", "parent"])
def test_an_entry_that_leads_out_of_the_folder_is_refused(tmp_path: Path, kind: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "capture"
    capture_batches(outside, 1).close()
    capture_batches(folder, 1).close()
    name = {
        "above": "../outside/train-rank0-000000.safetensors",
        "absolute": str(outside / "train-rank0-000000.safetensors"),
        "nested": "deeper/train-rank0-000000.safetensors",
        "windows": "C:train-rank0-000000.safetensors",
        "parent": "..",
    }[kind]
    line = index_of(folder).read_text().replace("train-rank0-000000.safetensors", name)
    index_of(folder).write_text(line)
    with pytest.raises(RuleError) as caught:
        load_capture(folder)
    assert str(caught.value) == (
        f"{index_of(folder)}, line 1: the entry 'layer' leads to {name!r}; a capture reads only files in its own folder"
    )
