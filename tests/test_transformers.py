"""The callback for the Trainer of `transformers`: its steps are those of the optimizer, and it changes no weight."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_hooks import (
    Apply,
    FlightRecorder,
    GradientTransforms,
    HealthMonitor,
    RuleError,
    StatsMonitor,
    Watch,
    assert_no_hooks,
)
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.transforms import ClipByGlobalNorm

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from lightning_hooks.transformers import HooksTrainerCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

BATCH, LENGTH, WIDTH = 2, 6, 8
RULES = [
    Watch(modules="transformer.h.0.mlp", tensors="output", stats="norm"),
    Watch(params="*", tensors=["grad", "final_grad", "update"], stats="norm"),
]


class Views(StepConsumer):
    def __init__(self) -> None:
        self.views: list[Any] = []

    def consume(self, view: Any) -> None:
        self.views.append(view)


def model() -> Any:
    torch.manual_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "vocab_size": 11, "n_positions": 8}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))


def samples(count: int = 24) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(3, 11, (count, LENGTH), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": each, "labels": each} for each in tokens]


def train(root: Path, *callbacks: Any, resume: bool = False, schedule: Any = None, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(root),
            "per_device_train_batch_size": BATCH,
            "max_steps": 4,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "learning_rate": 0.01,
            "logging_strategy": "no",
            **options,
        }
    )
    network, own = model(), {}
    if schedule is not None:
        optimizer = torch.optim.AdamW(network.parameters(), 0.01)
        own = {"optimizers": (optimizer, schedule(optimizer))}
    trainer = transformers.Trainer(
        network, arguments, train_dataset=samples(), eval_dataset=samples(10), callbacks=[*callbacks], **own
    )
    trainer.train(resume_from_checkpoint=resume or None)
    assert_no_hooks(trainer.model)
    assert not trainer.model._forward_hooks
    return trainer


def watched(*callbacks: Any) -> tuple[Any, Views]:
    views = Views()
    return HooksTrainerCallback([StatsMonitor(RULES, consumers=[views]), *callbacks]), views


def counts(view: Any) -> dict[str, int]:
    index = view.rows
    rows = range(len(index.names))
    return {index.names[i]: int(view.moments[i, 0]) for i in rows if index.tensors[i] == "output"}


WAYS = {
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    "reentrant checkpointing": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "evaluation before the first step": {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_step_is_measured_with_its_own_batches_and_no_weight_changes(tmp_path: Path, way: str) -> None:
    plain = train(tmp_path / "plain", **WAYS[way])
    callback, seen = watched()
    trainer = train(tmp_path / "watched", callback, **WAYS[way])
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, plain.model.get_parameter(name)), name
    assert [view.step for view in seen.views] == [0, 1, 2, 3]
    for view in seen.views:
        assert counts(view) == {"transformer.h.0.mlp": BATCH * LENGTH * WIDTH}
    values = callback.watched.latest
    assert values["run/grad_norm"] > 0 and values["update_norm/transformer.wte.weight"] > 0


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_loss_is_that_of_the_trainer(tmp_path: Path, accumulate: int) -> None:
    callback, seen = watched()
    options = {"gradient_accumulation_steps": accumulate, "logging_strategy": "steps", "logging_steps": 1}
    trainer = train(tmp_path, callback, **options)
    logged = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    assert [view.summaries["run/loss"] for view in seen.views] == pytest.approx(logged, abs=1e-3)


def test_a_training_that_resumes_goes_on_with_its_steps(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    whole, all_steps = watched()
    train(tmp_path / "whole", whole, **options)
    first, _ = watched()
    train(tmp_path / "cut", first, **{**options, "max_steps": 2})
    second, rest = watched()
    train(tmp_path / "cut", second, resume=True, **options)
    assert [view.step for view in rest.views] == [2, 3]
    for view, again in zip(all_steps.views[2:], rest.views, strict=True):
        np.testing.assert_allclose(view.moments[:, :3], again.moments[:, :3], rtol=1e-6)  # count, mean, square


def test_with_a_rule_that_clips_the_gradient_is_read_before_and_after(tmp_path: Path) -> None:
    """The Trainer clips before any callback is told, so `grad` is what is left; a rule of ours clips after `grad` is read."""
    clipped, _ = watched()
    train(tmp_path / "trainer", clipped, max_grad_norm=0.01, max_steps=1)
    by_rule, _ = watched(GradientTransforms([Apply(ClipByGlobalNorm(0.01), params="*")]))
    train(tmp_path / "rule", by_rule, max_grad_norm=0.0, max_steps=1)
    of_trainer, of_rule = clipped.watched.latest, by_rule.watched.latest
    assert of_trainer["run/grad_norm"] == pytest.approx(0.01, rel=1e-3)
    assert of_rule["run/grad_norm"] > 1 and of_rule["run/final_grad_norm"] == pytest.approx(0.01, rel=1e-3)


def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(RuleError, match=r"^callbacks\[0\] must be a callback of lightning_hooks, got Watch.*; put rules into"):
        HooksTrainerCallback(RULES)
    with pytest.raises(RuleError, match="^calls must be one of"):
        HooksTrainerCallback(calls="trainng")


def test_without_a_list_it_watches_and_says_whether_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = HooksTrainerCallback(logdir=tmp_path / "runs")
    train(tmp_path, callback)
    assert callback.watched.latest["grad_norm/transformer.wte.weight"] > 0
    assert (tmp_path / "runs" / "run_0" / "summary.json").exists() and "no problem found" in capsys.readouterr().err.lower()


def test_a_flight_record_counts_the_batches_that_are_accumulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, calls = transformers.GPT2LMHeadModel.forward, []

    @functools.wraps(forward)  # the Trainer looks at the signature
    def spoiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(self, *args, **kwargs)
        calls.append(None)
        if len(calls) == 4:  # the second batch of the second step
            output.loss = output.loss * float("nan")
        return output

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", spoiled)
    recorder = FlightRecorder()
    train(tmp_path, HooksTrainerCallback([recorder]), gradient_accumulation_steps=2, max_grad_norm=0.0)
    assert recorder.record is not None and recorder.record.place is not None
    place = recorder.record.place
    assert (place.step, place.micro_batch) == (1, 1)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3),
            "CosineAnnealingLR ends after 3 advances, which is the number of epochs of this fit, but it is advanced after each "
            "step, 36 times.",
        ),
        (lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 36), None),
        (None, None),
    ],
    ids=["of epochs", "of steps", "the Trainer's own"],
)
def test_a_schedule_of_epochs_is_told_before_the_first_update(tmp_path: Path, schedule: Any, said: str | None) -> None:
    monitor = HealthMonitor(rules=["ScheduleAtOtherPace", "ScheduleEndsEarly", "WarmUpOutlastsFit"])
    callback = HooksTrainerCallback([StatsMonitor(loggers=[]), monitor])
    train(tmp_path, callback, schedule=schedule, max_steps=-1, num_train_epochs=3)
    assert [(each.message, each.first_step) for each in monitor.findings] == ([] if said is None else [(said, 0)])
