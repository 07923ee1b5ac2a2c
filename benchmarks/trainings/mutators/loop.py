"""Faults of the code around a model: clipping, ties, lists, averages, a resume, and the gradients of another loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.trainings.layers import hidden_layers, layers_of
from benchmarks.trainings.mutators.mutator import Mutator, Planted, after, is_usual
from benchmarks.trainings.mutators.optimizer import is_plain
from benchmarks.trainings.optimizers import has_sparse_tables
from benchmarks.trainings.spec import Spec
from benchmarks.trainings.tricks import tied
from galleries.health.training import Case

_LIMIT = 0.01
"""The norm to which gradients are to be clipped; nearly all are larger."""
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def _raise_rate(spec: Spec, factor: float) -> Spec:
    return replace(spec, rate=factor * spec.rate)


def _clip_late(case: Case, spec: Spec, factor: float) -> Planted:
    """Clip gradients when the step has used them: at the start of the next batch, before they are cleared."""
    module = case.module
    after(module, "on_train_batch_start", lambda *args: nn.utils.clip_grad_norm_(module.parameters(), _LIMIT))
    return Planted(case)


def _untie(case: Case, spec: Spec, scale: float) -> Planted:
    """Give the head a copy of the table, as a copy of the state or of the module does, and scale it."""
    name, head = layers_of(case.module)[-1]
    table: Any = head.weight
    head.weight = nn.Parameter(scale * table.detach().clone())
    return Planted(case, (f"{name}*",))


class _InList(nn.Module):
    """Calls a module that a plain list holds, which nothing registers."""

    def __init__(self, layers: list[nn.Module], index: int) -> None:
        super().__init__()
        self.layers, self.index = layers, index

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.layers[self.index](*args, **options)


def _hide(case: Case, spec: Spec, share: float) -> Planted:
    """Hold a share of the hidden layers, the first ones, in a plain list."""
    chosen = hidden_layers(case.module)
    chosen = chosen[: max(1, math.ceil(share * len(chosen)))]
    layers = [layer for _, layer in chosen]
    for index, (name, _) in enumerate(chosen):
        parent, _, last = name.rpartition(".")
        setattr(case.module.get_submodule(parent), last, _InList(layers, index))
    return Planted(case)


def _average(update: Callable[[nn.Module, nn.Module], None]) -> Callable[[Case], Planted]:
    """End with a copy of the model that a function updates after each step."""

    def plant(case: Case) -> Planted:
        module: Any = case.module
        copy = deepcopy(module.model).requires_grad_(False)
        module.on_train_end_copy = [copy]  # in a list, so that the copy is no part of the model

        def follow(*args: Any) -> None:
            with torch.no_grad():
                update(copy, module.model)

        after(module, "on_train_batch_end", follow)
        after(module, "on_train_end", lambda: module.model.load_state_dict(copy.state_dict()))
        return Planted(case)

    return plant


def _mix(into: Tensor, value: Tensor, decay: float) -> None:
    if into.is_floating_point():
        into.lerp_(value.to(into), 1 - decay)
    else:
        into.copy_(value)


def _lag(case: Case, spec: Spec, decay: float) -> Planted:
    """End with a moving average whose decay is too near to 1."""

    def update(copy: nn.Module, model: nn.Module) -> None:
        for into, value in zip(copy.state_dict().values(), model.state_dict().values(), strict=True):
            _mix(into, value, decay)

    return _average(update)(case)


def _forget_statistics(case: Case, spec: Spec, share: float) -> Planted:
    """End with a moving average of the parameters, in which a share of the norms keeps the first statistics."""
    model: Any = case.module.model
    norms = [name for name, each in model.named_modules() if isinstance(each, _NORMS)]
    forgotten = tuple(f"{name}." for name in norms[: max(1, math.ceil(share * len(norms)))])

    def update(copy: nn.Module, model: nn.Module) -> None:
        for own, weight in zip(copy.parameters(), model.parameters(), strict=True):
            _mix(own, weight, 0.9)
        for (name, into), value in zip(copy.named_buffers(), model.buffers(), strict=True):
            if not name.startswith(forgotten):
                _mix(into, value, 0.0)

    return _average(update)(case)


def _resume_without(case: Case, spec: Spec, share: float) -> Planted:
    """Save the training after this share of its steps, and go on with the weights alone: the schedule begins again."""
    module: Any = case.module

    def forget(checkpoint: dict[str, Any]) -> None:
        checkpoint["optimizer_states"], checkpoint["lr_schedulers"] = [], []

    module.on_load_checkpoint = forget
    return Planted(replace(case, resumes=max(1, min(int(share * spec.steps), spec.steps - 20))))


def _leave_gradients(case: Case, spec: Spec, share: float) -> Planted:
    """Let the loss of the generator leave its gradients in the discriminator, and clear them only in some of the steps."""
    module: Any = case.module
    configure, count = module.configure_optimizers, [0]

    def configure_optimizers() -> Any:
        made = configure()
        generating, judging = made[0] if isinstance(made, tuple) else made
        kind: Any = type(judging)

        def clear_some(optimizer: Any, set_to_none: bool = True) -> None:
            count[0] += 1
            if int(count[0] * share) == int((count[0] - 1) * share):
                kind.zero_grad(optimizer, set_to_none)

        def clear_both(optimizer: Any, set_to_none: bool = True) -> None:
            for each in (optimizer, judging):
                kind.zero_grad(each, set_to_none)

        # The optimizer of Lightning calls the method of the class. The turn of the generator clears the gradients of both, so
        # that only those of the other loss are left in the discriminator.
        generating.__class__ = type(kind.__name__, (kind,), {"zero_grad": clear_both})
        judging.__class__ = type(kind.__name__, (kind,), {"zero_grad": clear_some})
        return made

    module.configure_optimizers = configure_optimizers
    # Lightning disables the gradients of the other optimizer's parameters while one has its turn.
    module.toggle_optimizer = module.untoggle_optimizer = lambda *args, **options: None
    return Planted(case, ("model.discriminator*",))


def _is_dense(spec: Spec) -> bool:
    return is_usual(spec) and not has_sparse_tables(spec)


def _is_layered(spec: Spec) -> bool:
    """Whether layers are called as modules only, and nothing else changes them."""
    return spec.family in ("mlp", "cnn", "resnet") and _is_dense(spec) and spec.precision == "32-true" and not spec.tricks


def _can_average(spec: Spec) -> bool:
    return is_usual(spec) and not spec.tricks


MUTATORS = (
    Mutator(
        "clipping-misplaced",
        "Gradients are clipped to a norm of 0.01 only when the step has used them, and the rate is a factor too high.",
        (3, 10, 30, 100, 1000),
        change=_raise_rate,
        plant=_clip_late,
        fits=lambda spec: is_plain(spec) and _is_dense(spec) and spec.accumulate == 1 and not spec.tricks,
    ),
    Mutator(
        "tie-lost",
        "The head, whose weight is to be the embedding, has a copy of its own, a factor larger.",
        (1, 3, 10, 30, 100),
        plant=_untie,
        fits=lambda spec: spec.family == "transformer" and tied(spec) and is_usual(spec),
    ),
    Mutator(
        "part-in-list",
        "A plain list holds a share of the hidden layers, the first ones, so that nothing trains them.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_hide,
        fits=_is_layered,
    ),
    Mutator(
        "average-lags",
        "The model ends as a moving average of its weights with a decay that is too near to 1.",
        (0.9, 0.99, 0.999, 0.9999, 0.99999),
        plant=_lag,
        fits=_can_average,
    ),
    Mutator(
        "average-without-statistics",
        "The model ends as a moving average of its parameters, in which a share of the norms has the first statistics.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_forget_statistics,
        fits=lambda spec: dict(spec.shape).get("norm") == "batch" and _can_average(spec),
    ),
    Mutator(
        "resumed-without-state",
        "After a share of its steps the training is resumed with its weights alone: optimizer and schedule begin again.",
        (0.3, 0.5, 0.7, 0.9, 0.95),
        plant=_resume_without,
        fits=lambda spec: _can_average(spec) and not is_plain(spec) and spec.schedule != "constant",
    ),
    Mutator(
        "gradients-of-another-loss",
        "In a share of the steps, the gradients that the generator's loss leaves in the discriminator are not cleared.",
        (0.1, 0.3, 0.5, 0.8, 1.0),
        plant=_leave_gradients,
        fits=lambda spec: spec.family == "gan",
    ),
)
