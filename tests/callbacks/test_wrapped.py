"""The last moment before the update: a method of the module stands aside for the fit."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any
from weakref import WeakMethod, ref

import pytest
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch
from lightning_hooks.callbacks._guard import WrappedHook
from lightning_hooks.hooks import Handles
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Gan, Net, assert_clean, data, norm, trainer_of, watch_fit

NAME = "configure_gradient_clipping"


class Phases(list[Any]):
    """Notes the phases, as the hook manager runs them; known weakly."""

    def run(self, name: str, optimizer: Any, has_closure: bool) -> None:
        self.append((name, optimizer))


def wrapped(model: Net) -> tuple[WrappedHook, Phases]:
    hook, seen = WrappedHook(model), Phases()
    hook.install(Handles(), WeakMethod(seen.run))
    return hook, seen


def test_it_calls_the_method_then_tells_the_moment_and_goes_away() -> None:
    calls: list[Any] = []

    class Clips(Net):
        def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> str:
            calls.append((optimizer, args, kwargs))
            return "done"

    model = Clips()
    hook, seen = wrapped(model)
    assert model.configure_gradient_clipping("opt", 1.0, gradient_clip_algorithm="norm") == "done"
    assert calls == [("opt", (1.0,), {"gradient_clip_algorithm": "norm"})] and seen == [("final", "opt")]
    assert hook.__code__ is Clips.configure_gradient_clipping.__code__
    hook.remove()
    hook.remove()
    assert_clean(model)
    assert model.configure_gradient_clipping("opt") == "done" and len(seen) == 1


def test_a_method_that_a_user_put_on_the_instance_is_called_and_put_back() -> None:
    model = Net()

    def mine(optimizer: Any, *args: Any) -> str:
        return f"mine {optimizer}"

    model.configure_gradient_clipping = mine  # type: ignore[method-assign,assignment]
    hook, seen = wrapped(model)
    assert model.configure_gradient_clipping("opt") == "mine opt" and len(seen) == 1
    assert copy.deepcopy(model).configure_gradient_clipping("copy") == "mine copy" and len(seen) == 1
    hook.remove()
    assert model.__dict__[NAME] is mine


def test_what_a_user_puts_in_its_place_during_the_fit_stays() -> None:
    model = Net()
    hook, _ = wrapped(model)
    model.__dict__[NAME] = mine = lambda *a: None
    hook.remove()
    assert model.__dict__[NAME] is mine


def test_lightning_does_not_take_it_for_an_override() -> None:
    model = Net()
    hook, _ = wrapped(model)
    assert not is_overridden(NAME, model)
    hook.remove()


def test_it_keeps_neither_the_module_nor_the_hook_manager_alive() -> None:
    model = Net()
    hook, seen = wrapped(model)
    known = ref(seen)
    del seen
    gc.collect()
    assert known() is None
    trainer = trainer_of(".")
    model.trainer = trainer
    model.configure_gradient_clipping(torch.optim.SGD(model.parameters(), lr=0.1))
    model.trainer = None
    del model
    gc.collect()
    assert hook._module() is None
    hook.remove()


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_has_the_plain_method_bound_to_itself(copier: Any) -> None:
    model = Net()
    hook, seen = wrapped(model)
    twin = copier(model)
    method = twin.configure_gradient_clipping
    assert method.__self__ is twin and method.__func__ is Net.configure_gradient_clipping
    twice = copier(twin)
    assert twice.configure_gradient_clipping.__self__ is twice and seen == []
    assert model.__dict__[NAME] is hook


def test_final_grad_is_after_a_users_own_clipping(tmp_path: Any) -> None:
    class Clips(Net):
        def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="norm")

    model = Clips(dropout=0.0)
    watch = [Watch(params="*", tensors=["grad", "final_grad"], stats="norm")]
    memory, _ = watch_fit(tmp_path, model, StatsMonitor(watch))
    assert memory.values("run/final_grad_norm") == pytest.approx([0.01] * 6, rel=1e-4)
    assert min(memory.values("run/grad_norm")) > 0.01
    assert_clean(model)


def test_an_error_in_the_users_clipping_is_unchanged(tmp_path: Any) -> None:
    class Clips(Net):
        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            raise KeyError("mine")

    model = Clips()
    with pytest.raises(KeyError, match="mine"):
        watch_fit(tmp_path, model, StatsMonitor([Watch(params="*", tensors="final_grad")]))
    assert_clean(model)


@pytest.mark.parametrize("first", [True, False], ids=["monitor-first", "transforms-first"])
def test_final_grad_in_manual_optimization_is_after_every_callback_and_the_modules_own_hook(tmp_path: Any, first: bool) -> None:
    class Halves(Gan):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)
                    self.last[id(parameter)] = norm(parameter.grad)

    model = Halves()
    model.last = {}
    monitor = StatsMonitor([Watch(params="*", tensors=["grad", "final_grad"], stats="norm")])
    transforms = GradientTransforms([Apply(Scale(0.1), params="gen.*")])
    trainer_of(tmp_path, *([monitor, transforms] if first else [transforms, monitor])).fit(model, data())
    for name, parameter in model.named_parameters():
        factor = (0.1 if first else 1.0) * 0.5 if name.startswith("gen") else 0.5
        latest = monitor.latest
        assert latest[f"final_grad_norm/{name}"] == pytest.approx(model.last[id(parameter)], rel=1e-6)
        assert latest[f"final_grad_norm/{name}"] == pytest.approx(factor * latest[f"grad_norm/{name}"], rel=1e-5)
    assert_clean(model)
