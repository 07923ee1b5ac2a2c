"""What a fit can be made to do in a block of steps: nothing, our monitor, or one of the peers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from benchmarks.blocks import Layout
from lightning_hooks import StatsMonitor, Watch

EIGHT = ("mean", "std", "rms", "min", "max", "abs_max", "zero_fraction", "nonfinite")


def everything(extra_params: tuple[str, ...] = (), extra_stats: tuple[str, ...] = ()) -> list[Watch]:
    """The rules of "everything": every leaf module and every parameter, eight statistics.

    Args:
        extra_params: further tensors of parameters.
        extra_stats: further statistics.
    """
    stats = (*EIGHT, *extra_stats)
    return [
        Watch(modules="*", select="leaves", tensors=("output", "output_grad"), stats=stats),
        Watch(params="*", tensors=("param", "grad", *extra_params), stats=stats),
    ]


class Mode:
    """Something that is on in some blocks of a fit and away in the others.

    Args:
        name: of the mode.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, trainer: Trainer) -> None:
        """Called before the first step; the callbacks of the mode are in the trainer then."""

    def start(self, trainer: Trainer) -> None:
        """Called between two steps, before the first of a block; not timed."""

    def stop(self, trainer: Trainer) -> None:
        """Called between two steps, after the last of a block; not timed."""

    def gone(self, trainer: Trainer) -> None:
        """Called one step after `stop`: what needed that step to take itself away can be dropped; not timed."""

    def finish(self, trainer: Trainer) -> None:
        """Called when the fit ends, well or badly."""

    @property
    def callbacks(self) -> list[Callback]:
        """What the trainer must be made with."""
        return []


class CallbackMode(Mode):
    """Callbacks that are taken out of the trainer where their mode is off.

    Out of the trainer, not merely idle, so that the steps without them are those of a run that has never heard of them.
    """

    def __init__(self, name: str, *callbacks: Callback) -> None:
        super().__init__(name)
        self._own = list(callbacks)

    @property
    def callbacks(self) -> list[Callback]:
        """What the trainer must be made with."""
        return self._own

    def start(self, trainer: Trainer) -> None:
        """Put them back."""
        present = _callbacks(trainer)
        present += [callback for callback in self._own if callback not in present]

    def gone(self, trainer: Trainer) -> None:
        """Take them out, one step late: our monitor takes its hooks off when it sees that a step is not watched."""
        present = _callbacks(trainer)
        present[:] = [callback for callback in present if callback not in self._own]

    def finish(self, trainer: Trainer) -> None:
        """Put them back, so that they are told of the end and clean up."""
        self.start(trainer)


class LaunchMode(CallbackMode):
    """Callbacks whose kernels on a CUDA device are launched in another way than by default.

    Attributes:
        module: the module in `stats/kernels` that has the switches.
        switches: the values of its switches in the blocks of the mode.
    """

    module: ClassVar[str] = "driver"
    switches: ClassVar[dict[str, bool]] = {}

    def __init__(self, name: str, *callbacks: Callback) -> None:
        super().__init__(name, *callbacks)
        self._before: dict[str, bool] = {}

    def start(self, trainer: Trainer) -> None:
        """Put the callbacks back; the writers of their rows are made in the first block."""
        super().start(trainer)
        before = set_launches(self.switches, self.module)
        self._before = self._before or before  # `finish` calls this method, perhaps within a block

    def stop(self, trainer: Trainer) -> None:
        """Let the other modes launch as by default."""
        set_launches(self._before, self.module)
        self._before = {}

    def finish(self, trainer: Trainer) -> None:
        """Put the callbacks back, also if the fit ended within a block."""
        super().finish(trainer)
        self.stop(trainer)


class LaunchesFromPython(LaunchMode):
    """Launches from Python, as where nothing is compiled."""

    switches: ClassVar[dict[str, bool]] = {"is_used": False}


class LaunchesAtOnce(LaunchMode):
    """A launch in each hook."""

    switches: ClassVar[dict[str, bool]] = {"gradients_are_late": False, "outputs_are_late": False}


class AllLate(LaunchMode):
    """A launch for up to eight gradients or outputs."""

    switches: ClassVar[dict[str, bool]] = {"gradients_are_late": True, "outputs_are_late": True}


def set_launches(switches: Mapping[str, bool], module: str = "driver") -> dict[str, bool]:
    """Set how kernels on a CUDA device are launched from the next step on, and return how they were launched before.

    Args:
        switches: values of switches. `is_used` holds for writers and actions that are made from now on.
        module: the module in `stats/kernels` that has the switches.
    """
    of = import_module(f"lightning_hooks.stats.kernels.{module}")
    before = {name: getattr(of, name) for name in switches}
    for name, value in switches.items():
        setattr(of, name, value)
    return before


class IdleHooks(Mode):
    """Hooks that do nothing, on every leaf module and on the gradient of its result: what torch itself takes to call them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._handles: list[RemovableHandle] = []

    def start(self, trainer: Trainer) -> None:
        """Put them on."""
        for module in trainer.lightning_module.modules():
            if not any(module.children()):
                self._handles.append(module.register_forward_hook(_pass_on))

    def stop(self, trainer: Trainer) -> None:
        """Take them off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def finish(self, trainer: Trainer) -> None:
        """Take them off, if the fit ended within a block."""
        self.stop(trainer)


def _pass_on(module: nn.Module, args: Any, output: Any) -> None:
    if isinstance(output, Tensor) and output.requires_grad:
        output.register_hook(_ignore)


def _ignore(grad: Tensor) -> None:
    """Called with a gradient."""


def monitor_mode(
    name: str,
    rules: list[Watch] | None,
    layout: Layout,
    index: int | None = None,
    kind: type[CallbackMode] = CallbackMode,
    **options: Any,
) -> CallbackMode:
    """A `StatsMonitor` that watches the steps of its own blocks.

    Args:
        name: of the mode.
        rules: what it watches; None for its default rules.
        layout: of the run.
        index: watch only this step of each block; default all.
        kind: of the mode.
        options: further ones of the monitor.
    """
    steps = watched_steps(name, layout, index)
    # The default rules draw histograms at every fiftieth step; rules that name histograms draw them at each of their steps.
    limits = {"max_histograms": 10**6, **({} if rules is None else {"histogram_every_n_steps": 1}), **options}
    return kind(name, StatsMonitor(watch=rules, every_n_steps=steps, **limits))


def watched_steps(name: str, layout: Layout, index: int | None = None) -> list[int]:
    """The steps of the blocks of a mode.

    Args:
        name: of the mode.
        layout: of the run.
        index: only this step of each block; default all.
    """
    return [
        step
        for step in range(layout.steps)
        if layout.mode_at(step) == name and layout.index_in_block(step) >= 0 and index in (None, layout.index_in_block(step))
    ]


def _callbacks(trainer: Trainer) -> list[Callback]:
    present: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return present
