"""Other tools on the trainings of the gallery, each attached as its documentation says, and what it said in the same terms."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from galleries.recorder.answer import Answer
from galleries.recorder.fault import Case, Fault
from lightning_hooks.recorder.record import Verdict


class Tool:
    """Watches one training: `prepare`, then the fit with `callbacks` and `options` in `around`, then `answer`."""

    name: ClassVar[str] = "nothing"

    def __init__(self) -> None:
        self.step = 0
        """The step, as the x-axis of `self.log` has it. A tool that stops the run names the step that is under way."""
        self.callbacks: list[Callback] = [_Steps(self)]
        self.options: dict[str, Any] = {}
        self.warnings: list[str] = []

    def prepare(self, case: Case) -> None:
        """Attach to the module."""
        self.module = case.module

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """A context for the fit."""
        yield

    def answer(self, fault: Fault, error: Exception | None) -> Answer | None:
        """What was said.

        Args:
            fault: the training.
            error: what ended the fit.
        """
        return None


class _Steps(Callback):
    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.tool.step = trainer.fit_loop.epoch_loop._batches_that_stepped


class Anomaly(Tool):
    """Names a node whose gradient is NaN, and prints the lines of the forward pass that made the node."""

    name = "set_detect_anomaly"

    def __init__(self) -> None:
        super().__init__()
        self.callbacks.append(_Switch())

    def answer(self, fault: Fault, error: Exception | None) -> Answer | None:
        """The node of the message, and the module whose class has the innermost of the printed lines."""
        found = re.search(r"Function '(\w+)' returned nan", str(error)) if error else None
        if found is None:
            return None
        return Answer(
            verdict=str(Verdict.BACKWARD),
            direction="backward",
            step=self.step,
            operation=_operation(found[1], fault),
            node=found[1],
            module=self._module(fault),
            text=str(error)[:200],
        )

    def _module(self, fault: Fault) -> str | None:
        """The expected name if the innermost line of the trace is in the class of that module.

        The trace has lines and no names: of several modules of one class, the right one is assumed.
        """
        traces = [text for text in self.warnings if "Traceback of forward call" in text]
        frames = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', traces[-1]) if traces else []
        own = [(file, int(line)) for file, line, _ in frames if "galleries/recorder" in file and not file.endswith("/fault.py")]
        if not own:
            return None
        expected = self.module.get_submodule(fault.module) if fault.verdict in _WITH_MODULES else None
        lines, first = inspect.getsourcelines(type(expected)) if expected is not None else ([], 0)
        return fault.module if first <= own[-1][1] < first + len(lines) else None


_WITH_MODULES = (Verdict.FORWARD, Verdict.BACKWARD, Verdict.SCALER)


def _operation(node: str, fault: Fault) -> str:
    """The expected operation if a node is that of the fault, or the node of the fault's forward operation."""
    bare = fault.operation.removeprefix("aten.").replace("_", "")
    is_same = node == fault.node or (not fault.node and bare and node.lower().startswith(bare))
    return fault.operation if is_same else node


class _Switch(Callback):
    """Turns anomaly mode on when batches begin: a Trainer sets it itself when it starts, and sets it back when it ends."""

    def on_train_start(self, *_: Any) -> None:
        torch.autograd.set_detect_anomaly(True)


class LightningAnomaly(Anomaly):
    """The same switch as an argument of the Trainer."""

    name = "Trainer(detect_anomaly=True)"

    def __init__(self) -> None:
        Tool.__init__(self)
        self.options = {"detect_anomaly": True}


class Finite(Tool):
    """Stops when the loss that the module logs is not finite."""

    name = "EarlyStopping(check_finite=True)"

    def __init__(self) -> None:
        super().__init__()
        self.stopping = _EachBatch("loss", patience=1000, check_finite=True, verbose=False)
        self.callbacks.append(self.stopping)

    def answer(self, fault: Fault, error: Exception | None) -> Answer | None:
        """The step at which it stopped; its message names the metric alone."""
        return Answer(step=self.stopping.said_at, text="loss is not finite") if self.stopping.said_at is not None else None


class _EachBatch(EarlyStopping):
    """Checks after each batch, as it does after a validation with `val_check_interval=1`."""

    said_at: int | None = None

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self._step = trainer.fit_loop.epoch_loop._batches_that_stepped

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.monitor in trainer.callback_metrics:
            self._run_early_stopping_check(trainer)
        if trainer.should_stop and self.said_at is None:
            self.said_at = self._step

    def on_train_epoch_end(self, *_: Any) -> None:
        """Nothing: each batch was checked."""


class Transformers(Tool):
    """Prints the module in whose weights, inputs or outputs it sees NaN or infinity in the forward pass, and raises."""

    name = "DebugUnderflowOverflow"

    def prepare(self, case: Case) -> None:
        """Register its hooks on the module, as its documentation does."""
        from transformers.debug_utils import DebugUnderflowOverflow

        super().prepare(case)
        DebugUnderflowOverflow(case.module)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Keep what it prints."""
        self.printed = io.StringIO()
        with contextlib.redirect_stdout(self.printed):
            yield

    def answer(self, fault: Fault, error: Exception | None) -> Answer | None:
        """The last frame, and the tensor in it that is not finite."""
        if "DebugUnderflowOverflow" not in str(error):
            return None
        printed = self.printed.getvalue()
        tensors = re.findall(r"^(\S+) has (?:nans|infs)$", printed, re.MULTILINE)
        frames = re.findall(r"^ {17} (\S*) (\w+)$", printed, re.MULTILINE)
        module = next((name for name, _ in reversed(frames) if name != "***"), "")
        tensor = tensors[0] if tensors else ""
        if tensor.startswith(("input", "output")):
            is_batch = tensor.startswith("input") and self._is_first(module)
            verdict = Verdict.BATCH if is_batch else Verdict.FORWARD
        else:
            verdict, module = Verdict.WEIGHTS, f"{module}.{tensor}"
        return Answer(str(verdict), module, self.step, direction="forward", tensor=tensor, text=f"{module} {tensor}")

    def _is_first(self, module: str) -> bool:
        """Whether the tensor is the input of the first module that has a frame: the batch."""
        leaves = [name for name, each in self.module.named_modules() if not list(each.children())]
        return bool(leaves) and module == leaves[0]


def peers() -> list[type[Tool]]:
    """The tools that are installed."""
    return [Anomaly, LightningAnomaly, Finite, *([Transformers] if find_spec("transformers") else [])]
