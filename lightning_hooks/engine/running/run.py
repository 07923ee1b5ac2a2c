"""Run: one fit, one run of another stage, or one `instrument` block, from its first participant to its last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.participants.overhead import Meter
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.engine.running.installed_hooks import InstallFinal

_RUNS: WeakSet[Run] = WeakSet()
"""The runs that have begun, each with its model: for `paused`, which is given a model only, and for nested runs.

The only state of the process that this package keeps about runs. It keeps nothing alive."""


class Run:
    """What lives from the first participant on a model to the last one.

    Args:
        model: the root module.
        optimizers: called for the optimizers whose updates are watched; they may change during a fit.
        install_final: installs what runs the phase `final`; None where the loop itself runs it.
        warned_uncalled: the names of modules of which a warning has said that they are never called; may outlive the run.

    Attributes:
        meter: the clock of overhead.
        hook_manager: owns every hook on the model.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Callable[[], Sequence[Optimizer]] = tuple,
        install_final: InstallFinal | None = None,
        warned_uncalled: set[str] | None = None,
    ) -> None:
        self.meter = Meter()
        self.hook_manager = HookManager(
            model, optimizers, install_final=install_final, meter=self.meter, warned_uncalled=warned_uncalled
        )

    @property
    def model(self) -> nn.Module:
        return self.hook_manager.model

    @property
    def participants(self) -> Sequence[Participant]:
        """Who may act, in the order of the callbacks."""
        return self.hook_manager.participants

    @property
    def is_live(self) -> bool:
        """Whether the run has begun and not ended."""
        return bool(self.hook_manager.participants)

    def join(self, participant: Participant) -> None:
        """Add a participant; the run is live from the first one on."""
        _RUNS.add(self)
        self.hook_manager.join(participant)

    def leave(self, participants: Iterable[Participant]) -> None:
        """Remove participants, between batches; without any left, the run ends."""
        for participant in participants:
            self.hook_manager.leave(participant)
        if not self.is_live:  # an interruption may come before the first of them has joined
            self.close()

    def close(self) -> None:
        """End the run: remove every hook and handle. A second call does nothing."""
        self.hook_manager.close()
        _RUNS.discard(self)


def runs_on(model: nn.Module) -> list[Run]:
    """The live runs whose model is this one, contains this one, or is contained in this one."""
    inside = set(map(id, model.modules()))
    live = [run for run in list(_RUNS) if run.is_live]
    return [run for run in live if id(run.model) in inside or any(module is model for module in run.model.modules())]
