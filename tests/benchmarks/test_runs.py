"""The workloads are what the issue says, and the benchmarks run; no time is asserted."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.tensorboard import SummaryWriter

from benchmarks import check, dashboard, histograms, modes, peers, readers, step_parts, whole_fits
from benchmarks.alternating import measure
from benchmarks.blocks import OFF, Layout
from benchmarks.clock import fit, values_of
from benchmarks.mean_steps import steps_at
from benchmarks.modes import CallbackMode, IdleHooks, everything, monitor_mode
from benchmarks.naive import NaiveMode
from benchmarks.scaling import memory, rows_of
from benchmarks.workloads import WORKLOADS, chain
from lightning_hooks import assert_no_hooks

TINY = chain(12)


@pytest.mark.parametrize(("letter", "parameters"), [("A", 22), ("B", 62), ("C", 77), ("D", 581)])
def test_workloads_have_their_parameters_and_a_finite_loss(letter: str, parameters: int) -> None:
    module, loader = WORKLOADS[letter].make(1)
    assert len(list(module.parameters())) == parameters
    (batch,) = loader
    assert math.isfinite(module.training_step(batch, 0).item())


def test_a_workload_is_the_same_each_time() -> None:
    made = [TINY.make(2) for _ in range(2)]
    (first, one), (second, two) = made
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(one, two, strict=True))


def test_a_variant_runs_and_says_what_it_measured() -> None:
    row = measure(TINY, "everything", Layout((OFF, "everything"), rounds=2, length=2))
    assert row["median"] > 0 and row["low"] <= row["median"] <= row["high"]


def test_readers_run_alone_and_together() -> None:
    rows = readers.measure(TINY, seconds=0.0, least=1)
    assert [row["who"] for row in rows] == [*readers.READERS, readers.TOGETHER]


def test_whole_fits_have_a_row_for_each_list_of_callbacks() -> None:
    rows = whole_fits.measure("A", rounds=1, steps=whole_fits.EARLY + 2, sizes="tiny")
    assert [row["what"] for row in rows] == [name for name in whole_fits.LISTS if name != whole_fits.NOTHING]
    assert all(row["whole"] > 0 and row["mean"] > 0 and row["late"] > 0 for row in rows)


def test_whole_fits_are_not_shorter_than_the_steps_that_a_mean_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        whole_fits.main(["--steps", str(whole_fits.EARLY)])
    assert "--steps must be greater than 50" in capsys.readouterr().err


def test_default_histograms_are_drawn_once_in_a_block() -> None:
    layout = histograms.layout_of(1)
    assert histograms.measure_with(TINY, layout)["median"] > 0
    assert len(steps_at(50, "default", layout)) == 1


@pytest.mark.parametrize("name", ["default", "transforms", "bf16", "accumulation", "validation"])
def test_what_people_run_is_measured_and_compared_with_what_the_event_file_says(name: str) -> None:
    layout = Layout((OFF, name), rounds=2, length=2, warmup=2, lead=3)
    row = measure(TINY, name, layout)
    assert row["median"] > 0 and 0.0 < row["overhead"] < 1.0


def test_an_accumulated_step_is_timed_with_all_its_batches() -> None:
    seen = Seen()
    layout = Layout((OFF, "seen"), rounds=2, length=2)
    module, loader = TINY.make(4 * layout.steps)
    clock = fit(module, loader, layout, [CallbackMode("seen", seen)], options={"accumulate_grad_batches": 4})
    assert sorted(clock.begun) == list(range(layout.steps))
    assert [len(block) for name in layout.modes for block in clock.blocks(name)] == [2] * 4
    assert {batch // 4 for batch in seen.steps} >= {s for s in range(layout.steps) if layout.mode_at(s) == "seen"}


def test_the_scalars_of_a_tag_are_read_from_event_files(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        for step in range(3):
            writer.add_scalar("run/overhead", step / 4, step)
            writer.add_scalar("run/overhead_of_another", 1.0, step)
    assert values_of("run/overhead", tmp_path) == {0: 0.0, 1: 0.25, 2: 0.5}


def test_hooks_that_do_nothing_are_called_in_their_blocks_only_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    called = {"outputs": 0, "gradients": 0}
    pass_on, ignore = modes._pass_on, modes._ignore

    def count_output(*args: Any) -> None:
        called["outputs"] += 1
        pass_on(*args)

    def count_gradient(grad: torch.Tensor) -> None:
        called["gradients"] += 1
        ignore(grad)

    monkeypatch.setattr(modes, "_pass_on", count_output)
    monkeypatch.setattr(modes, "_ignore", count_gradient)
    layout = Layout((OFF, "idle"), rounds=2, length=2)
    module, loader = TINY.make(layout.steps)
    leaves = sum(not any(part.children()) for part in module.modules())
    fit(module, loader, layout, [IdleHooks("idle")])
    steps = sum(layout.mode_at(step) == "idle" for step in range(layout.steps))
    assert called["outputs"] == leaves * steps and called["gradients"] == leaves * steps
    assert not any(part._forward_hooks for part in module.modules())


class Seen(Callback):
    """Notes at which steps it is in the trainer."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps.append(batch_idx)


def test_a_run_may_begin_in_a_mode() -> None:
    seen = Seen()
    layout = Layout(("seen",), rounds=1, length=2, lead=0)
    fit(*TINY.make(layout.steps), layout, [CallbackMode("seen", seen)])
    assert seen.steps[:4] == [0, 1, 2, 3]


def test_a_step_is_its_methods_and_the_rest() -> None:
    rows = step_parts.measure(TINY, step_parts.VARIANTS["everything"], 6)
    assert [row["part"] for row in rows] == [
        "StatsMonitor.on_train_batch_start",
        "StatsMonitor.on_before_optimizer_step",
        "HooksGuard.on_train_batch_end",
        "StatsMonitor.on_train_batch_end",
        step_parts.REST,
        step_parts.WHOLE,
    ]
    assert all(0 < row[key] <= rows[-1][key] for row in rows for key in ("watched_us", "unwatched_us"))


def test_where_transforms_report_their_call_and_what_they_give_are_timed() -> None:
    rows = {row["part"]: row for row in step_parts.measure(TINY, step_parts.VARIANTS["reports"], 6)}
    call = rows["GradientTransforms.on_before_optimizer_step"]
    assert call["watched_us"] > 0 < call["unwatched_us"]
    assert rows[step_parts.TAKING]["watched_us"] > 0 == rows[step_parts.TAKING]["unwatched_us"]
    whole = sum(row["unwatched_us"] for part, row in rows.items() if part not in (step_parts.TAKING, step_parts.WHOLE))
    assert whole == pytest.approx(rows[step_parts.WHOLE]["unwatched_us"], rel=0.5)  # a sum of medians


def test_a_run_without_a_watched_step_has_no_watched_times() -> None:
    rows = step_parts.measure(TINY, step_parts.VARIANTS["unwatched"], 6)
    assert all(row["watched_us"] == 0 < row["unwatched_us"] for row in rows)


def test_without_a_browser_what_it_shows_and_takes_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    rows = dashboard.browser_rows(str(tmp_path))
    assert len(rows) == 3 and {row["skipped"] for row in rows} == {"no Chromium with Playwright"}


def test_what_is_weighed_is_a_model_that_is_watched() -> None:
    row = memory(12)  # which counts the hooks
    assert row["rows"] == rows_of(TINY.make(0)[0]) and row["bytes"] / row["rows"] / 1e3 == row["mb_per_1000_rows"]


def test_each_mode_is_there_in_its_own_steps_only() -> None:
    layout = Layout((OFF, "ours", "naive", "seen"), rounds=2, length=2)
    module, loader = TINY.make(layout.steps)
    ours, naive, seen = monitor_mode("ours", everything(), layout), NaiveMode(), Seen()
    clock = fit(module, loader, layout, [ours, naive, CallbackMode("seen", seen)])
    own = [step for step in range(layout.steps) if layout.index_in_block(step) >= 0 and layout.mode_at(step) == "seen"]
    assert set(own) <= set(seen.steps)
    assert all(layout.index_in_block(step) == 0 for step in set(seen.steps) - set(own))  # it goes one step late
    assert [len(block) for name in layout.modes for block in clock.blocks(name)] == [2] * 8
    assert_no_hooks(module)
    assert not any(part._forward_hooks for part in module.modules())


def test_without_wandb_the_peers_are_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(peers, "_PAUSE", 0.0)
    rows = peers.measure(replace(TINY, step_ms=300.0), seconds=0.0, least=1)
    assert [row["who"] for row in rows] == ["lightning_hooks", "naive", "wandb.watch"]
    assert "wandb" in rows[-1]["skipped"] and all("median" in row for row in rows[:2])


def test_what_check_takes_is_measured_and_a_workload_passes() -> None:
    row = check.measure("A", "tiny")
    assert row["verdict"].endswith("passed, 1 skipped") and row["parameters"] > 0
    assert set(row["by_check"]) >= {"StepRuns", "InputNotNormalised"} and row["seconds"] > 0 and row["steps"] > 0
