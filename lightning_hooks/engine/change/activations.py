"""One set of transforms at work on activations: changes what modules are given, or return, in the forward pass."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from lightning_hooks.engine.change.bound import BoundTransform
from lightning_hooks.engine.change.gradients import GradientChanger
from lightning_hooks.engine.participant import ModulePart
from lightning_hooks.engine.sites import AbsentParts
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks import is_recomputation
from lightning_hooks.rules import parse_tensor
from lightning_hooks.rules.patterns import Target


class ActivationChanger(GradientChanger):
    """Runs the links of a chain in the forward pass; autograd goes through what they do.

    Args:
        links: from `resolve_applies`, of stage `forward`.
        order: place among the participants.
        rank: of this process.
    """

    ever: str | None = None

    def __init__(self, links: Sequence[BoundTransform], *, order: tuple[int, ...] = (0,), rank: int = 0) -> None:
        super().__init__(links, order=order, rank=rank)
        self._stages = [link.rule.stages or ("train",) for link in self.links]
        self._parts: list[_ForwardPart] = []
        self.absent = AbsentParts()

    def due(self, step: int, stage: str) -> Hashable | None:
        """The links whose rule names the stage."""
        return tuple(i for i, stages in enumerate(self._stages) if stage in stages) or None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        """Note the number of the step; in other stages than `train` it stays that of the training."""
        if stage == "train":
            super().begin_step(step, stage, reporting)
            return
        self.reporting = False
        for link in self.links:
            link.reseed(step, self.rank)

    def begin_batch(self) -> None:
        """Forget the calls of the last batch, which nobody will compute again."""
        for part in self._parts:
            part.calls.clear()

    def end_step(self) -> None:
        """Say which parts no module had."""
        self.absent.warn()

    def module_parts(self, key: Any) -> Iterable[ModulePart]:
        """A part for each module that a link acts on in this stage."""
        self._parts = []
        for i in key:
            link = self.links[i]
            at, path = parse_tensor(link.tensor)
            for target in link.targets:
                part = _ForwardPart(self, link, target)
                self._parts.append(part)
                yield ModulePart(target.value, at, path, part)


class _ForwardPart:
    """One link at one module, in forward."""

    changes = True

    def __init__(self, changer: ActivationChanger, link: BoundTransform, target: Target[nn.Module]) -> None:
        self.changer = changer
        self.link = link
        self.target = target
        self.random = bool(getattr(link.transform, "random", False))
        self.calls: list[_Before] = []

    def absent(self, found: bool, tree: Any) -> None:
        """Note whether a call of the module has the tensor."""
        self.changer.absent.note(f"{self.link.place}: {self.link.tensor!r}", self.target.name, found, tree)

    def change(self, tensor: Tensor) -> Tensor | None:
        """The activation that goes on, or None where it stays as it is."""
        self.link.refuse_transformed(tensor, self.target.name)
        if not is_recomputation():
            before = self.changer.before(self.link, [tensor.detach()], self.target.name, owned=False)
            result = self._first(tensor)
            self.changer.after(self.link, before, [result.detach()], self.target.name)
        else:
            result = self._again(tensor) if self.random or self.calls else self._run(tensor)
        return None if result is tensor else result

    def _run(self, tensor: Tensor) -> Tensor:
        (result,) = self.link.run([tensor], [self.target.name], [None], self.changer.step, owned=False)
        return result

    def _first(self, tensor: Tensor) -> Tensor:
        context = self.link.context
        drawn = context.generator_for(tensor.device).get_state() if self.random else None
        before = _Before(drawn, copy.deepcopy(context.state))
        result = self._run(tensor)
        if self.random or context.state:
            self.calls.append(before)
        return result

    def _again(self, tensor: Tensor) -> Tensor:
        """Activation checkpointing computes the forward again, and must get the numbers of the first time."""
        if len(self.calls) != 1:
            why = "is random" if self.random else "keeps state"
            raise UnsupportedError(
                f"{self.link.place}: {self.link.name} {why}, and {self.target.name} was called {len(self.calls)} times under "
                "activation checkpointing: which call is computed again cannot be known. Leave the module out of the "
                "checkpoint, or use a transform that is neither random nor keeps state"
            )
        (before,) = self.calls
        context = self.link.context
        state, context.state = context.state, copy.deepcopy(before.state)
        generator = context.generator_for(tensor.device) if before.drawn is not None else None
        drawn = generator.get_state() if generator is not None else None
        try:
            if generator is not None and before.drawn is not None:
                generator.set_state(before.drawn)
            return self._run(tensor)
        finally:
            context.state = state
            if generator is not None and drawn is not None:
                generator.set_state(drawn)


class _Before(NamedTuple):
    """What the numbers of a call came from."""

    drawn: Tensor | None
    state: dict[str, Any]
