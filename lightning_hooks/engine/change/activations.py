"""The participant that transforms activations: the inputs or outputs of modules, in the forward pass."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.engine.change.bound import BoundTransform
from lightning_hooks.engine.change.gradients import GradientChanger
from lightning_hooks.engine.participant import Part
from lightning_hooks.engine.sites import AbsentParts
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks import is_recomputation
from lightning_hooks.rules import parse_tensor
from lightning_hooks.rules.patterns import Target


class ActivationChanger(GradientChanger):
    """Runs transforms in the forward pass; autograd goes through what they do.

    Args:
        transforms: from `resolve_applies`, with `when="forward"`.
        order: its position among the participants.
        rank: of this process.
    """

    ever: str | None = None

    def __init__(self, transforms: Sequence[BoundTransform], *, order: tuple[int, ...] = (0,), rank: int = 0) -> None:
        super().__init__(transforms, order=order, rank=rank)
        self._stages = [bound.rule.stages or ("train",) for bound in self.transforms]
        self._parts: list[_ForwardPart] = []
        self.absent = AbsentParts()

    def due(self, step: int, stage: str) -> Hashable | None:
        """The transforms whose rule names the stage."""
        return tuple(i for i, stages in enumerate(self._stages) if stage in stages) or None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        """In other stages than `train` transforms are given the number of the training step."""
        if stage == "train":
            super().begin_step(step, stage, reporting)
            return
        self.reporting = False
        for bound in self.transforms:
            bound.reseed(step, self.rank)

    def begin_batch(self) -> None:
        """Forget the calls of the last batch, which checkpointing does not compute again."""
        for part in self._parts:
            part.calls.clear()

    def end_step(self) -> None:
        self.absent.warn()

    def parts(self, key: Any) -> Iterable[Part]:
        self._parts = []
        for i in key:
            bound = self.transforms[i]
            at, path = parse_tensor(bound.tensor)
            for target in bound.targets:
                part = _ForwardPart(self, bound, target)
                self._parts.append(part)
                absent = partial(self.absent.note, f"{bound.where}: {bound.tensor!r}", target.name)
                yield Part(target.value, at, part.change, path, changes=True, absent=absent)


class _ForwardPart:
    """A transform at one module, in the forward pass."""

    def __init__(self, changer: ActivationChanger, bound: BoundTransform, target: Target[nn.Module]) -> None:
        self.changer = changer
        self.bound = bound
        self.target = target
        self.random = bool(getattr(bound.transform, "random", False))
        self.calls: list[tuple[Tensor | None, dict[str, Any]]] = []  # random state and state of the transform before each

    def change(self, tensor: Tensor) -> Tensor | None:
        """The new activation, or None if it does not change."""
        self.bound.refuse_transformed(tensor, self.target.name)
        if not is_recomputation():
            result = self._first(tensor)
        else:
            result = self._again(tensor) if self.random or self.calls else self._repeat(tensor)
        return None if result is tensor else result

    def _repeat(self, tensor: Tensor) -> Tensor:
        """Run it without a report: the first time was reported."""
        (result,) = self.bound.run([tensor], [self.target.name], [None], self.changer.step, owned=False)
        return result

    def _first(self, tensor: Tensor) -> Tensor:
        context = self.bound.context
        drawn = context.generator_for(tensor.device).get_state() if self.random else None
        before = drawn, copy.deepcopy(context.state)
        (result,) = self.changer.run(self.bound, [tensor], [self.target.name], [None], owned=False)
        if self.random or context.state:
            self.calls.append(before)
        return result

    def _again(self, tensor: Tensor) -> Tensor:
        """Activation checkpointing computes the forward again, and must get the numbers of the first time."""
        if len(self.calls) != 1:
            why = "is random" if self.random else "keeps state"
            raise UnsupportedError(
                f"{self.bound.where}: {self.bound.name} {why}, and {self.target.name} was called {len(self.calls)} times under "
                "activation checkpointing: which call is computed again cannot be known. Exclude the module from the "
                "checkpoint, or use a transform that is neither random nor keeps state"
            )
        ((drawn, first_state),) = self.calls
        context = self.bound.context
        now = context.state, None if drawn is None else context.generator_for(tensor.device).get_state()
        try:
            self._restore(drawn, copy.deepcopy(first_state), tensor.device)
            return self._repeat(tensor)
        finally:
            self._restore(now[1], now[0], tensor.device)

    def _restore(self, drawn: Tensor | None, state: dict[str, Any], device: torch.device) -> None:
        self.bound.context.state = state
        if drawn is not None:
            self.bound.context.generator_for(device).set_state(drawn)
