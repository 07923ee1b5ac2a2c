"""Events are in the logger's file when the call returns, in order, and the file stays readable."""

import errno
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks import backends
from lightning_hooks.tensorboard import appending
from lightning_hooks.tensorboard.appending import appender
from lightning_hooks.tensorboard.messages import event_bytes
from tests import forked


def event(step, size=10):
    return event_bytes(1.0, step, Summary(value=[Summary.Value(tag="a" * size, simple_value=2.0)]).SerializeToString())


def steps_in(folder):
    (path,) = folder.glob("*tfevents*")
    return [each.step for each in LegacyEventFileLoader(str(path)).Load() if each.HasField("summary")]


@pytest.fixture
def run(tmp_path):
    made = SimpleNamespace(folder=tmp_path, writer=SummaryWriter(tmp_path))
    made.file_writer = made.writer._get_file_writer()
    made.append = appender(made.file_writer)
    yield made
    if not made.file_writer.event_writer._async_writer._closed:
        made.writer.close()


class Limited:
    """The disk is full: so many bytes of a write go through."""

    def __init__(self, monkeypatch, room):
        append = LocalFileSystem.append

        def limited(fs, filename, content, binary_mode=False):
            if self.room is None:
                return append(fs, filename, content, binary_mode)
            append(fs, filename, content[: self.room], binary_mode)
            raise OSError(errno.ENOSPC, "No space left on device")

        self.room = room
        monkeypatch.setattr(LocalFileSystem, "append", limited)


def test_an_event_is_in_the_file_when_the_call_returns(run):
    for step in range(5):
        run.append(event(step))
        assert steps_in(run.folder) == list(range(step + 1))


def test_the_public_way_writes_the_same_records_at_once(tmp_path):
    class Public:
        """A file writer whose file is not found."""

        def __init__(self, writer):
            self.add_event, self.flush = writer.add_event, writer.flush

    for name in ("public", "direct"):
        writer = SummaryWriter(tmp_path / name)
        file_writer = writer._get_file_writer()
        append = appender(Public(file_writer) if name == "public" else file_writer)
        for step in range(3):
            append(event(step, size=100 * step))
            assert steps_in(tmp_path / name) == list(range(step + 1))
        (path,) = (tmp_path / name).glob("*tfevents*")
        writer.close()
        loaded = [*LegacyEventFileLoader(str(path)).Load()][1:]
        assert loaded == [Event.FromString(event(step, size=100 * step)) for step in range(3)]


def test_nothing_of_the_logger_is_patched(run):
    parts = (run.file_writer, run.file_writer.event_writer, run.file_writer.event_writer._async_writer)
    parts += (parts[-1]._writer, run.file_writer.event_writer._general_file_writer)
    before = [dict(vars(part)) for part in parts]
    run.append(event(0))
    assert [dict(vars(part)) for part in parts] == before


def test_events_follow_those_that_the_logger_was_given_before(run):
    for step in range(20):
        run.writer.add_scalar("loss", 1.0, 2 * step)
        run.append(event(2 * step + 1))
    run.writer.close()
    assert steps_in(run.folder) == list(range(40))


def test_what_other_threads_log_meanwhile_stays_whole(run):
    def log(number):
        for step in range(200):
            run.writer.add_scalar(f"thread {number}", 1.0, 10_000 * number + step)

    threads = [threading.Thread(target=log, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for step in range(200):
        run.append(event(step, size=20_000))
    for thread in threads:
        thread.join()
    run.writer.close()
    steps = steps_in(run.folder)
    for number in range(3):  # each thread's own in its order
        mine = [step - 10_000 * number for step in steps if step // 10_000 == number]
        assert mine == list(range(200))


def test_the_first_event_of_a_file_follows_its_header(tmp_path):
    writer = SummaryWriter(tmp_path)
    append = appender(writer._get_file_writer())
    append(event(0))
    append(event(1))
    writer.close()
    assert steps_in(tmp_path) == [0, 1]
    (path,) = tmp_path.glob("*tfevents*")
    assert next(iter(LegacyEventFileLoader(str(path)).Load())).file_version


@pytest.mark.skipif(backends.events().module is None, reason="without the compiled part the logger writes records itself")
@pytest.mark.parametrize("room", [0, 7, 25])
def test_on_a_full_disk_half_a_record_is_taken_back_and_the_logger_goes_on(run, monkeypatch, room):
    run.append(event(0))
    disk = Limited(monkeypatch, room)
    with pytest.raises(OSError, match="No space left on device"):
        run.append(event(1))
    disk.room = None  # somebody has made room
    run.writer.add_scalar("loss", 1.0, 2)
    run.append(event(3))
    assert steps_in(run.folder) == [0, 2, 3]


def test_an_error_of_the_loggers_own_thread_is_raised(run, monkeypatch):
    thread = run.file_writer.event_writer._async_writer._worker
    monkeypatch.setattr(thread, "exception", OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space left on device"):
        run.append(event(0))
    monkeypatch.undo()


def test_a_file_that_was_deleted_is_created_again_as_the_logger_does(run):
    run.append(event(0))
    (path,) = run.folder.glob("*tfevents*")
    path.unlink()
    run.append(event(1))
    run.writer.add_scalar("loss", 1.0, 2)
    run.writer.flush()
    assert steps_in(run.folder) == [1, 2]


def test_after_closing_the_logger_says_what_it_always_says(run):
    run.file_writer.close()
    with pytest.raises(OSError, match="closed"):
        run.append(event(0))


def test_another_kind_of_file_is_written_the_public_way(tmp_path, monkeypatch):
    writer = SummaryWriter(tmp_path)
    added, add = [], writer._get_file_writer().add_event
    monkeypatch.setattr(writer._get_file_writer(), "add_event", lambda each, *rest: added.append(each.step) or add(each, *rest))
    monkeypatch.setattr(appending, "LocalFileSystem", int)
    append = appender(writer._get_file_writer())
    append(event(0))
    assert added == [0] and steps_in(tmp_path) == [0]
    writer.close()


def test_without_the_compiled_part_it_is_written_the_public_way(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "events", lambda: backends.Decision("numpy", "for a test"))
    writer = SummaryWriter(tmp_path)
    append = appender(writer._get_file_writer())
    for step in range(3):
        append(event(step, size=1000))
        assert steps_in(tmp_path) == list(range(step + 1))
    writer.close()


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


def test_a_killed_run_loses_nothing_that_was_written(tmp_path, tmp_path_factory):
    said = tmp_path_factory.mktemp("said") / "stdout"
    child = forked.start(["-c", KILLED, str(tmp_path)], os.environ, said)
    last = 0
    end = time.monotonic() + 60
    while last < 200 and child.is_alive() and time.monotonic() < end:
        time.sleep(0.01)
        whole = said.read_text().rpartition("\n")[0] if said.exists() else ""
        last = int(whole.rpartition("\n")[2] or 0)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL, said.read_text()
    steps = steps_in(tmp_path)
    assert last >= 200 and steps == list(range(len(steps))) and len(steps) > last
