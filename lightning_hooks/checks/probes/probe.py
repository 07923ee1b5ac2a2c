"""Probe: what measures one thing of a step. A check registers the probes that it reads, and a trial runs no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from lightning_hooks.checks.recorder import Recorder


class Probe:
    """Measures one thing of a step. A recorder calls the methods while the step runs.

    An error of a probe with a field does not disturb the step: whoever reads the field gets the error.

    Attributes:
        field: the field of the record that the probe fills, by which checks register the probe; empty for a probe that one
            check makes for itself.
        recorder: of the step that runs.
    """

    field: ClassVar[str] = ""
    recorder: Recorder

    def begin(self, recorder: Recorder) -> None:
        """Called before the step."""
        self.recorder = recorder

    def before_module(self, name: str, module: nn.Module, args: Any) -> None:
        """Called before a module runs, in the thread of the step."""

    def after_module(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        """Called after a module has run."""

    def before_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Called before a function of torch runs."""

    def after_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Called after a function of torch has run."""

    def after_backward(self, loss: Tensor) -> None:
        """Called after each backward of a loss."""

    def before_update(self, optimizer: Optimizer) -> None:
        """Called before an optimizer steps."""

    def on_gradients(self) -> None:
        """Called when parameters have gradients: after each backward of a loss, and before each step of an optimizer."""

    def after_update(self, optimizer: Optimizer) -> None:
        """Called after an optimizer has stepped."""

    def end(self) -> None:
        """Called after a step that did not raise."""


EVENTS = tuple(name for name in vars(Probe) if not name.startswith("_") and name not in ("field", "recorder"))
"""The methods that a recorder calls."""
