"""Events reach the logger's file: at once where nothing stands before them, else through its queue; the file stays readable."""

import errno
import gc
import os
import signal
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks.tensorboard import appending
from lightning_hooks.tensorboard.appending import appender
from lightning_hooks.tensorboard.template import event_bytes


def event(step, size=10):
    return event_bytes(1.0, step, Summary(value=[Summary.Value(tag="a" * size, simple_value=2.0)]).SerializeToString())


def steps_in(folder):
    (path,) = folder.glob("*tfevents*")
    return [each.step for each in LegacyEventFileLoader(str(path)).Load() if each.HasField("summary")]


class Run:
    """An event file with an appender, and what went through the queue."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.writer = SummaryWriter(folder)
        self.file_writer = self.writer._get_file_writer()
        self.queue = self.file_writer.event_writer._async_writer
        self.writer.flush()
        self.queued = []
        put = self.queue.write
        monkeypatch.setattr(self.queue, "write", lambda data: self.queued.append(data) or put(data))
        self.append = appender(self.file_writer)


@pytest.fixture
def run(tmp_path, monkeypatch):
    made = Run(tmp_path, monkeypatch)
    yield made
    if not made.queue._closed:
        made.writer.close()


def test_an_event_is_in_the_file_when_the_call_returns(run):
    for step in range(5):
        run.append(event(step))
        assert steps_in(run.folder) == list(range(step + 1))
    assert not run.queued


def test_one_write_for_an_event(run, monkeypatch):
    written, write = [], os.write
    monkeypatch.setattr(os, "write", lambda file, data: written.append(len(data)) or write(file, data))
    run.append(event(0))
    assert written == [len(event(0)) + 16]


def test_one_write_for_events_that_come_together(run, monkeypatch):
    written, write = [], os.write
    monkeypatch.setattr(os, "write", lambda file, data: written.append(len(data)) or write(file, data))
    run.append(event(0), event(1, size=99), event(2))
    assert len(written) == 1 and not run.queued
    assert steps_in(run.folder) == [0, 1, 2]


def test_events_that_come_together_are_taken_back_together(run, monkeypatch):
    run.append(event(0))
    write, together = os.write, len(event(1)) + 16 + 7  # the first of them, and a little of the second
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:together]))
    run.append(event(1), event(2), event(3))
    monkeypatch.setattr(os, "write", write)
    run.writer.flush()
    assert len(run.queued) == 3 and steps_in(run.folder) == [0, 1, 2, 3]


def test_events_wait_for_those_of_the_logger(run):
    with run.queue._byte_queue.mutex:  # the thread cannot take anything
        held = run.queue._byte_queue.unfinished_tasks
        run.queue._byte_queue.unfinished_tasks += 1
        assert not run.append._is_idle()
        run.queue._byte_queue.unfinished_tasks = held
    assert run.append._is_idle()
    for step in range(20):
        run.writer.add_scalar("loss", 1.0, 2 * step)
        run.append(event(2 * step + 1))
    run.writer.close()
    assert steps_in(run.folder) == list(range(40))


def test_the_first_event_of_a_file_follows_its_header(tmp_path):
    writer = SummaryWriter(tmp_path)
    append = appender(writer._get_file_writer())
    append(event(0))
    append(event(1))
    writer.close()
    assert steps_in(tmp_path) == [0, 1]
    (path,) = tmp_path.glob("*tfevents*")
    assert next(iter(LegacyEventFileLoader(str(path)).Load())).file_version


def test_half_a_record_on_a_full_disk_is_taken_back(run, monkeypatch):
    run.append(event(0))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    run.append(event(1))
    monkeypatch.setattr(os, "write", write)
    run.writer.flush()
    assert len(run.queued) == 1
    run.append(event(2))
    assert steps_in(run.folder) == [0, 1, 2]


def test_an_error_of_the_disk_is_left_to_the_logger(run, monkeypatch):
    def full(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    run.append(event(0))
    assert len(run.queued) == 1
    (path,) = run.folder.glob("*tfevents*")
    run.writer.flush()
    path.unlink()
    run.append(event(1))
    assert len(run.queued) == 2


def test_a_slow_disk_is_left_to_the_thread(run, monkeypatch):
    monkeypatch.setattr(appending, "_SLOW", -1.0)
    for step in range(5):
        run.append(event(step))
        run.writer.flush()
    assert len(run.queued) == 5 - appending._SLOW_WRITES
    assert steps_in(run.folder) == list(range(5))


def test_the_file_stays_open_and_is_closed_with_the_appender(run, monkeypatch):
    opened, closed = [], []
    monkeypatch.setattr(os, "open", lambda *args, open=os.open: opened.append(open(*args)) or opened[-1])
    monkeypatch.setattr(os, "close", lambda file, close=os.close: closed.append(file) or close(file))
    for step in range(5):
        run.append(event(step))
    assert len(opened) == 1 and not closed
    run.append = None
    gc.collect()
    assert closed == opened


def test_a_file_that_was_deleted_is_not_written_any_more(run):
    run.append(event(0))
    (path,) = run.folder.glob("*tfevents*")
    path.unlink()
    run.append(event(1))
    assert len(run.queued) == 1


def test_after_closing_the_logger_says_what_it_always_says(run):
    run.writer.flush()
    run.file_writer.close()
    with pytest.raises(OSError, match="closed"):
        run.append(event(0))


def test_without_the_private_queue_events_go_the_public_way():
    class Public:
        def __init__(self):
            self.events = []

        def add_event(self, event, step=None, walltime=None):
            self.events.append(event)

    public = Public()
    appender(public)(event_bytes(1.0, 7, b""))
    assert [each.step for each in public.events] == [7]


def test_another_kind_of_file_is_written_by_the_thread(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch)
    monkeypatch.setattr(appending, "LocalFileSystem", int)
    append = appender(run.file_writer)
    append(event(0))
    run.writer.close()
    assert len(run.queued) == 1 and steps_in(tmp_path) == [0]


KILLED = """
import sys, time
from tests.tensorboard.test_appending import event
from torch.utils.tensorboard import SummaryWriter
from lightning_hooks.tensorboard.appending import appender
writer = SummaryWriter(sys.argv[1])
append = appender(writer._get_file_writer())
writer.flush()
for step in range(10**9):
    append(event(step, 3000))
    if step % 10 == 0:
        print(step, flush=True)
"""


def test_a_killed_run_loses_nothing_that_was_written(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    last = 0
    end = time.monotonic() + 60
    while last < 200 and time.monotonic() < end:
        last = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    steps = steps_in(tmp_path)
    assert last >= 200 and steps == list(range(len(steps))) and len(steps) > last
