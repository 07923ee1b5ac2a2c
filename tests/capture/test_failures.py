"""Killed runs and full disks, in subprocesses."""

from __future__ import annotations

import errno
import os
import random
import signal
import textwrap
import time
from pathlib import Path

import pytest

from lightning_hooks.capture import CaptureWriter, load_capture
from tests import forked

from ._tools import capture_batches, check_whole, records

WRITES_FOREVER = textwrap.dedent(
    """
    import sys, torch
    from lightning_hooks.capture import CaptureWriter
    writer = CaptureWriter(sys.argv[1], batches_per_file=2)
    step = 0
    while True:
        for name in ("a", "b"):
            writer.add(name, torch.full((64, 1024), float(step)), step=step, stage="train", batch_idx=step)
        writer.end_batch()
        step += 1
        if step == 6:
            print("going", flush=True)
    """
)

FILLS_THE_DISK = textwrap.dedent(
    """
    import resource, signal, sys, torch
    from lightning_hooks.capture import CaptureWriter
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    problems = []
    writer = CaptureWriter(sys.argv[1], batches_per_file=1, on_problem=problems.append)
    for step in range(6):
        if step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        writer.add("layer", torch.full((100, 100), float(step)), step=step, stage="train", batch_idx=step)
        writer.end_batch()
    writer.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)  # standard output is a file too
    print(len(problems), *problems)
    """
)


def test_a_run_killed_at_any_moment_leaves_whole_files_and_a_true_index(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    choice = random.Random(0)
    previous_number = 0
    for attempt in range(4):
        said = tmp_path_factory.mktemp("said") / "stdout"
        process = forked.start(["-c", WRITES_FOREVER, str(tmp_path)], os.environ, said)
        try:
            end = time.monotonic() + 60
            while not (said.exists() and "going" in said.read_text()):
                assert process.is_alive() and time.monotonic() < end, said.read_text()
                time.sleep(0.005)
            time.sleep(choice.uniform(0.0, 0.1))
        finally:
            process.kill()
            process.join()
        assert process.exitcode == -signal.SIGKILL
        # Each run writes at least two files of two batches of two tensors, and no tensor of an earlier run is lost.
        number = check_whole(tmp_path)
        assert number >= previous_number + 8
        previous_number = number
        capture = load_capture(tmp_path)
        assert all(tensor[0, 0].item() == step for tensor, step in zip(capture["a"], capture["a"].steps, strict=True))
        assert {info.run for info in capture["b"].infos} == set(range(attempt + 1))
    CaptureWriter(tmp_path).close()
    assert {record.file for record in records(tmp_path)} == {path.name for path in tmp_path.glob("*.safetensors")}
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".jsonl"}


@pytest.mark.parametrize("limit", [0, 20_000], ids=["nothing fits", "a part fits"])
def test_a_full_disk_stops_the_capture_with_one_message_and_not_the_run(tmp_path: Path, limit: int) -> None:
    done = forked.run(["-c", FILLS_THE_DISK, str(tmp_path), str(limit)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"1 the capture to {tmp_path} stopped, the run continues: train-rank0-000003.safetensors")
    assert f"(os error {errno.EFBIG})" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index-rank0.jsonl",
        *(f"train-rank0-00000{number}.safetensors" for number in range(3)),
    ]
    assert check_whole(tmp_path) == 3


@pytest.mark.parametrize("call", ["rename", "fsync", "write"])
def test_every_step_of_writing_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    problems: list[str] = []
    writer = capture_batches(tmp_path, 1, batches_per_file=1, on_problem=problems.append)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        for step in (1, 2):
            writer.add("layer", load_capture(tmp_path)["layer"][0], step=step, stage="train", batch_idx=step)
            writer.end_batch()
        writer.close()
    (problem,) = problems
    assert problem.endswith("train-rank0-000001.safetensors could not be written: [Errno 28] No space left on device")
    assert writer.stopped is not None
    # When the write of the index line fails, the file is already complete.
    assert load_capture(tmp_path)["layer"].steps == ((0, 1) if call == "write" else (0,))
    assert check_whole(tmp_path) == 1
    assert not (tmp_path / ".rank0.tmp").exists()


def test_an_index_line_that_was_written_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[str] = []
    writer = capture_batches(tmp_path, 1, batches_per_file=1, on_problem=problems.append)
    index = tmp_path / "index-rank0.jsonl"
    before = index.read_bytes()
    write = os.write

    def fills_up(descriptor: int, data: memoryview) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:-50])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fills_up)
        writer.add("layer", load_capture(tmp_path)["layer"][0], step=1, stage="train", batch_idx=1)
        writer.end_batch()
    assert len(problems) == 1
    assert index.read_bytes() == before
    capture_batches(tmp_path, 1, first=2).close()
    assert load_capture(tmp_path)["layer"].steps == (0, 1, 2)
