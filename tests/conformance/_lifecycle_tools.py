"""What the tests share that follow a watched model through a whole run: every callback of ours at once, and what is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn

from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    CustomHooks,
    FlightRecorder,
    GradientTransforms,
    HealthMonitor,
    Hook,
    StatsMonitor,
)
from lightning_hooks.hooks import OurHook
from lightning_hooks.transforms import ClipByGlobalNorm, Scale
from tests.callbacks.models import everything


class Boom(RuntimeError):
    """Ours to recognise."""


def see(*args: Any) -> None:
    """A hook of a user that changes nothing."""


def monitor(**options: Any) -> StatsMonitor:
    """Every tensor and every statistic."""
    return StatsMonitor(**{"watch": everything(), "max_scalars": 5000, **options})


def hooks() -> CustomHooks:
    """A hook on every kind of place."""
    rules = [Hook(see, kind=kind, modules="*") for kind in ("forward_pre", "forward", "input_grad", "output_grad")]
    rules += [Hook(see, kind="param_grad", params="*"), Hook(see, kind="post_accumulate_grad", params="*")]
    return CustomHooks([*rules, Hook(see, kind="optimizer_step_pre"), Hook(see, kind="optimizer_step_post")])


def capture(folder: Path, module: str = "body.0", **options: Any) -> ActivationCapture:
    return ActivationCapture(modules=module, folder=folder / "captures", **{"every_n_steps": 1, **options})


def gradients(module: str = "body.0") -> GradientTransforms:
    """A rule at the step, one in backward, one on what flows through a module."""
    return GradientTransforms(
        [
            Apply(ClipByGlobalNorm(1.0), params="*"),
            Apply(Scale(0.5), params="*", when="backward"),
            Apply(Scale(0.5), modules=module, tensor="output_grad"),
        ]
    )


def activations(module: str = "body.0") -> ActivationTransforms:
    return ActivationTransforms([Apply(Scale(0.9), modules=module), Apply(Scale(0.9), modules=module, tensor="input")])


def observers(folder: Path) -> list[Callback]:
    """Every callback of ours that changes nothing."""
    return [monitor(), hooks(), capture(folder)]


def all_ours(folder: Path) -> list[Callback]:
    """Every callback of ours at once."""
    return [*observers(folder), HealthMonitor(), FlightRecorder(weights=True), gradients(), activations()]


EACH: dict[str, Callable[[Path], list[Callback]]] = {
    "StatsMonitor": lambda folder: [monitor()],
    "HealthMonitor": lambda folder: [HealthMonitor()],
    "FlightRecorder": lambda folder: [FlightRecorder()],
    "HealthMonitor beside": lambda folder: [StatsMonitor(), HealthMonitor()],
    "CustomHooks": lambda folder: [hooks()],
    "ActivationCapture": lambda folder: [capture(folder)],
    "GradientTransforms": lambda folder: [gradients()],
    "ActivationTransforms": lambda folder: [activations()],
    "all": all_ours,
}


def equal_weights(one: nn.Module, other: nn.Module) -> bool:
    """Bit for bit, buffers too."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(same_bits(mine[name], theirs[name]) for name in mine)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return (
        torch.equal(one.nan_to_num(nan=1e30), other.nan_to_num(nan=1e30))
        if one.is_floating_point()
        else torch.equal(one, other)
    )


def hooks_in(thing: Any, depth: int = 12) -> list[str]:
    """Where in a tree of containers, modules and tensors a hook object of ours is; nothing in a clean checkpoint."""
    found: list[str] = []
    seen: set[int] = set()

    def look(item: Any, path: str, left: int) -> None:
        if id(item) in seen or left == 0:
            return
        seen.add(id(item))
        if isinstance(item, OurHook):
            found.append(path)
        elif isinstance(item, dict):
            for key, value in item.items():
                look(value, f"{path}[{key!r}]", left - 1)
        elif isinstance(item, (list, tuple, set)):
            for i, value in enumerate(item):
                look(value, f"{path}[{i}]", left - 1)
        elif isinstance(item, (nn.Module, Tensor)):
            look(getattr(item, "__dict__", {}), path, left - 1)
            look(getattr(item, "_backward_hooks", None) or {}, f"{path}._backward_hooks", left - 1)

    look(thing, "", depth)
    return found


def at_step(number: int, act: Callable[[LightningModule], Any], results: list[Any]) -> Callback:
    """A callback that does something to the module before the optimizer's step of one number."""

    class Acts(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            if trainer.global_step == number:
                results.append(act(pl_module))

    return Acts()
