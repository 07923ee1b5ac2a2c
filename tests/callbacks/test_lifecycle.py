"""A fit that is watched ends, however it ends, with the same numbers and without a trace."""

from __future__ import annotations

import copy
import gc
import pickle
import signal
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_hooks import ActivationCapture, Apply, GradientTransforms, NoMatchError, StatsMonitor, Watch
from lightning_hooks.transforms import Scale
from tests.callbacks.models import (
    Gan,
    Memory,
    Net,
    ValNet,
    adamw,
    assert_clean,
    data,
    everything,
    nesterov,
    norm,
    ours_on,
    trainer_of,
    watch_fit,
)


def trained(root: Any, *callbacks: Callback, optimizer: Any = nesterov, **options: Any) -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    model = Net(optimizer)
    torch.manual_seed(1)
    trainer = trainer_of(root, *callbacks, max_epochs=None, max_steps=20, gradient_clip_val=0.5, **options)
    trainer.fit(model, data(10))
    assert trainer.global_step == 20
    return model, torch.get_rng_state()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("optimizer", [nesterov, adamw])
@pytest.mark.parametrize("watch", [None, everything()], ids=["default", "everything"])
def test_weights_are_bit_identical_with_a_monitor(tmp_path: Any, accumulate: int, optimizer: Any, watch: Any) -> None:
    plain, plain_rng = trained(tmp_path, optimizer=optimizer, accumulate_grad_batches=accumulate)
    monitor = StatsMonitor(watch=watch, max_scalars=5000)
    watched, rng = trained(tmp_path, monitor, optimizer=optimizer, accumulate_grad_batches=accumulate)
    assert monitor.latest
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name
    for one, other in zip(plain.made[0].state.values(), watched.made[0].state.values(), strict=True):
        assert all(torch.equal(torch.as_tensor(one[k]), torch.as_tensor(other[k])) for k in one)
    assert torch.equal(plain_rng, rng)
    assert_clean(watched)


def test_weights_are_bit_identical_in_manual_optimization(tmp_path: Any) -> None:
    results = []
    for callbacks in ([], [StatsMonitor(watch=everything(), max_scalars=5000)]):
        torch.manual_seed(0)
        model = Gan(every=2)
        trainer_of(tmp_path, *callbacks, max_epochs=2).fit(model, data())
        assert_clean(model)
        results.append(model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


class Boom(RuntimeError):
    """Ours to recognise."""


class RaiseBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise Boom("in backward")


class BadNet(Net):
    """Fails in its second batch."""

    where = "forward"
    error: BaseException = Boom("in forward")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen_hooks = ours_on(self)
        if batch_idx == 1 and self.where == "backward":
            return RaiseBackward.apply(super().training_step(batch, batch_idx))
        if batch_idx == 1:
            self.body[0](batch[0])
            raise self.error
        return super().training_step(batch, batch_idx)


class Raises(Callback):
    """Raises in the hooks it is told to."""

    def __init__(self, *names: str, error: BaseException | None = None) -> None:
        self.error = error or Boom(names[0])
        for name in names:
            setattr(self, name, self._raise)

    def _raise(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_idx >= 1:
            raise self.error


ENDS: dict[str, dict[str, Any]] = {
    "normal": {},
    "max_steps": {"max_steps": 2},
    "fast_dev_run": {"fast_dev_run": True},
    "fast_dev_run_3": {"fast_dev_run": 3},
    "limit_train_batches": {"limit_train_batches": 0},
    "max_epochs": {"max_epochs": 0},
    "overfit_batches": {"overfit_batches": 2, "max_epochs": 2},
    "validation": {"num_sanity_val_steps": 2, "val_check_interval": 2},
    "clipped": {"gradient_clip_val": 0.1, "accumulate_grad_batches": 4},
}


@pytest.mark.parametrize(
    "end, manual", [(end, False) for end in ENDS] + [(end, True) for end in ENDS if end not in ("clipped", "validation")]
)
def test_no_hook_is_left_after_a_fit(tmp_path: Any, end: str, manual: bool) -> None:
    model = Gan() if manual else ValNet()
    monitor = StatsMonitor(watch=everything(), max_scalars=5000)
    trainer = trainer_of(tmp_path, monitor, GradientTransforms([Apply(Scale(0.5), params="*")]), **ENDS[end])
    trainer.fit(model, data(), *([] if manual else [data(2)]))
    assert_clean(model)
    assert trainer.state.finished
    assert bool(monitor.latest) == (end not in ("limit_train_batches", "max_epochs"))
    assert monitor._hook_manager is None


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_no_hook_is_left_after_an_exception_in_the_model(tmp_path: Any, where: str) -> None:
    model = BadNet()
    model.where, model.error = where, Boom(f"in {where}")
    with pytest.raises(Boom, match=f"^in {where}$") as raised:
        trainer_of(tmp_path, StatsMonitor(watch=everything(), max_scalars=5000)).fit(model, data())
    assert model.seen_hooks > 0
    assert where == "backward" or raised.value is model.error
    assert raised.value.__cause__ is None and raised.value.__context__ is None
    assert_clean(model)


HOOKS = [
    "setup",
    "on_fit_start",
    "on_sanity_check_start",
    "on_sanity_check_end",
    "on_train_start",
    "on_train_batch_start",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
]


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("name", HOOKS)
def test_no_hook_is_left_after_an_exception_in_another_callback(tmp_path: Any, name: str, first: bool) -> None:
    model, other, ours = ValNet(), Raises(name), StatsMonitor(watch=everything(), max_scalars=5000)
    if name in ("setup", "on_fit_start", "on_train_start") or "sanity" in name:
        setattr(other, name, lambda *a, **k: (_ for _ in ()).throw(other.error))
    with pytest.raises(Boom, match=f"^{name}$") as raised:
        trainer_of(tmp_path, *([other, ours] if first else [ours, other]), num_sanity_val_steps=1).fit(model, data(), data(2))
    assert raised.value is other.error
    assert_clean(model)


def test_an_on_exception_that_raises_after_ours_leaves_no_hook(tmp_path: Any) -> None:
    model, other = Net(), Raises("on_train_batch_end", "on_exception")
    with pytest.raises(Boom):
        trainer_of(tmp_path, StatsMonitor(), other).fit(model, data())
    assert_clean(model)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["ctrl-c", "exit"])
def test_no_hook_is_left_after_an_interrupt(tmp_path: Any, error: BaseException) -> None:
    model = BadNet()
    model.error = error
    with pytest.raises(SystemExit):
        trainer_of(tmp_path, StatsMonitor(watch=everything(), max_scalars=5000)).fit(model, data())
    assert_clean(model)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_no_hook_is_left_after_should_stop(tmp_path: Any, accumulate: int) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = True

    model = Net()
    monitor = StatsMonitor(watch=everything(), max_scalars=5000)
    trainer_of(tmp_path, monitor, Stop(), accumulate_grad_batches=accumulate).fit(model, data())
    assert_clean(model)
    assert bool(monitor.latest) == (accumulate == 1)


def test_a_batch_start_that_skips_the_epoch_leaves_no_hook(tmp_path: Any) -> None:
    class Skips(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 1 else None

    model = Skips()
    memory, _ = watch_fit(tmp_path, model, StatsMonitor(watch=everything(), max_scalars=5000), max_epochs=2)
    assert memory.steps == [0, 1]
    assert_clean(model)


def test_a_second_fit_with_the_same_callback(tmp_path: Any) -> None:
    model, monitor = Net(), StatsMonitor(watch=everything(), max_scalars=5000)
    for _ in range(2):
        memory, _ = watch_fit(tmp_path, model, monitor)
        assert memory.steps == list(range(6))
        assert_clean(model)
    other = Gan()
    memory, _ = watch_fit(tmp_path, other, monitor)
    assert memory.steps == list(range(6)) and "param_norm/gen.weight" in monitor.latest
    assert_clean(other)


def test_no_callback_keeps_a_logger_after_a_fit(tmp_path: Any) -> None:
    callbacks = [
        StatsMonitor(),
        GradientTransforms([Apply(Scale(0.5), params="*")]),
        ActivationCapture("body", every_n_steps=1, tensorboard=True),
    ]
    memory = Memory()
    trainer = trainer_of(tmp_path, *callbacks, logger=memory)
    trainer.fit(Net(), data(2))
    trainer.loggers = []
    known = ref(memory)
    del memory
    gc.collect()
    assert known() is None


def test_a_second_fit_of_the_same_trainer(tmp_path: Any) -> None:
    model, memory = Net(log=True), Memory()
    trainer = trainer_of(tmp_path, StatsMonitor(watch=everything(), max_scalars=5000), logger=memory)
    trainer.fit(model, data(3))
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data(3))
    assert memory.steps == memory.steps_of("loss") and len(memory.steps) == 6
    assert_clean(model)


@pytest.fixture
def handlers() -> Iterator[Any]:
    """Lightning's own signal handlers keep a trainer whose fit could not tear down; they go with this call."""
    known = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}

    def restore() -> None:
        for number, handler in known.items():
            signal.signal(number, handler)

    yield restore
    restore()


def crashed(root: Any, model: Net) -> Any:
    """A fit that fails, and so does another callback when it is told, before ours."""
    monitor = StatsMonitor(watch=everything(), max_scalars=5000)
    trainer = trainer_of(root, Raises("on_before_optimizer_step", "on_exception"), monitor)
    try:
        trainer.fit(model, data())
    except Boom:
        pass
    assert_clean(model)
    return trainer, monitor


def test_the_same_callback_fits_again_after_a_crash(tmp_path: Any, handlers: Any) -> None:
    model = Net()
    trainer, monitor = crashed(tmp_path, model)
    memory, _ = watch_fit(tmp_path, model, monitor)
    assert len(memory.ours) == 6
    assert_clean(model)
    assert trainer.callbacks


def test_another_callback_fits_after_a_crash(tmp_path: Any, handlers: Any) -> None:
    model = Net()
    trainer, monitor = crashed(tmp_path, model)
    memory, _ = watch_fit(tmp_path, model, StatsMonitor(watch=everything(), max_scalars=5000))
    assert len(memory.ours) == 6
    assert_clean(model)
    assert trainer.callbacks and monitor is not None


class TakesOver(Raises):
    """Throws all other callbacks out of the list in the middle of a fit, which then fails: nobody tells them."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            trainer.callbacks = [self]


def test_hooks_of_a_fit_that_told_its_callbacks_nothing_go_with_the_next_fit(tmp_path: Any, handlers: Any) -> None:
    model, lost = Net(), StatsMonitor(watch=everything(), max_scalars=5000)
    with pytest.raises(Boom):
        trainer_of(tmp_path, lost, TakesOver("on_before_optimizer_step")).fit(model, data())
    memory, _ = watch_fit(tmp_path, model, StatsMonitor(watch=everything(), max_scalars=5000))
    assert len(memory.ours) == 6 and lost is not None
    assert_clean(model)


def test_attaching_is_all_or_nothing(tmp_path: Any) -> None:
    model = Net()
    second = StatsMonitor(watch=[Watch(params="bodi.0.weight")], prefix="b/")
    with pytest.raises(NoMatchError, match=r"watch\[0\]\.params") as raised:
        trainer_of(tmp_path, StatsMonitor(), second).fit(model, data())
    assert "body.0.weight" in str(raised.value) and "strict=False" in str(raised.value)
    assert_clean(model)


def test_a_step_that_is_not_watched_carries_no_hook(tmp_path: Any) -> None:
    counts = []

    class Count(Callback):
        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            counts.append(ours_on(pl_module))

    model = Net()
    watch = [Watch(modules="body.0"), Watch(params="*")]
    trainer_of(tmp_path, StatsMonitor(watch=watch, every_n_steps=3), Count()).fit(model, data())
    assert [count > 0 for count in counts] == [False, False, True, False, False, True]


def test_foreign_hooks_stay(tmp_path: Any) -> None:
    model, calls = Net(), []
    handle = model.body[0].register_forward_hook(lambda *a: calls.append(1))
    watch_fit(tmp_path, model, StatsMonitor(watch=everything(), max_scalars=5000))
    assert len(model.body[0]._forward_hooks) == 1 and len(calls) == 6
    handle.remove()
    assert_clean(model)


class CopyDuring(Callback):
    """Copies the module inside a fit, in several moments."""

    def __init__(self, copier: Any) -> None:
        self.copier = copier
        self.copies: list[Net] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step == 2:
            assert ours_on(pl_module) > 0
            self.copies.append(self.copier(pl_module))


@pytest.mark.parametrize("final", [True, False], ids=["final_grad", "default"])
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_of_the_module_inside_a_fit_carries_no_hook_and_trains_alone(tmp_path: Any, copier: Any, final: bool) -> None:
    model, during = Net(dropout=0.0), CopyDuring(copier)
    monitor = StatsMonitor(watch=everything() if final else None, max_scalars=5000)
    trainer_of(tmp_path, monitor, during, gradient_clip_val=0.1).fit(model, data())
    (twin,) = during.copies
    assert ours_on(twin) == 0
    latest = dict(monitor.latest)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    before = norm(*twin.parameters())
    trainer_of(tmp_path, gradient_clip_val=0.1).fit(twin, data())
    assert norm(*twin.parameters()) != before
    assert dict(monitor.latest) == latest
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    again = StatsMonitor(watch=everything(), max_scalars=5000)
    trainer_of(tmp_path, again, gradient_clip_val=0.1).fit(twin, data())
    assert ours_on(twin) == 0 and again.latest["final_grad_norm/body.0.weight"] <= 0.1 + 1e-6
    assert_clean(model)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))], ids=["deepcopy", "pickle"])
def test_the_callback_can_be_copied_before_and_during_a_fit(tmp_path: Any, copier: Any) -> None:
    monitor, copies = StatsMonitor(watch=everything(), max_scalars=5000, prefix="a/"), []

    class Copy(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            copies.append(copier(monitor))

    assert repr(copier(monitor)) == repr(monitor)
    model = Net()
    trainer_of(tmp_path, monitor, Copy()).fit(model, data(2))
    fresh = copies[-1]
    assert fresh.latest == pytest.approx(monitor.latest, nan_ok=True)
    memory, _ = watch_fit(tmp_path, model, fresh)
    assert len(memory.ours) == 6
    assert_clean(model)


def test_validate_and_test_do_not_attach(tmp_path: Any) -> None:
    class Checks(ValNet):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            assert ours_on(self) == 0

    model = Checks()
    trainer_of(tmp_path, StatsMonitor()).validate(model, data(2), verbose=False)
    assert_clean(model)


def test_tied_and_frozen_parameters(tmp_path: Any) -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.body[0].weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(self.second(self.first(x)))

    model = Tied()
    memory, _ = watch_fit(tmp_path, model, StatsMonitor(max_scalars=500))
    tags = memory.ours[0][1]
    assert "grad_norm/first.weight" in tags and "grad_norm/second.weight" not in tags
    assert "grad_norm/body.0.weight" not in tags and "grad_norm/body.0.bias" in tags
    assert_clean(model)
