"""The callback that stands first in a trainer during a run: nobody who uses the list of callbacks is surprised by it."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.profilers import SimpleProfiler
from torch import Tensor

from lightning_hooks import Apply, GradientTransforms, RuleError, StatsMonitor, StepConsumer, StepView, Watch
from lightning_hooks.callbacks._guard import HooksGuard
from lightning_hooks.transforms import Function, Scale
from tests.callbacks.models import Net, ValNet, assert_clean, data, trainer_of


class At(Callback):
    """Calls a function with the trainer in one of Lightning's hooks, once."""

    def __init__(self, event: str, does: Any) -> None:
        self.done = 0

        def at(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
            self.done += 1
            if self.done == 1:
                does(trainer)

        setattr(self, event, at)


def callbacks_of(trainer: Trainer) -> list[Callback]:
    return trainer.callbacks  # type: ignore[attr-defined,no-any-return]


def stop(trainer: Trainer) -> None:
    raise ValueError("stop")


def test_the_list_is_the_given_one_again_after_a_fit(tmp_path: Path) -> None:
    during: list[list[Callback]] = []
    look = At("on_train_batch_end", lambda trainer: during.append(callbacks_of(trainer)))
    trainer = trainer_of(tmp_path, look, StatsMonitor())
    given, members = callbacks_of(trainer), list(callbacks_of(trainer))
    for _ in range(2):
        look.done = 0
        trainer.fit_loop.epoch_progress.reset()
        trainer.fit(Net(), data(2))
        assert callbacks_of(trainer) is given and given == members
    assert len(during) == 2 and all(isinstance(first, HooksGuard) and rest == members for first, *rest in during)


@pytest.mark.parametrize("event", ["on_train_start", "on_train_batch_end", "on_train_end", "on_fit_end"])
def test_the_list_is_the_given_one_again_after_an_exception(tmp_path: Path, event: str) -> None:
    trainer = trainer_of(tmp_path, At(event, stop), StatsMonitor())
    given, members = callbacks_of(trainer), list(callbacks_of(trainer))
    model = Net()
    with pytest.raises(ValueError, match="^stop$"):
        trainer.fit(model, data(2))
    assert callbacks_of(trainer) is given and given == members
    assert_clean(model)


def test_the_list_stays_if_no_callback_can_be_attached(tmp_path: Path) -> None:
    missing = StatsMonitor([Watch(modules="nowhere")])
    for callbacks in ([missing], [GradientTransforms([Apply(Scale(0.5), params="*")]), missing]):
        trainer = trainer_of(tmp_path, *callbacks)
        given, members = callbacks_of(trainer), list(callbacks_of(trainer))
        with pytest.raises(RuleError, match="nowhere"):
            trainer.fit(Net(), data(2))
        assert callbacks_of(trainer) is given and given == members


def test_the_list_stays_if_no_rule_matches(tmp_path: Path) -> None:
    seen: list[list[Callback]] = []
    look = At("on_train_batch_end", lambda trainer: seen.append(list(callbacks_of(trainer))))
    trainer = trainer_of(tmp_path, look, StatsMonitor([Watch(modules="nowhere", strict=False)]))
    members = list(callbacks_of(trainer))
    with pytest.warns(UserWarning, match="nowhere"), pytest.warns(UserWarning, match="no rule matches anything"):
        trainer.fit(Net(), data(2))
    assert seen == [members]


def test_callbacks_that_others_add_and_remove_during_the_fit_stay_so(tmp_path: Path) -> None:
    class Leaves(Callback):
        pass

    late, leaves = Callback(), Leaves()

    def change(trainer: Trainer) -> None:
        callbacks_of(trainer).append(late)
        trainer.callbacks = [each for each in callbacks_of(trainer) if each is not leaves]  # type: ignore[attr-defined]

    changes = At("on_train_batch_end", change)
    trainer = trainer_of(tmp_path, changes, leaves, monitor := StatsMonitor())
    trainer.fit(Net(), data(2))
    assert callbacks_of(trainer) == [changes, monitor, late]


@pytest.mark.parametrize("event", ["on_train_batch_start", "on_train_batch_end", "on_train_end", "on_fit_end"])
def test_a_callback_of_ours_that_is_removed_in_a_fit_leaves_nothing(tmp_path: Path, event: str) -> None:
    monitor, transforms = StatsMonitor(), GradientTransforms([Apply(Scale(0.5), params="*")])
    remove = At(event, lambda trainer: callbacks_of(trainer).remove(monitor))
    trainer = trainer_of(tmp_path, remove, monitor, transforms, max_epochs=2)
    model = Net()
    trainer.fit(model, data(2))
    assert callbacks_of(trainer) == [remove, transforms]
    assert_clean(model)
    known = ref(model)
    del model, trainer, remove
    gc.collect()
    assert known() is None


def drop(*gone: Callback) -> Any:
    """Takes callbacks out of the list of a trainer, as a new list: Lightning may be iterating over the old one."""

    def change(trainer: Trainer) -> None:
        trainer.callbacks = [each for each in callbacks_of(trainer) if each not in gone]  # type: ignore[attr-defined]

    return change


class Steps(StepConsumer):
    """The steps that it is given, and whether it was closed."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed: list[BaseException | None] = []

    def consume(self, view: StepView) -> None:
        self.steps.append(view.step)

    def close(self, error: BaseException | None) -> None:
        self.closed.append(error)


# In batch 0, or after the epoch of 4: how many batches transforms act in, and how many steps a monitor sees.
REMOVALS = [
    ("on_train_batch_start", 0, 0),
    ("on_after_backward", 1, 0),
    ("on_train_batch_end", 1, 1),
    ("on_train_epoch_end", 4, 4),
]


@pytest.mark.parametrize(("event", "acted", "ended"), REMOVALS)
@pytest.mark.parametrize("place", ["first", "last"])
def test_transforms_that_are_removed_in_a_fit_act_no_more_in_the_next_batch(
    tmp_path: Path, event: str, acted: int, ended: int, place: str
) -> None:
    steps, seen = Steps(), []

    def note(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    transforms, monitor = GradientTransforms([Apply(Function(note), modules="body.0")]), StatsMonitor(consumers=[steps])
    ours = [transforms, monitor] if place == "first" else [monitor, transforms]
    trainer_of(tmp_path, At(event, drop(transforms)), *ours, max_epochs=2).fit(model := Net(), data(4))
    assert len(seen) == acted
    assert steps.steps == list(range(8))  # the other one goes on
    assert_clean(model)


@pytest.mark.filterwarnings("ignore:SGD has stepped without")  # between backward and step nobody tells the monitor any more
@pytest.mark.parametrize(("event", "acted", "ended"), REMOVALS)
def test_a_monitor_that_is_removed_in_a_fit_sees_no_more_and_is_closed(
    tmp_path: Path, event: str, acted: int, ended: int
) -> None:
    steps = Steps()
    monitor = StatsMonitor(consumers=[steps])
    trainer = trainer_of(tmp_path, removes := At(event, drop(monitor)), monitor, max_epochs=2)
    trainer.fit(model := Net(), data(4))
    assert steps.steps == list(range(ended)) and steps.closed == [None]
    assert callbacks_of(trainer) == [removes]
    assert_clean(model)


@pytest.mark.parametrize("place", ["first", "last"])
def test_callbacks_that_are_put_back_go_on(tmp_path: Path, place: str) -> None:
    steps, others, seen = Steps(), Steps(), []

    def note(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    transforms, monitor = GradientTransforms([Apply(Function(note), modules="body.0")]), StatsMonitor(consumers=[steps])
    other = StatsMonitor(consumers=[others], prefix="other/")

    class Pauses(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                drop(transforms, monitor)(trainer)
            elif batch_idx == 3:
                here = [transforms, monitor, other] if place == "first" else [other, transforms, monitor]
                trainer.callbacks = [*(each for each in callbacks_of(trainer) if each is not other), *here]  # type: ignore[attr-defined]

    ours: list[Callback] = [transforms, monitor, other] if place == "first" else [other, transforms, monitor]
    trainer_of(tmp_path, Pauses(), *ours).fit(model := Net(), data(6))
    assert steps.steps == [0, 1, 4, 5] and others.steps == [0, 1, 2, 3, 4, 5] and len(seen) == 4
    assert steps.closed == [None] and others.closed == [None]
    assert_clean(model)


@pytest.mark.parametrize("others", [[], [StatsMonitor(prefix="other/")]], ids=["alone", "beside another"])
def test_a_callback_that_is_removed_before_an_exception_leaves_nothing(tmp_path: Path, others: list[Callback]) -> None:
    steps = Steps()
    monitor = StatsMonitor(consumers=[steps])

    def fail(trainer: Trainer) -> None:
        drop(monitor)(trainer)
        raise ValueError("stop")

    fails = At("on_train_batch_end", fail)
    trainer = trainer_of(tmp_path, fails, monitor, *others)
    model = Net()
    with pytest.raises(ValueError, match="^stop$"):
        trainer.fit(model, data(2))
    assert callbacks_of(trainer) == [fails, *others] and [str(error) for error in steps.closed] == ["stop"]
    assert_clean(model)


def test_a_callback_that_is_removed_with_the_guard_ends_if_another_of_ours_stays(tmp_path: Path) -> None:
    steps, others = Steps(), Steps()
    monitor, other = StatsMonitor(consumers=[steps]), StatsMonitor(consumers=[others], prefix="other/")
    change = At("on_train_batch_end", lambda trainer: setattr(trainer, "callbacks", [change, other]))
    trainer_of(tmp_path, change, monitor, other).fit(model := Net(), data(4))
    assert steps.steps == [0] and steps.closed == [None] and others.steps == [0, 1, 2, 3]
    assert_clean(model)


def test_it_says_what_it_is(tmp_path: Path) -> None:
    shown: list[str] = []
    trainer_of(
        tmp_path, StatsMonitor(), At("on_train_start", lambda trainer: shown.append(repr(callbacks_of(trainer)[0])))
    ).fit(Net(), data(1))
    assert shown == ["<HooksGuard of lightning_hooks: removes hooks before other callbacks are called>"]


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))], ids=["copy", "pickle"])
def test_a_copy_of_the_callbacks_made_during_a_fit_works_in_another_trainer(tmp_path: Path, copier: Any) -> None:
    copies: list[list[Callback]] = []

    class Copies(Callback):
        def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
            copies.append(copier([each for each in callbacks_of(trainer) if each is not self]))

    trainer_of(tmp_path, StatsMonitor(), Copies()).fit(Net(), data(1))
    guard, monitor = copies[0]
    assert isinstance(guard, HooksGuard) and isinstance(monitor, StatsMonitor)
    before, model = dict(monitor.latest), Net()
    trainer = trainer_of(tmp_path, guard, monitor)
    trainer.fit(model, data(2))
    assert callbacks_of(trainer) == [monitor]
    assert before and monitor.latest != before
    assert_clean(model)


def test_what_the_trainer_finds_among_its_callbacks(tmp_path: Path) -> None:
    class Logs(ValNet):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self(batch[0]).square().mean())

    found: list[Any] = []

    def look(trainer: Trainer) -> None:
        found.append([trainer.checkpoint_callback, trainer.early_stopping_callback, trainer.progress_bar_callback])
        found.append(set(trainer.callback_metrics))

    last, early, bar = ModelCheckpoint(tmp_path, monitor="val"), EarlyStopping("val", patience=9), TQDMProgressBar()
    options = {"enable_checkpointing": True, "enable_progress_bar": True, "max_epochs": 2}
    end = At("on_train_end", look)
    trainer = trainer_of(tmp_path, StatsMonitor(), last, early, bar, end, **options)
    trainer.fit(Logs(), data(2), data(2))
    assert found == [[last, early, bar], {"val"}]
    assert last.best_model_score is not None and len(list(tmp_path.glob("*.ckpt"))) == 1


def test_a_checkpoint_and_its_loading_know_nothing_of_it(tmp_path: Path) -> None:
    class First(Callback):
        """With the name of no callback of ours."""

        def state_dict(self) -> dict[str, Any]:
            return {"mine": 1}

    save = At("on_train_batch_end", lambda trainer: trainer.save_checkpoint(tmp_path / "a.ckpt"))
    trainer_of(tmp_path, First(), StatsMonitor(), save).fit(Net(), data(1))
    kept = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert list(kept["callbacks"].values()) == [{"mine": 1}]
    # Lightning warns, here an error, if a checkpoint has callbacks that the trainer does not have.
    trainer = trainer_of(tmp_path, First(), StatsMonitor(), max_epochs=2)
    trainer.fit(Net(), data(1), ckpt_path=tmp_path / "a.ckpt")
    assert trainer.state.finished


def test_a_profiler_names_it(tmp_path: Path) -> None:
    profiler = SimpleProfiler()
    trainer_of(tmp_path, StatsMonitor(), profiler=profiler).fit(Net(), data(1))
    assert "[Callback]lightning_hooks.HooksGuard.on_train_batch_end" in profiler.recorded_durations


def test_the_config_that_lightning_cli_saves_has_the_given_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fit"])
    options: dict[str, Any] = {"max_epochs": 1, "accelerator": "cpu", "log_every_n_steps": 1, "default_root_dir": str(tmp_path)}
    options |= dict.fromkeys(["enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    options["callbacks"] = [{"class_path": "lightning_hooks.StatsMonitor", "init_args": {"prefix": "a/"}}]
    cli = LightningCLI(Net, args={"trainer": options}, run=False, seed_everything_default=False)
    members = list(callbacks_of(cli.trainer))
    cli.trainer.fit(cli.model, data(2))
    assert callbacks_of(cli.trainer) == members
    (saved,) = tmp_path.rglob("config.yaml")
    assert saved.read_text().count("class_path: lightning_hooks.") == 1 and "HooksGuard" not in saved.read_text()
