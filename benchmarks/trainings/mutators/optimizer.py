"""Faults of the optimizer: its momentum, its betas, its epsilon, and clipping that leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.optimizers import has_sparse_tables
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

_HAVE_MOMENTUM = ("momentum", "nesterov")


def is_plain(spec: Spec) -> bool:
    """Whether a step is as long as the gradient times the rate."""
    return spec.optimizer.startswith(("sgd", *_HAVE_MOMENTUM))


def _has_betas(spec: Spec) -> bool:
    return "adam" in spec.optimizer or spec.optimizer == "amsgrad"


def parts_of(made: Any) -> tuple[list[Optimizer], list[Any]]:
    """The optimizers and the schedules in what `configure_optimizers` returns."""
    if isinstance(made, tuple):
        return made
    if isinstance(made, dict):
        return [made["optimizer"]], [made["lr_scheduler"]]
    return (made if isinstance(made, list) else [made]), []


def _in_each_group(case: Case, change: Callable[[dict[str, Any]], Any]) -> Planted:
    configure = case.module.configure_optimizers

    def configure_optimizers() -> Any:
        made = configure()
        for optimizer in parts_of(made)[0]:
            for group in optimizer.param_groups:
                change(group)
        return made

    case.module.configure_optimizers = configure_optimizers
    return Planted(case)


def _raise_momentum(case: Case, spec: Spec, momentum: float) -> Planted:
    return _in_each_group(case, lambda group: group.update(momentum=momentum))


def _swap(case: Case, spec: Spec, share: float) -> Planted:
    """Move each beta by this share of the way to the other one."""

    def change(group: dict[str, Any]) -> None:
        first, second = group["betas"]
        way = share * (second - first)
        group["betas"] = (first + way, second - way)

    return _in_each_group(case, change)


def _raise_eps(case: Case, spec: Spec, eps: float) -> Planted:
    return _in_each_group(case, lambda group: group.update(eps=eps))


def _clip(case: Case, spec: Spec, limit: float) -> Planted:
    return Planted(replace(case, trainer={**case.trainer, "gradient_clip_val": limit}))


MUTATORS = (
    Mutator(
        "momentum-too-high",
        "The momentum of SGD is too near to 1, and the rate is that for 0.9.",
        (0.97, 0.99, 0.995, 0.998, 0.9995),
        plant=_raise_momentum,
        fits=lambda spec: spec.optimizer.startswith(_HAVE_MOMENTUM),
    ),
    Mutator(
        "betas-swapped",
        "The two betas of Adam have moved towards each other by a share of their distance; at 1 they are swapped.",
        (0.5, 0.8, 0.95, 0.98, 1.0),
        plant=_swap,
        fits=_has_betas,
    ),
    Mutator(
        "eps-too-large",
        "The epsilon of Adam outweighs the root of the second moment, so that steps are tiny.",
        (0.01, 0.1, 1.0, 100.0, 1e4),
        plant=_raise_eps,
        fits=lambda spec: _has_betas(spec) or spec.optimizer == "rmsprop",
    ),
    Mutator(
        "clipped-to-nothing",
        "The norm of the gradient is clipped to a tiny fraction of what it is.",
        (0.01, 1e-3, 1e-4, 1e-6, 1e-8),
        plant=_clip,
        fits=lambda spec: is_plain(spec) and not has_sparse_tables(spec),
    ),
)
