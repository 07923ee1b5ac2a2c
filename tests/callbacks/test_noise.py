"""The gradient noise scale in real fits: accumulation, a resume, the order of callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_hooks import Apply, GradientTransforms, RuleError, StatsMonitor, StepConsumer, StepView, Watch
from lightning_hooks.transforms import ClipByNorm, Scale
from tests.callbacks._tiny import Line, loader, make
from tests.callbacks.models import Net, adamw, data, trainer_of
from tests.versions import reading

RULE = Watch(params="*", tensors="grad", stats=["noise_scale", "micro_cosine"])
BATCHES = [[[3.0, 1.0]], [[1.0, 2.0]], [[2.0, 2.0]], [[4.0, 0.0]], [[1.0, 1.0]]]


def fit(tmp_path: Path, monitor: StatsMonitor, *others: Any, resume: Path | None = None, **options: Any) -> None:
    options = {"accumulate_grad_batches": 2, "max_epochs": 1, **options}
    trainer = make(tmp_path, monitor, *others, **options)
    trainer.fit(Line(), loader(*BATCHES), ckpt_path=resume, **reading(False if resume else None))


def test_micro_batches_of_an_accumulation_window(tmp_path: Path) -> None:
    views: list[StepView] = []

    class Note(StepConsumer):
        def consume(self, view: StepView) -> None:
            views.append(view)

    fit(tmp_path, StatsMonitor([RULE], consumers=[Note()]))
    cosines = [view.stat("grad", "micro_cosine") for view in views]
    g = torch.tensor([b[0] for b in BATCHES]).double()
    for cosine, (a, b) in zip(cosines, [(g[0], g[1]), (g[2], g[3])], strict=False):
        expected = 2 * (a @ b) / (a @ a + b @ b)
        assert cosine.values[0] == pytest.approx(expected.item(), rel=1e-6)
    assert not cosines[2].measured[0]  # the last window has one batch
    assert views[2].stat("grad", "noise_scale").measured[0]  # the average of those before


def test_the_averages_go_on_after_a_resume(tmp_path: Path) -> None:
    def run(root: Path, epochs: int, resume: Path | None = None) -> float:
        monitor = StatsMonitor([RULE])
        saver = ModelCheckpoint(root, filename="{step}", save_top_k=-1, every_n_epochs=1)
        fit(root, monitor, saver, resume=resume, max_epochs=epochs, enable_checkpointing=True)
        return monitor.latest["run/noise_scale"]

    whole = run(tmp_path / "whole", 2)
    run(tmp_path / "part", 1)
    assert run(tmp_path / "part", 2, resume=tmp_path / "part" / "step=3.ckpt") == whole


def test_damaged_averages_of_one_row_start_the_averages_of_all_rows_again(tmp_path: Path) -> None:
    rule = Watch(params="*", tensors="grad", stats=["noise_scale"])

    def run(checkpoint: Path | None, **options: Any) -> dict[str, float]:
        monitor = StatsMonitor([rule], loggers=[])
        torch.manual_seed(0)
        trainer = trainer_of(tmp_path, monitor, logger=False, accumulate_grad_batches=2, **options)
        trainer.fit(Net(adamw, dropout=0.0), data(4), ckpt_path=checkpoint, **reading(False if checkpoint else None))
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return {tag: value for tag, value in monitor.latest.items() if "noise_scale" in tag}

    run(None, max_epochs=1)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)
    state = saved.pop("lightning_hooks.StatsMonitor")
    torch.save(saved, tmp_path / "without.ckpt")
    noise = state["watch/0"]["noise"]
    assert len(noise) > 2
    noise["grad/body.0.bias"] = [1.0, "x"]
    torch.save({**saved, "lightning_hooks.StatsMonitor": state}, tmp_path / "damaged.ckpt")
    said = (
        r"^StatsMonitor: the checkpoint is damaged, and its state starts again: state.noise\['grad/body.0.bias'\]\[1\] must be"
    )
    with pytest.warns(UserWarning, match=said):
        damaged = run(tmp_path / "damaged.ckpt", max_epochs=2)
    assert damaged == pytest.approx(run(tmp_path / "without.ckpt", max_epochs=2), nan_ok=True) and damaged


def test_a_step_transform_before_the_monitor_is_refused_and_after_it_is_fine(tmp_path: Path) -> None:
    clip = GradientTransforms([Apply(ClipByNorm(1.0), params="*")])
    with pytest.raises(RuleError, match=r"^watch: 'micro_cosine' compares .* put StatsMonitor before GradientTransforms$"):
        trainer = make(tmp_path, clip, StatsMonitor([RULE]), max_epochs=1)
        trainer.fit(Line(), loader(*BATCHES))
    fit(tmp_path, StatsMonitor([RULE]), clip)


def test_a_backward_transform_counts_on_both_sides(tmp_path: Path) -> None:
    plain, scaled = StatsMonitor([RULE]), StatsMonitor([RULE])
    fit(tmp_path, plain)
    fit(tmp_path, scaled, GradientTransforms([Apply(Scale(0.5), params="*", when="backward")]))
    tag = "grad_noise_scale/layer.weight"
    assert scaled.latest[tag] == pytest.approx(plain.latest[tag], rel=1e-6)
