"""A file is written in one piece, under a name that nobody can guess, and through no link."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lightning_hooks.capture import CaptureWriter
from lightning_hooks.capture.temporary import TemporaryFolder
from lightning_hooks.dashboard.report import write_report
from lightning_hooks.engine.recording.saving import save_batch
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.reference.baseline import write_baseline
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.tensorboard.projector import write_projector
from lightning_hooks.whole_files import create_unfinished, whole_file, write_whole
from tests.dashboard.runs import write_run


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_whole(path, "first\n")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first\n" and names(tmp_path) == ["record.json"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_within_the_block_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), whole_file(tmp_path / "x.bin") as unfinished:
        unfinished.write_bytes(b"half")
        raise error
    assert names(tmp_path) == []


def test_the_mode_is_that_of_the_umask_also_if_a_library_replaces_the_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "x.bin") as unfinished:
            unfinished.unlink()
            unfinished.touch(0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "x.bin").stat().st_mode & 0o777 == 0o640


def test_unfinished_files_have_names_of_their_own(tmp_path: Path) -> None:
    made = {create_unfinished(tmp_path / "x.json") for _ in range(20)}
    assert len(made) == 20 and all(each.stat().st_size == 0 for each in made)
    assert len(create_unfinished(tmp_path / ("x" * 255)).name) < 255


def test_a_link_in_the_place_of_the_file_is_replaced(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("theirs")
    (tmp_path / "x.json").symlink_to(other)
    write_whole(tmp_path / "x.json", "ours")
    assert other.read_text() == "theirs" and (tmp_path / "x.json").read_text() == "ours"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to(os.devnull)
    for name in ("pipe", "stdout"):
        with pytest.raises(OSError, match=f"not a regular file: '.*{name}'"):
            write_whole(tmp_path / name, "ours")
    assert sorted(names(tmp_path)) == ["pipe", "stdout"]


def _capture(folder: Path) -> None:
    with CaptureWriter(folder, batches_per_file=1) as writer:
        writer.add("layer", torch.ones(2, 3), step=0, stage="train", batch_idx=0)
        writer.end_batch()


def _report(folder: Path) -> None:
    write_run(folder, range(2))
    write_report(folder, folder / "report.html")


@pytest.mark.parametrize(
    ("name", "writes"),
    [
        ("summary.json.tmp", lambda folder: Journal(folder).write_summary({"line": "x"})),
        ("x/.tensors.tsv.tmp", lambda folder: write_projector(folder, "x", torch.eye(2))),
        ("batch.json.PID.tmp", lambda folder: save_batch([torch.ones(2)], folder)),
        ("batch.safetensors.PID.tmp", lambda folder: save_batch([torch.ones(2)], folder)),
        (".rank0.tmp/train-rank0-000000.safetensors", _capture),
        ("report.html", _report),
        ("baseline.json", lambda folder: write_baseline(Reference(()), folder / "baseline.json")),
    ],
)
def test_a_link_that_waits_under_a_name_that_is_known_is_not_followed(
    tmp_path: Path, name: str, writes: Callable[[Path], object]
) -> None:
    other = tmp_path / "other"
    other.write_text("theirs")
    link = tmp_path / "run" / name.replace("PID", str(os.getpid()))
    link.parent.mkdir(parents=True)
    link.symlink_to(other)
    writes(tmp_path / "run")
    assert other.read_text() == "theirs"


def test_a_link_in_the_place_of_a_temporary_folder_is_an_error(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / ".rank0.tmp").symlink_to(other)
    folder = TemporaryFolder(tmp_path / ".rank0.tmp")
    with pytest.raises(OSError, match=r"\.rank0\.tmp is a link, and no folder of a writer is; remove the link"):
        folder.create()
    folder.remove()
    assert other.exists()
