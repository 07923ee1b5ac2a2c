"""Run: one fit, one run of another stage, or one `instrument` block, from its first participant to its last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.participants.overhead import Meter
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.engine.running.installed_hooks import InstallFinal
from lightning_hooks.hooks import for_each

_RUNS: WeakSet[Run] = WeakSet()
"""The runs of this process that have begun, for `paused`, which is given only a model, and for nested runs.

The set holds weak references. Two other places keep state of a process about runs, because only a process has what it is about:
the numbers in compiled graphs (`hooks/traced.py`) and the recursion limit (`hooks/stack_room.py`)."""


class Run:
    """Holds the hook manager and the clock of a model, from the first participant that joins to the last one that leaves.

    Args:
        model: the root module.
        optimizers: returns the optimizers whose updates are watched; they may change during a fit.
        install_final: installs a wrapper that runs the phase `final`; None if the loop itself runs the phase.
        warned_uncalled: the names of modules that an earlier warning has named as not called; may outlive the run.

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
        """The participants that may act, in the order of the callbacks."""
        return self.hook_manager.participants

    @property
    def is_live(self) -> bool:
        """Whether the run has begun and not ended."""
        return bool(self.hook_manager.participants)

    def join(self, *participants: Participant) -> None:
        """Add participants; with the first ones the run begins."""
        _RUNS.add(self)
        self.hook_manager.join(*participants)

    def leave(self, participants: Iterable[Participant]) -> None:
        """Remove participants, between batches; when the last one has left, the run ends."""
        for participant in participants:
            self.hook_manager.leave(participant)
        # `hook_manager.leave` closes when the last participant leaves. Close here too: after Ctrl-C there may have been none.
        if not self.is_live:
            self.close()

    def close(self) -> None:
        """End the run: remove every hook and handle. A second call does nothing."""
        self.hook_manager.close()
        _RUNS.discard(self)


def runs_on(model: nn.Module) -> list[Run]:
    """The live runs whose model is `model`, contains it, or is contained in it."""
    inside = set(map(id, model.modules()))
    live = [run for run in list(_RUNS) if run.is_live]
    return [run for run in live if id(run.model) in inside or any(module is model for module in run.model.modules())]


@contextmanager
def paused_runs(model: nn.Module) -> Iterator[None]:
    """Remove the hooks of all runs that watch a model, one of its submodules, or a module that contains it, in the block."""
    hook_managers = [run.hook_manager for run in runs_on(model)]
    pause = object()
    try:
        for hook_manager in hook_managers:
            hook_manager.pause(pause)
        yield
    finally:
        for_each(lambda hook_manager: hook_manager.resume(pause), hook_managers)
