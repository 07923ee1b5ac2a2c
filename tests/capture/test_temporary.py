"""The temporary folder of a writer: locked by one writer, or an error that says why not."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_hooks.capture import CaptureWriter, temporary
from lightning_hooks.capture.temporary import TemporaryFolder, remove_leftovers

from ._tools import batch


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that another process keeps locked, as flock sees every other open file."""
    monkeypatch.setattr(temporary.time, "sleep", lambda seconds: None)
    path = tmp_path / ".rank0.tmp"
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield path
    os.close(descriptor)


def test_a_folder_that_stays_locked_is_an_error(held: Path) -> None:
    folder = TemporaryFolder(held)
    with pytest.raises(OSError, match=r"another process keeps locking .*\.rank0\.tmp; give each run a folder of its own"):
        folder.create()
    folder.remove()
    assert held.exists()  # it belongs to the other process


def test_a_capture_whose_temporary_folder_stays_locked_stops_with_one_message(held: Path) -> None:
    problems: list[str] = []
    with CaptureWriter(held.parent, batches_per_file=1, on_problem=problems.append) as writer:
        for step in range(3):
            writer.add("layer", batch(step), step=step, stage="train", batch_idx=step)
            writer.end_batch()
    assert len(problems) == 1 and "stopped, the run continues: the first file could not be written: another" in problems[0]
    assert not list(held.parent.glob("*.safetensors"))


def test_a_folder_that_is_locked_for_a_moment_is_taken(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def removed_as_a_leftover(seconds: float) -> None:
        attempts.append(seconds)
        if len(attempts) == 3:
            held.rmdir()

    monkeypatch.setattr(temporary.time, "sleep", removed_as_a_leftover)
    folder = TemporaryFolder(held)
    folder.create()
    assert len(attempts) == 3
    remove_leftovers(held.parent, 0)
    assert held.exists()  # its lock is held
    folder.remove()
    assert not held.exists()


def test_without_locks_a_folder_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "fcntl", None)
    folder = TemporaryFolder(tmp_path / ".rank0.tmp")
    folder.create()
    remove_leftovers(tmp_path, 0)
    assert folder.path.exists()
    folder.remove()
    assert not folder.path.exists()
