"""Changes an activation in the forward pass, in the same way when activation checkpointing computes it again."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks import is_recomputation
from lightning_hooks.rules.patterns import Target

if TYPE_CHECKING:
    from lightning_hooks.engine.changing.participant import TransformParticipant


class ForwardChange:
    """Changes an activation; autograd differentiates through the change.

    Activation checkpointing computes the forward again, and must get the same numbers as the first time. So the random state
    and the state of the transform before each call are kept until the next batch.

    Args:
        participant: runs the transform, and counts batches.
        bound: the transform.
        target: the module whose activation changes.
    """

    def __init__(self, participant: TransformParticipant, bound: BoundTransform, target: Target[nn.Module]) -> None:
        self._participant = participant
        self.bound = bound
        self.target = target
        self.random = bool(getattr(bound.transform, "random", False))
        self._batch = 0
        self._calls: list[tuple[Tensor | None, dict[str, Any]]] = []

    def change(self, tensor: Tensor) -> Tensor | None:
        """The new activation, or None if it does not change."""
        self.bound.refuse_transformed(tensor, self.target.name)
        if self._batch != self._participant.batches:
            self._batch, self._calls = self._participant.batches, []
        if not is_recomputation():
            before = self._state(tensor.device)
            result = self._run(tensor)
            if self.random or self.bound.context.state:
                self._calls.append(before)
        elif self.random or self._calls:
            now = self._state(tensor.device)
            self._restore(self._only_call(), tensor.device)
            try:
                result = self._run(tensor, report=False)
            finally:
                self._restore(now, tensor.device)
        else:
            result = self._run(tensor, report=False)
        return None if result is tensor else result

    def _run(self, tensor: Tensor, *, report: bool = True) -> Tensor:
        (result,) = self._participant.run(self.bound, [tensor], [self.target.name], [None], report=report)
        return result

    def _state(self, device: torch.device) -> tuple[Tensor | None, dict[str, Any]]:
        """The state of the random generator, or None for a transform that draws nothing, and the state of the transform."""
        context = self.bound.context
        random_state = context.generator_for(device).get_state() if self.random else None
        return random_state, copy.deepcopy(context.state)

    def _restore(self, kept: tuple[Tensor | None, dict[str, Any]], device: torch.device) -> None:
        random_state, state = kept
        self.bound.context.state = copy.deepcopy(state)
        if random_state is not None:
            self.bound.context.generator_for(device).set_state(random_state)

    def _only_call(self) -> tuple[Tensor | None, dict[str, Any]]:
        if len(self._calls) != 1:
            why = "is random" if self.random else "keeps state"
            raise UnsupportedError(
                f"{self.bound.where}: {self.bound.name} {why}, and {self.target.name} was called {len(self._calls)} times "
                "under activation checkpointing: which call is computed again cannot be known. Exclude the module from the "
                "checkpoint, or use a transform that is neither random nor keeps state"
            )
        return self._calls[0]
