"""What a loss scaler does: which steps it skips, and for which optimizers it leaves gradients scaled."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import Participant, PhaseMemo
from lightning_hooks.private import private


def unscales_itself(optimizer: Any) -> bool:
    """Whether an optimizer divides by the loss scale inside its own step, as fused ones do."""
    return _unscaling_test()(optimizer)


@cache
def _unscaling_test() -> Callable[[Any], bool]:
    def marked(optimizer: Any) -> bool:
        return bool(getattr(optimizer, "_step_supports_amp_scaling", False))

    def find() -> Callable[[Any], bool]:
        if not marked(torch.optim.SGD([torch.zeros(1, requires_grad=True, device="cpu")], fused=True)):
            raise AttributeError("a fused SGD has no such mark")
        return marked

    def fused(optimizer: Any) -> bool:
        return any(group.get("fused") for group in getattr(optimizer, "param_groups", ()))

    public: Callable[[Any], bool] = fused
    lost = "an optimizer without the option fused= that unscales inside its step is not recognised"
    return private("Optimizer._step_supports_amp_scaling", find, public, lost)


class ScalerWatch(Participant):
    """Notes for the other participants what the loss scaler found, and counts the steps that the scaler skips.

    Whether a gradient was infinite is a tensor on the device, which is read only when the step is written, so that no hook
    waits for the device. A step that a transform skips too is counted by the transform. The watch joins with one callback, and
    acts even if that callback was removed from the Trainer.

    Args:
        scale: returns the loss scale, or None if the scaler has not scaled yet.
        found_inf: returns what the scaler found in the gradients of an optimizer, above 0 for an infinite one; None if the
            scaler has not unscaled them yet.
        optimizers: the optimizers of the model.
    """

    serves_all = True

    def __init__(
        self,
        scale: Callable[[], Tensor | None],
        found_inf: Callable[[Any], Tensor | None],
        optimizers: Sequence[Any],
    ) -> None:
        self._scale = scale
        self._found_inf = found_inf
        self.reads_updates = any(map(unscales_itself, optimizers))
        self._count: Tensor | float = 0.0
        self._open: dict[int, PhaseMemo] = {}

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "always" if stage == "train" else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._count_open()

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        memo.found_inf = self._found_inf(optimizer)
        memo.scale = self._scale() if unscales_itself(optimizer) or memo.found_inf is None else None
        # Keep each memo once by its id: LBFGS runs its closure several times in a step, each time with the same memo.
        self._open[id(memo)] = memo

    def before_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        # The scaler calls a fused optimizer even after an overflow, and sets the attribute `found_inf` just before.
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            memo.found_inf = found_inf

    def take_reports(self) -> dict[str, float]:
        self._count_open()
        self._count = float(self._count)
        return {"run/skipped_steps": self._count}

    def state_dict(self) -> dict[str, float]:
        self._count_open()
        return {"skipped_steps": float(self._count)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._count = state.get("skipped_steps", 0.0)

    def _count_open(self) -> None:
        for memo in self._open.values():
            if memo.found_inf is not None and not memo.skipped:
                self._count = self._count + (memo.found_inf > 0).double()
        self._open.clear()
