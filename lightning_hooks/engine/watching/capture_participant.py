"""The participant of a capture: passes on the tensors of matched modules, whole or reduced."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.engine.participants.actions import AbsentParts, gradient_of
from lightning_hooks.engine.participants.participant import ModuleRule, Participant
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks import Action
from lightning_hooks.rules import parse_tensor
from lightning_hooks.rules.patterns import Target
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats import kernels
from lightning_hooks.tensor_kinds import (
    TRANSFORMED,
    first_line,
    inside_transform,
    is_dense,
    kind_of,
    with_memory,
    without_subclass,
)

Take = Callable[[str, Tensor], None]


class CaptureParticipant(Participant):
    """Pass on the tensors of matched modules.

    Args:
        targets: the modules.
        tensor: the name of a module's tensor, or of a part of it: `output`, `input_grad`, `output[0]`.
        stages: the stages in which tensors are captured.
        schedule: the steps at which tensors are captured; in other stages than `train`, the batches.
        reduce: returns the tensor to capture, given the tensor of the module.
        take: called with the name of the module and the tensor to capture.
    """

    graph_key = "always"

    def __init__(
        self,
        targets: Sequence[Target[nn.Module]],
        tensor: str,
        stages: Collection[str],
        schedule: EveryN,
        reduce: Callable[[Tensor], Tensor],
        take: Take,
    ) -> None:
        self.targets = list(targets)
        self.tensor = tensor
        self.stages = stages
        self.schedule = schedule
        self.reduce = reduce
        self.take = take
        self._warned: set[str] = set()
        self.absent = AbsentParts()

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "always" if stage in self.stages and self.schedule.due(step) else None

    def all_targets(self) -> Iterable[Target[Any]]:
        return self.targets

    def end_step(self) -> None:
        self.absent.warn()

    def actions(self, key: Any) -> Iterable[Action]:
        named, path = parse_tensor(self.tensor)
        tensor, backward = gradient_of(named)
        for target in self.targets:
            absent = partial(self.absent.note, f"ActivationCapture: {self.tensor!r}", target.name)
            yield Action(target.value, tensor, partial(self._copy, target.name), path, absent=absent, backward=backward)

    def module_rules(self, key: Any = None) -> Iterable[ModuleRule]:
        yield ModuleRule("modules", self.targets)

    def _copy(self, name: str, tensor: Tensor) -> None:
        """Pass on the tensor of a module; warn once of a module whose tensors are of a type that cannot be read."""
        if inside_transform(tensor):
            raise UnsupportedError(
                f"ActivationCapture: the {self.tensor} of {name} cannot be captured: it is a {TRANSFORMED}, whose values "
                f"are not those of the step. Exclude {name} from modules, or call the function without the hooks: with "
                "lightning_hooks.paused(model)"
            )
        # The code of a tensor subclass may refuse to tell the device.
        with without_subclass():
            into_graph = kernels.is_capturing(tensor.device)
        if into_graph:
            self._warn_once(
                "CUDA graph", f"{self.tensor} of {name} is not captured while a CUDA graph is: its replays call no hooks"
            )
            return
        try:
            with torch.no_grad():
                captured = with_memory(self.reduce(tensor.detach()))
        except Exception as error:
            if is_dense(tensor):
                raise
            self._warn_once(
                name, f"{self.tensor} of {name} is not captured: a {kind_of(tensor)} cannot be read: {first_line(error)}"
            )
            return
        self.take(name, captured)

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(message, stacklevel=3)
