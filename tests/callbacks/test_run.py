"""The run of a Trainer: begun once and ended once, whatever callbacks of this package are in the list."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer

from lightning_hooks import Apply, GradientTransforms, RuleError, StatsMonitor, StepConsumer, StepView, Watch
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.engine.running.run import runs_on
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Memory, ValNet, assert_clean, data, trainer_of

OUTPUT = [Watch(modules="body.0", tensors="output", stats="mean")]


class Looks(Callback):
    """Notes the live runs on the model at some of Lightning's hooks."""

    def __init__(self, *events: str) -> None:
        self.runs: dict[str, list[Any]] = {}
        for event in events:
            setattr(self, event, self._at(event))

    def _at(self, event: str) -> Any:
        def look(trainer: Trainer, pl_module: Any, *args: Any, **kwargs: Any) -> None:
            self.runs[event] = runs_on(pl_module)

        return look


def ours(**options: Any) -> list[Callback]:
    return [StatsMonitor(OUTPUT, **options), GradientTransforms([Apply(Scale(0.5), params="*")])]


def test_all_callbacks_of_a_trainer_take_part_in_one_run(tmp_path: Path) -> None:
    looks, model = Looks("setup", "on_train_start", "on_train_batch_end", "on_validation_end", "on_train_end"), ValNet()
    monitor, transforms = ours(stages=["train", "validate"])
    trainer = trainer_of(tmp_path, monitor, transforms, looks, val_check_interval=2)
    trainer.fit(model, data(4), data(2))
    before, *during = looks.runs.values()
    assert before == [] and runs_on(model) == []
    assert len({id(run) for runs in during for run in runs}) == 1 and all(len(runs) == 1 for runs in during)
    run = during[0][0]
    assert isinstance(run, LightningRun) and run.is_fit and run.model is model and run.trainer is trainer
    assert not run.is_live and list(run.participants) == []


def test_the_run_has_ended_for_all_before_other_callbacks_hear_that_the_fit_is_over(tmp_path: Path) -> None:
    first, last = Looks("on_fit_end"), Looks("on_fit_end")
    monitor, transforms = ours()
    trainer_of(tmp_path, first, monitor, transforms, last).fit(ValNet(), data(2), data(1))
    assert first.runs == last.runs == {"on_fit_end": []}


def test_each_fit_is_a_run_of_its_own(tmp_path: Path) -> None:
    seen: list[Any] = []
    callbacks = ours()
    for _ in range(2):
        looks = Looks("on_train_start")
        trainer_of(tmp_path, *callbacks, looks).fit(ValNet(), data(1), data(1))
        seen += looks.runs["on_train_start"]
    assert len(seen) == 2 and seen[0] is not seen[1]


def test_a_validation_alone_is_a_run_that_is_no_fit(tmp_path: Path) -> None:
    looks, model = Looks("on_validation_batch_end", "on_validation_epoch_end"), ValNet()
    trainer = trainer_of(tmp_path, *ours(stages=["validate"]), looks)
    trainer.validate(model, data(2), verbose=False)
    ((run,), _) = looks.runs.values()
    assert not run.is_fit and not run.is_live and runs_on(model) == []


def test_a_fit_inside_a_fit_on_the_same_model_is_a_second_run(tmp_path: Path) -> None:
    seen: list[int] = []

    class Nests(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(len(runs_on(pl_module)))
            if batch_idx == 1:
                looks = Looks("on_validation_batch_end")
                inner = trainer_of(tmp_path, StatsMonitor(OUTPUT, stages=["validate"]), looks)
                inner.validate(pl_module, data(1), verbose=False)
                pl_module.train()
                pl_module.trainer = trainer
                seen.append(len(looks.runs["on_validation_batch_end"]))

    model = ValNet()
    trainer_of(tmp_path, *ours(), Nests()).fit(model, data(3), data(1))
    assert seen == [1, 1, 2, 1]
    assert_clean(model)


def test_where_a_callback_cannot_attach_the_run_of_those_before_it_ends(tmp_path: Path) -> None:
    model = ValNet()
    with pytest.raises(RuleError, match="nowhere"):
        trainer_of(tmp_path, *ours(), StatsMonitor([Watch(modules="nowhere")], prefix="b/")).fit(model, data(1), data(1))
    assert runs_on(model) == []
    assert_clean(model)


def test_where_no_rule_matches_no_run_begins(tmp_path: Path) -> None:
    looks = Looks("on_train_start")
    monitor = StatsMonitor([Watch(modules="nowhere", strict=False)])
    with pytest.warns(UserWarning, match="nowhere"), pytest.warns(UserWarning, match="no rule matches anything"):
        trainer_of(tmp_path, monitor, looks).fit(ValNet(), data(1), data(1))
    assert looks.runs == {"on_train_start": []}


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))], ids=["deepcopy", "pickle"])
def test_a_copy_of_a_callback_in_a_run_takes_no_part(tmp_path: Path, copier: Any) -> None:
    copies: list[Any] = []

    class Copies(Callback):
        def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
            copies.append(copier(monitor))

    monitor = StatsMonitor(OUTPUT)
    trainer_of(tmp_path, monitor, Copies()).fit(ValNet(), data(1), data(1))
    trainer_of(tmp_path, copies[0]).fit(ValNet(), data(2), data(1))
    assert copies[0].latest.keys() >= monitor.latest.keys()


def test_the_first_monitor_with_a_prefix_leads_in_each_stage(tmp_path: Path) -> None:
    class Keeps(StepConsumer):
        def __init__(self) -> None:
            self.tags: dict[str, set[str]] = {}

        def consume(self, view: StepView) -> None:
            self.tags[view.stage] = {tag for tag in view.summaries if tag != "run/overhead"}

    first, second, other = Keeps(), Keeps(), Keeps()
    rules = [Watch(modules="body.3", tensors="output", stats="mean")]
    monitors = [
        StatsMonitor(OUTPUT, consumers=[first]),
        StatsMonitor(rules, stages=["train", "validate"], consumers=[second]),
        StatsMonitor(OUTPUT, prefix="other/", consumers=[other]),
    ]
    trainer_of(tmp_path, *monitors, logger=Memory()).fit(ValNet(), data(2), data(1))
    assert first.tags == other.tags == {"train": {"run/loss", "run/nonfinite"}}
    assert second.tags == {"train": set(), "validate": {"run/nonfinite"}}


def test_a_trainer_does_not_name_a_module_twice_that_is_never_called(tmp_path: Path) -> None:
    import warnings

    from torch import nn

    class Idle(ValNet):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Linear(2, 2)

    monitor = StatsMonitor([Watch(modules=["idle", "body.0"], tensors="output", stats="mean")])
    trainer = trainer_of(tmp_path, monitor, max_epochs=1)
    with pytest.warns(UserWarning, match="never called|not called in the first step: idle"):
        trainer.fit(model := Idle(), data(1), data(1))
    trainer.fit_loop.epoch_progress.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "matched modules were not called")
        trainer.fit(model, data(1), data(1))
