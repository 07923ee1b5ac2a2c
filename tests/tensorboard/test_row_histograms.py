"""The histograms of every row in the tables of a run: as they were measured, however few TensorBoard draws."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks import StatsMonitor, Watch, read_run
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.histograms import RowHistograms
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.stored_counts import BUCKETS
from lightning_hooks.tensorboard import StepEventWriter
from lightning_hooks.tensorboard.events import EventBuilder
from lightning_hooks.tensorboard.row_histograms import RIGHT_EDGES
from tests.callbacks.models import Net, data, trainer_of

NAMES = tuple(f"blocks.{i}" for i in range(24))


class Views(StepConsumer):
    def __init__(self) -> None:
        self.seen: list[StepView] = []

    def consume(self, view: StepView) -> None:
        self.seen.append(view)


def whole(point: tuple[int, np.ndarray, np.ndarray]) -> np.ndarray:
    """The counts of all buckets of a histogram that was read."""
    _, edges, counts = point
    found = np.zeros(BUCKETS)
    found[np.searchsorted(RIGHT_EDGES, edges)] = counts
    return found


def write(folder: Path, *entries: LogEntry) -> None:
    with SummaryWriter(folder) as writer:
        for entry in entries:
            StepEventWriter(writer).write(entry)


def of_step(step: int, names: tuple[str, ...] = NAMES, rows: tuple[int, ...] = tuple(range(24)), prefix: str = "") -> LogEntry:
    """A step whose row `i` has `step + i + 1` elements in one bucket."""
    counts = np.zeros((len(rows), BUCKETS))
    counts[range(len(rows)), 300] = np.array(rows) + step + 1
    return LogEntry(step, prefix=prefix, row_histograms=[RowHistograms("output", names, np.array(rows), counts)])


def elements(points: list[tuple[int, np.ndarray, np.ndarray]]) -> dict[int, float]:
    return {step: float(counts.sum()) for step, _, counts in points}


def test_every_row_has_the_histogram_that_was_measured(tmp_path: Path) -> None:
    views, board = Views(), TensorBoardLogger(tmp_path)
    watch = [Watch(params="*", tensors=("grad", "param")), Watch(modules="*", select="layers", tensors="output")]
    monitor = StatsMonitor(watch, max_histograms=3, histogram_every_n_steps=3, consumers=[views])
    with pytest.warns(UserWarning, match=r"histograms are more than max_histograms=3: 3 are written, .*tables have every row"):
        trainer_of(tmp_path, monitor, logger=board).fit(Net(dropout=0.0), data())
    run, local = read_run(board.log_dir), LocalRun(Path(board.log_dir))
    assert len(run.histograms) == 3 and len(local.histogram_tags()) == 4 + 4 + 4
    for tensor in ("grad", "param", "output"):
        rows, names = views.seen[0].rows.of(tensor)
        for row, name in zip(rows.tolist(), names, strict=True):
            points = run.histogram(tensor, name)
            assert [step for step, _, _ in points] == [2, 5]
            for point in points:
                assert np.array_equal(whole(point), views.seen[point[0]].histogram([row])[0])
            shown = local.histograms([f"watch/{tensor}_histogram/{name}"], 60)
            for point, again in zip(points, shown[f"watch/{tensor}_histogram/{name}"], strict=True):
                assert point[0] == again[0] and np.array_equal(point[2], again[2])


def test_twenty_four_blocks_are_twenty_four_rows(tmp_path: Path) -> None:
    write(tmp_path, *map(of_step, (0, 50, 100)))
    run = LocalRun(tmp_path)
    assert run.histogram_tags() == [f"watch/output_histogram/{name}" for name in NAMES]
    read = run.histograms(run.histogram_tags(), 60)
    assert [elements(read[tag]) for tag in run.histogram_tags()] == [{s: s + i + 1 for s in (0, 50, 100)} for i in range(24)]
    assert [step for step, _, _ in run.histograms(run.histogram_tags()[:1], 2)["watch/output_histogram/blocks.0"]] == [0, 100]


def test_a_row_that_was_not_written_has_no_histogram_at_that_step(tmp_path: Path) -> None:
    write(tmp_path, of_step(0, ("a", "b"), (1,)), of_step(1, ("a", "b"), (0, 1)), of_step(2, ("b",), (0,)))
    run = read_run(tmp_path)
    assert elements(run.histogram("output", "a")) == {1: 2.0}
    assert elements(run.histogram("output", "b")) == {0: 2.0, 1: 3.0, 2: 3.0}  # of two lists of rows


def test_a_step_that_was_written_again_has_its_last_histogram(tmp_path: Path) -> None:
    write(tmp_path, of_step(0, ("a",), (0,)), of_step(1, ("a",), (0,)))
    write(tmp_path, of_step(1, ("x", "a"), (0, 1)))
    assert elements(read_run(tmp_path).histogram("output", "a")) == {0: 1.0, 1: 3.0}


def test_histograms_of_tensorboard_are_shown_where_no_table_has_those_of_rows(tmp_path: Path) -> None:
    drawn = {"histogram_tags": ["watch/grad_histogram/block", "mine"], "histogram_counts": np.eye(BUCKETS)[[3, 4]]}
    write(tmp_path, LogEntry(0, **drawn), LogEntry(1, prefix="watch/val/", row_histograms=of_step(1).row_histograms))
    assert LocalRun(tmp_path).histogram_tags()[-3:] == [
        "watch/val/output_histogram/blocks.23",
        "watch/grad_histogram/block",
        "mine",
    ]
    write(tmp_path / "both", LogEntry(0, **{**drawn, "histogram_tags": ["watch/output_histogram/blocks", "mine"]}), of_step(0))
    tags = LocalRun(tmp_path / "both").histogram_tags()
    assert tags[-1] == "mine" and len(tags) == 25  # The sum over the blocks is not shown beside them.


def test_a_damaged_histogram_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.tensorboard.events.encode_counts", lambda counts: [b"\x05"] * len(counts))
    write(tmp_path, of_step(0))
    monkeypatch.undo()
    write(tmp_path, of_step(1))
    run = read_run(tmp_path)
    with pytest.warns(
        UserWarning, match=r"^a damaged histogram of step 0 is left out \(the bytes end within the head of a run"
    ):
        assert elements(run.histogram("output", "blocks.0")) == {1: 2.0}


def test_both_ways_to_write_an_event_write_them() -> None:
    """As a message, and into a template, which the second event of a kind and those after it fill."""
    builder, plain = EventBuilder(), EventBuilder()
    events = [builder.serialized(of_step(step)) for step in range(4)]
    assert events == [plain.summary(of_step(step)).SerializeToString() for step in range(4)]
    assert len(events[0]) > len(events[1]) == len(events[2])  # The names of the rows are written once.
    assert len(events[1]) < 24 * 8 + 60


def test_a_monitor_with_a_prefix_has_its_own(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path)
    watch = [Watch(modules="body.0", tensors="output", stats="histogram")]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer_of(tmp_path, StatsMonitor(watch, prefix="mine/"), logger=board).fit(Net(), data())
    assert LocalRun(Path(board.log_dir)).histogram_tags() == ["watch/mine/output_histogram/body.0"]
    assert len(read_run(board.log_dir).histogram("output", "body.0", prefix="mine/")) == 1
