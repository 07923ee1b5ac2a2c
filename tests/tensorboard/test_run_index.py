import os
import re
import time
import tracemalloc
from functools import partial

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks import RuleError
from lightning_hooks.tensorboard import read_run
from lightning_hooks.tensorboard.event_file import EventFile
from lightning_hooks.tensorboard.messages import checksum
from lightning_hooks.tensorboard.run_index import RunIndex

from ..dashboard.runs import NAMES, refuse_to_open
from ..dashboard.runs import write_run as write

write_run = partial(write, old=True)  # the names of the vectors are those of statistics


def file_of(folder):
    (file,) = folder.glob("*tfevents*")
    return file


def table(index, stat="norm", tensor="grad"):
    where = index.table_points(tensor, stat)
    return where.steps.tolist(), index.read_table(tensor, stat, where)


def test_some_steps_of_a_table(tmp_path):
    written = write_run(tmp_path, range(0, 90, 3))
    index = RunIndex(tmp_path)
    assert index.rows("grad", "norm") == NAMES
    where = index.table_points("grad", "norm").at(slice(10, 21))
    assert where.steps.tolist() == list(range(30, 61, 3))
    expected = np.array([written[step]["norm"] for step in range(30, 61, 3)], dtype=np.float32)
    np.testing.assert_array_equal(index.read_table("grad", "norm", where), expected)
    assert where.wall_times.tolist() == [1000.0 + step for step in range(30, 61, 3)]


def test_a_file_is_followed_while_it_grows_byte_by_byte(tmp_path):
    source, growing = tmp_path / "source", tmp_path / "growing"
    write_run(source, range(6), histograms=True)
    whole = file_of(source).read_bytes()
    growing.mkdir()
    target = growing / file_of(source).name
    target.write_bytes(b"")
    index = RunIndex(growing)
    seen = []
    for size in [*range(0, len(whole), 97), len(whole)]:
        target.write_bytes(whole[:size])
        index.refresh()
        steps = table(index)[0] if ("grad", "norm") in index.vectors() else []
        assert steps == list(range(len(steps)))
        assert not seen or len(steps) >= seen[-1]
        seen.append(len(steps))
    assert seen[-1] == 6 and {*seen} == {*range(7)}


@pytest.mark.parametrize("damage", ["cut", "zeros", "noise"])
def test_a_damaged_end_is_not_read(tmp_path, damage):
    written = write_run(tmp_path, range(8))
    file = file_of(tmp_path)
    content = bytearray(file.read_bytes())
    if damage == "cut":
        del content[-50:]
    else:
        content[-50:] = bytes(50) if damage == "zeros" else os.urandom(50)
    file.write_bytes(content)
    steps, values = table(RunIndex(tmp_path))
    assert steps == list(range(7))
    np.testing.assert_array_equal(values, np.array([written[s]["norm"] for s in steps], dtype=np.float32))


def records_of(content):
    """Where the data of each record begins, and how long it is."""
    found, at = [], 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        found.append((at + 12, length))
        at += 12 + length + 4
    return found


@pytest.mark.parametrize("part", ["all", "tag", "sizes"])
def test_a_damaged_event_in_the_middle_is_skipped_with_a_warning(tmp_path, part):
    written = write_run(tmp_path, range(12), histograms=True)
    file = file_of(tmp_path)
    content = bytearray(file.read_bytes())
    holds = [(at, length) for at, length in records_of(content) if b"grad/norm" in content[at : at + length]]
    for at, length in (holds[3], holds[7]):
        if part == "all":
            content[at : at + length] = os.urandom(length)
        else:
            begin = content.index(b"table/grad/norm", at)
            content[begin + 2 if part == "tag" else begin - 1] ^= 0x41
    file.write_bytes(content)
    said = rf"^{re.escape(str(file))}: damaged events are not read \(2; the first begins at byte {holds[3][0] - 12}\)$"
    with pytest.warns(UserWarning, match=said):
        index = RunIndex(tmp_path)
    steps, values = table(index)
    assert steps == [step for step in range(12) if step not in (3, 7)]
    np.testing.assert_array_equal(values, np.array([written[s]["norm"] for s in steps], dtype=np.float32))
    assert not index.refresh()
    with pytest.warns(UserWarning, match=said):
        assert [step for step, *_ in read_run(tmp_path).histograms[f"grad_histogram/{NAMES[0]}"]] == steps


def test_a_damaged_length_ends_what_is_read_with_a_warning(tmp_path):
    write_run(tmp_path, range(12))
    file = file_of(tmp_path)
    content = bytearray(file.read_bytes())
    at, _ = [(at, length) for at, length in records_of(content) if b"grad/norm" in content[at : at + length]][5]
    content[at - 12] ^= 1
    file.write_bytes(content)
    with pytest.warns(UserWarning, match=rf"^{re.escape(str(file))}: what follows byte {at - 12} is damaged and is not read$"):
        index = RunIndex(tmp_path)
    assert table(index)[0] == list(range(5))
    assert not index.refresh()


def announced(length):
    """The head of a record that is said to have so many bytes."""
    head = length.to_bytes(8, "little")
    return head + checksum(head).to_bytes(4, "little")


@pytest.mark.parametrize("length", [10**12, 2**64 - 1])
def test_a_record_longer_than_any_message_ends_what_is_read_with_a_warning(tmp_path, length):
    write_run(tmp_path, range(4))
    file = file_of(tmp_path)
    end = file.stat().st_size
    with file.open("ab") as opened:
        opened.write(announced(length) + b"x" * 50)
    said = (
        f"what follows byte {end} is not read: a record there is said to have {length} bytes, and none has more than 2147483647"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(str(file))}: {said}$"):
        index = RunIndex(tmp_path)
    assert table(index)[0] == [0, 1, 2, 3] and index.problems() == [f"{file.name}: {said}"]
    assert not index.refresh()


def test_a_record_that_is_still_being_written_takes_no_memory(tmp_path):
    write_run(tmp_path, range(4))
    with file_of(tmp_path).open("ab") as opened:
        opened.write(announced(2**31 - 1) + b"x" * 50)
    tracemalloc.start()
    index = RunIndex(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert table(index)[0] == [0, 1, 2, 3] and index.problems() == [] and most < 2**26


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path, monkeypatch):
    write_run(tmp_path, range(4))
    other = tmp_path / "events.out.tfevents.9999999999.other"
    other.write_bytes(b"x")
    with monkeypatch.context() as patched:
        refuse_to_open(patched, other)
        said = rf"^{re.escape(str(other))}: cannot be read \(Permission denied\)$"
        with pytest.warns(UserWarning, match=said):
            index = RunIndex(tmp_path)
        assert table(index)[0] == [0, 1, 2, 3]
        assert index.problems() == [f"{other.name}: cannot be read (Permission denied)"]
        assert not index.refresh()
        with pytest.warns(UserWarning, match=said):
            assert read_run(tmp_path).table("grad", "norm").steps.tolist() == [0, 1, 2, 3]
        refuse_to_open(patched, *tmp_path.glob("*tfevents*"))
        with (
            pytest.warns(UserWarning),
            pytest.raises(RuleError, match=r"^no event file in .*; .*: cannot be read \(Permission"),
        ):
            read_run(tmp_path)
    assert index.refresh() and index.problems() == [] and len(index.files) == 2


def test_histograms_of_several_tags_at_some_steps(tmp_path):
    write_run(tmp_path, range(0, 90, 3), histograms=True)
    write_run(tmp_path, range(60, 120, 3), histograms=True)  # a resume: the later file counts
    index, tags = RunIndex(tmp_path), [f"grad_histogram/{name}" for name in NAMES[:2]]
    found = index.histograms([*tags, "grad_histogram/nope"], 4)
    assert {tag: [step for step, _ in points] for tag, points in found.items()} == {
        tags[0]: [0, 39, 78, 117],
        tags[1]: [0, 39, 78, 117],
        "grad_histogram/nope": [],
    }
    for tag in tags:
        every = index.histograms([tag], 1000)[tag]
        points = index.points(tag)
        assert [step for step, _ in every] == points.steps.tolist() == [*range(0, 120, 3)]
        assert [payload for _, payload in every] == [index.payload(points, i) for i in range(len(points.steps))]


def test_a_damaged_histogram_is_read_as_an_empty_one_with_a_warning(tmp_path):
    write_run(tmp_path, range(6), histograms=True)
    file = file_of(tmp_path)
    content = bytearray(file.read_bytes())
    edges = read_run(tmp_path).histograms[f"grad_histogram/{NAMES[0]}"][3][1].tobytes()
    at = [at for at, length in records_of(content) if b"grad/norm" in content[at : at + length]][3]
    content[content.index(edges, at) - 1] ^= 0x20  # their size
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="^a damaged histogram is read as an empty one"):
        histograms = read_run(tmp_path).histograms
    damaged = [(tag, step) for tag, points in histograms.items() for step, edges, _ in points if not len(edges)]
    assert len(damaged) == 1
    assert len(histograms[f"grad_histogram/{NAMES[0]}"]) == 6


def test_what_a_process_left_half_written_is_read_when_it_goes_on(tmp_path):
    write_run(tmp_path, range(4))
    file = file_of(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[:-30])
    index = RunIndex(tmp_path)
    assert table(index)[0] == [0, 1, 2]
    file.write_bytes(content)
    assert index.refresh()
    assert table(index)[0] == [0, 1, 2, 3]
    assert not index.refresh()


def test_a_file_that_became_shorter_is_read_again(tmp_path):
    write_run(tmp_path / "a", range(9))
    write_run(tmp_path / "b", range(100, 103))
    index = RunIndex(file_of(tmp_path / "a"))
    file_of(tmp_path / "a").write_bytes(file_of(tmp_path / "b").read_bytes())
    assert index.refresh()
    assert table(index)[0] == [100, 101, 102]
    file_of(tmp_path / "a").write_bytes(b"")
    assert index.refresh() and not index.vectors()
    assert not index.refresh()


def test_what_a_file_that_became_shorter_no_longer_holds_is_nan(tmp_path):
    written = write_run(tmp_path, range(10))
    index = RunIndex(tmp_path)
    where = index.table_points("grad", "norm")
    os.truncate(file_of(tmp_path), int(where.starts[7]) + 6)  # in the middle of a number
    values = index.read_table("grad", "norm", where)
    np.testing.assert_array_equal(values[:7], [np.float32(written[step]["norm"]) for step in range(7)])
    assert np.isnan(values[7:]).all()


def test_after_a_resume_the_later_file_counts(tmp_path):
    write_run(tmp_path, range(10))
    time.sleep(1.1)  # the name of a file holds the second

    def change(step, values):
        values["norm"][:] = -step

    write_run(tmp_path, range(6, 12), names=(*NAMES[:2], "new.weight"), change=change)
    index = RunIndex(tmp_path)
    steps, values = table(index)
    assert steps == list(range(12))
    assert index.rows("grad", "norm") == (*NAMES, "new.weight")
    assert values[8].tolist() == pytest.approx([-8, -8, np.nan, np.nan, -8], nan_ok=True)
    assert np.isnan(values[5, 4]) and values[5, 3] > 0


def test_a_new_file_of_the_run_is_found(tmp_path):
    write_run(tmp_path, range(3))
    index = RunIndex(tmp_path)
    time.sleep(1.1)
    write_run(tmp_path, range(3, 5))
    assert index.refresh()
    assert table(index)[0] == [0, 1, 2, 3, 4]


def test_a_scalar_is_read_once_until_the_run_grows(tmp_path, monkeypatch):
    write_run(tmp_path, range(3), scalars={"loss": 1.0})
    index, floats, reads = RunIndex(tmp_path), EventFile.floats, []

    def counted(*args):
        reads.append(1)
        return floats(*args)

    monkeypatch.setattr(EventFile, "floats", counted)
    assert [index.numbers("loss")[0].tolist() for _ in range(2)] == [[0, 1, 2]] * 2 and len(reads) == 1
    write_run(tmp_path, [3], scalars={"loss": 2.0})
    assert index.refresh()
    assert index.numbers("loss")[1].tolist() == [1.0, 1.0, 1.0, 2.0]


def test_events_of_others_lie_between(tmp_path):
    writer = SummaryWriter(tmp_path)
    for step in range(40):
        writer.add_scalar("loss", 1.0 / (step + 1), step)
        writer.add_scalar("lr_", step, step)  # as long as the other tag
        if step % 7 == 0:
            writer.add_histogram("h", np.arange(10.0), step)
            writer.add_text("note", f"at {step}", step)
    writer.close()
    run = read_run(tmp_path)
    assert run.scalars["loss"][0].tolist() == list(range(40))
    np.testing.assert_allclose(run.scalars["loss"][1], [1 / (s + 1) for s in range(40)], rtol=1e-6)
    assert run.scalars["lr_"][1].tolist() == list(range(40))
    assert [step for step, _, _ in run.histograms["h"]] == [0, 7, 14, 21, 28, 35]
    assert run.texts["note/text_summary"] == "at 35"


def test_events_with_a_short_tag_share_a_layout(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for step in range(50):
            writer.add_scalar("loss", step / 7, step)
            writer.add_scalar("lr", step / 3, step)
    run = RunIndex(tmp_path)
    assert len(run.files[0]._layouts) == 2
    np.testing.assert_array_equal(run.numbers("loss")[1], np.arange(50, dtype=np.float32) / np.float32(7))


def test_a_step_may_be_negative(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("before", 1.0, -1)
        writer.add_scalar("before", 2.0, 3)
    steps, values = RunIndex(tmp_path).numbers("before")
    assert steps.tolist() == [-1, 3] and values.tolist() == [1.0, 2.0]
