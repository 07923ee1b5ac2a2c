"""The moments around an optimizer's step: what is shared between those who look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.participant import HasParameters, Participant, PhaseMemo
from lightning_hooks.hooks import Handles, OurHook

_READ_AT = {"at_final": ("final_grad",), "after_update": ("update", "state")}


class Phases:
    """Lets participants look at gradients and parameters before and after an optimizer's step.

    `scale` is the loss scale of the last backward; None where none was noted.
    """

    def __init__(self) -> None:
        self.scale: Tensor | None = None
        self._memos: dict[int, tuple[HasParameters, PhaseMemo]] = {}  # with the optimizer, whose id stays its own

    def clear(self) -> None:
        """Forget what was measured in the step that ends."""
        self._memos.clear()

    def before_step(self, participant: Participant, optimizer: HasParameters, active: Sequence[Participant]) -> None:
        """Let one participant act on the gradients of an optimizer's step.

        Args:
            participant: who.
            optimizer: whose step.
            active: all who act in the step.
        """
        memo = self._memo(optimizer, active)
        if id(participant) in memo.readers:  # LBFGS runs its closure again: what was read before is old
            memo.readers.clear()
            memo.looks.clear()
            memo.skipped = False
        memo.readers.add(id(participant))
        with participant.account:
            participant.before_step(optimizer, memo)

    def at(self, name: str, optimizer: HasParameters, active: Sequence[Participant]) -> None:
        """Let everybody look.

        Args:
            name: of the moment: `at_final`, `before_update` or `after_update`.
            optimizer: whose step.
            active: all who act in the step.
        """
        memo = self._memo(optimizer, active)
        memo.forget(*_READ_AT.get(name, ()))
        if name == "before_update":
            memo.before.clear()
        for participant in active:
            with participant.account:
                getattr(participant, name)(optimizer, memo)

    def scaled_by(self, scale: Tensor, active: Sequence[Participant]) -> None:
        """Note the loss scale of the backward that begins; what flowed before it in this step is brought to that."""
        # Only where an optimizer has stepped can the scale have changed.
        factor = scale / self.scale if self._memos and self.scale is not None else None
        self.scale = scale.detach().clone()
        for participant in active:
            participant.scaled_by(self.scale, factor)

    def _memo(self, optimizer: HasParameters, active: Sequence[Participant]) -> PhaseMemo:
        if id(optimizer) not in self._memos:
            memo = PhaseMemo(shared=len(active) > 1 and sum(p.reads for p in active) > 1)
            self._memos[id(optimizer)] = optimizer, memo
        return self._memos[id(optimizer)][1]


def hook_updates(optimizer: Optimizer, moment: Callable[[str, HasParameters], None], handles: Handles) -> None:
    """Have a method called before and after an optimizer's step; it is known weakly.

    Args:
        optimizer: which.
        moment: a bound method, called with the name of the moment and the optimizer.
        handles: takes over the handles.
    """
    handles.keep(optimizer.register_step_pre_hook(_UpdateHook(moment, "before_update")))
    handles.keep(optimizer.register_step_post_hook(_UpdateHook(moment, "after_update")))


class _UpdateHook(OurHook):
    def __init__(self, moment: Callable[[str, HasParameters], None], name: str) -> None:
        self.owner = ref(moment.__self__)  # type: ignore[attr-defined]
        self.method = moment.__name__
        self.name = name

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        owner = self.owner()
        if owner is not None:
            getattr(owner, self.method)(self.name, optimizer)
