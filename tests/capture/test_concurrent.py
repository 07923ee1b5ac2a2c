"""Several processes capture into one folder at the same time."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import pytest

from lightning_hooks.capture import CaptureWriter, load_capture
from lightning_hooks.capture.index import read_folder
from tests import forked

from ._tools import batch, capture_batches, check_whole

WRITES_A_SHARE = textwrap.dedent(
    """
    import os, sys, time, torch
    from lightning_hooks.capture import CaptureWriter
    folder, first, go = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    problems = []
    print("ready", flush=True)
    while not os.path.exists(go):
        time.sleep(0.001)
    with CaptureWriter(folder, batches_per_file=2, on_problem=problems.append) as writer:
        for step in range(48):
            writer.add("layer", torch.full((64, 64), float(first + step)), step=step, stage="train", batch_idx=step)
            writer.end_batch()
    print(problems, flush=True)
    """
)


def test_two_processes_in_one_folder_keep_everything_apart(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("said")
    said, go = [folder / "first", folder / "second"], folder / "go"
    starts = zip(("0", "1000"), said, strict=True)
    processes = [forked.start(["-c", WRITES_A_SHARE, str(tmp_path), first, str(go)], os.environ, out) for first, out in starts]
    end = time.monotonic() + 60
    while not all(out.exists() and "ready" in out.read_text() for out in said):
        assert time.monotonic() < end
        time.sleep(0.005)
    go.touch()
    for process in processes:
        process.join(60)
    assert [out.read_text() for out in said] == ["ready\n[]\n", "ready\n[]\n"]
    assert check_whole(tmp_path) == 96
    entries = load_capture(tmp_path)["layer"]
    assert {info.run for info in entries.infos} == {0, 1}
    values = [[tensor[0, 0].item() for tensor in entries.where(run=run)] for run in (0, 1)]
    assert sorted(values) == [list(range(48)), list(range(1000, 1048))]
    assert not list(tmp_path.glob(".*"))


def test_a_writer_leaves_the_temporary_folder_of_a_live_one(tmp_path: Path) -> None:
    problems: list[str] = []
    first = capture_batches(tmp_path, 1, batches_per_file=1, on_problem=problems.append)
    (temporary,) = tmp_path.glob(".*")
    with CaptureWriter(tmp_path) as second:
        assert temporary.exists()
        second.add("layer", batch(7), step=1, stage="train", batch_idx=1)
    assert temporary.exists()
    first.add("layer", batch(1), step=1, stage="train", batch_idx=1)
    first.close()
    assert problems == []
    entries = load_capture(tmp_path)["layer"]
    assert [tensor[0, 0].item() for tensor in entries.where(run=0)] == [0, 1]
    assert [tensor[0, 0].item() for tensor in entries.where(run=1)] == [7]


def test_a_file_whose_line_is_being_written_is_read_once(tmp_path: Path) -> None:
    first = capture_batches(tmp_path, 1, batches_per_file=1)
    index = tmp_path / "index-rank0.jsonl"
    line = index.read_bytes()
    # Between the rename of a file and the append of its line, the index lacks the line.
    index.write_bytes(b"")
    assert load_capture(tmp_path)["layer"].steps == (0,)
    capture_batches(tmp_path, 1, first=1).close()
    index.write_bytes(line)
    first.close()
    entries = load_capture(tmp_path)["layer"]
    assert [(info.step, info.run) for info in entries.infos] == [(0, 0), (1, 1)]


def test_a_folder_of_one_index_for_all_runs_is_read_and_continued(tmp_path: Path) -> None:
    """In earlier versions, all runs of a rank appended to one index and continued the numbers of its files."""
    capture_batches(tmp_path, 2, batches_per_file=1).close()
    index = tmp_path / "index-rank0.jsonl"
    index.write_bytes(
        index.read_bytes().replace(b'000001.safetensors","rank":0,"run":0', b'000001.safetensors","rank":0,"run":1')
    )
    before = index.read_bytes()
    capture_batches(tmp_path, 1, first=2).close()
    assert index.read_bytes() == before
    assert [(record.file, record.run) for record in read_folder(tmp_path)] == [
        ("train-rank0-000000.safetensors", 0),
        ("train-rank0-000001.safetensors", 1),
        ("train-rank0-run2-000000.safetensors", 2),
    ]
    assert load_capture(tmp_path)["layer"].steps == (0, 1, 2)


def test_many_runs_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for run in range(12):
        with CaptureWriter(tmp_path) as writer:
            writer.add(f"layer{run}", batch(run), step=0, stage="train", batch_idx=0)
    assert load_capture(tmp_path).names == tuple(f"layer{run}" for run in range(12))


@pytest.mark.parametrize("rank", [1, 10])
def test_ranks_of_similar_names_are_apart(tmp_path: Path, rank: int) -> None:
    left = tmp_path / ".rank1.tmp"
    left.mkdir()
    capture_batches(tmp_path, 1, rank=rank).close()
    assert left.exists() == (rank == 10)
    assert load_capture(tmp_path)["layer"].infos[0].run == 0
