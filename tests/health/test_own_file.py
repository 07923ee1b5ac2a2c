"""A file that is appended to belongs to one writer, until it closes the file or its process ends."""

import os
import signal

import pytest

from lightning_hooks.health import own_file
from lightning_hooks.health.own_file import close_own, open_own
from tests import forked


def test_each_writer_at_a_time_gets_a_file_of_its_own(tmp_path):
    path = tmp_path / "a.jsonl"
    opened = [open_own(path) for _ in range(3)]
    for file, number in opened:
        file.write(b"%d" % number)
        close_own(file)
    assert [number for _, number in opened] == [1, 2, 3]
    assert [(each.name, each.read_bytes()) for each in sorted(tmp_path.iterdir())] == [
        ("a-2.jsonl", b"2"),
        ("a-3.jsonl", b"3"),
        ("a.jsonl", b"1"),
    ]


def test_the_next_writer_appends_to_the_file_of_one_that_has_closed_it(tmp_path):
    for _ in range(2):
        file, number = open_own(tmp_path / "a")
        file.write(b"x")
        close_own(file)
    assert number == 1 and (tmp_path / "a").read_bytes() == b"xx"


def test_a_forked_process_does_not_keep_the_file_of_a_writer_that_has_closed_it(tmp_path):
    file, _ = open_own(tmp_path / "a")
    kept = os.dup(file.fileno())  # shares the lock, as the descriptor in a worker of a DataLoader does
    close_own(file)
    again, number = open_own(tmp_path / "a")
    close_own(again)
    os.close(kept)
    assert number == 1


def test_a_process_that_was_killed_leaves_its_file_to_the_next_one(tmp_path):
    script = f"""
import os, signal
from pathlib import Path
from lightning_hooks.health.own_file import open_own
file = open_own(Path({str(tmp_path)!r}) / "a")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert forked.run(["-c", script]).returncode == -signal.SIGKILL
    file, number = open_own(tmp_path / "a")
    close_own(file)
    assert number == 1


@pytest.mark.parametrize("reason", ["no fcntl", "no locks"])
def test_a_system_without_locks_is_used_without(tmp_path, monkeypatch, reason):
    if reason == "no fcntl":
        monkeypatch.setattr(own_file, "fcntl", None)
    else:

        def fails(*args):
            raise OSError("no locks")

        monkeypatch.setattr(own_file.fcntl, "flock", fails)
    opened = [open_own(tmp_path / "a") for _ in range(2)]
    for file, _ in opened:
        close_own(file)
    assert [number for _, number in opened] == [1, 1]


def test_too_many_writers_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(own_file, "_MOST", 1)
    file, _ = open_own(tmp_path / "a")
    with pytest.raises(OSError, match="1 fits write into .* at the same time"):
        open_own(tmp_path / "a")
    close_own(file)


@pytest.mark.parametrize("kind", ["link", "pipe", "pipe with a reader"])
def test_a_link_or_a_pipe_in_the_place_of_the_file_is_an_error(tmp_path, kind):
    path, other = tmp_path / "a", tmp_path / "other"
    other.write_text("theirs")
    reader = None
    if kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if "reader" in kind else None
    with pytest.raises(OSError, match="/a'"):
        open_own(path)
    assert other.read_text() == "theirs" and [each.name for each in sorted(tmp_path.iterdir())] == ["a", "other"]
    if reader is not None:
        os.close(reader)
