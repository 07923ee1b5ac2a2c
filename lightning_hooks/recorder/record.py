"""Flight record: the step in which a number stopped being finite, or in which an exception ended the run. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

FORMAT: Final = 1
"""The version of `record.json`. A reader accepts this number and lower ones."""


class Verdict(StrEnum):
    """What happened, as far as the numbers show it."""

    BATCH = "batch"
    """The batch has NaN or infinite elements, and they reached the loss."""
    WEIGHTS = "weights"
    """Parameters or buffers were not finite when the step began."""
    FORWARD = "forward"
    """An operation of the forward pass gave the first bad number from good ones."""
    BACKWARD = "backward"
    """The loss is finite; an operation of the backward pass gave the first bad number."""
    UPDATE = "update"
    """Gradients are finite; the optimizer wrote bad numbers into parameters or into its state."""
    GRADIENTS = "gradients"
    """The gradients of the backward pass are finite; what the optimizer read is not: code changed gradients in between."""
    ALL_REDUCE = "all_reduce"
    """Each gradient that this rank computed is finite; the gradients averaged over ranks are not."""
    SCALER = "scaler"
    """Gradients overflow in float16 although the loss scaler has lowered its scale. Overflows that it handles are no record."""
    NOT_REPRODUCED = "not_reproduced"
    """The same step, run again, gave finite numbers: the hardware, or an operation that is not deterministic."""
    EXCEPTION = "exception"
    """An exception ended the run; all numbers were finite."""
    SIGNAL = "signal"
    """A signal, such as SIGTERM, ended the run."""


@dataclass(frozen=True)
class TensorSummary:
    """The numbers of one tensor.

    Args:
        name: what the tensor is: `input 0`, `self`, `batch['image']`, `weight`.
        shape: its shape.
        dtype: for example `float16`.
        minimum: the smallest finite element; None if there is none.
        maximum: the largest finite element; None if there is none.
        nan: the number of NaN.
        positive_infinite: the number of +Inf.
        negative_infinite: the number of −Inf.
        first: the coordinates of the first element that is not finite; None if all are finite.
        abs_min: the smallest magnitude of a finite element; None if there is none, or if it was not measured.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    minimum: float | None = None
    maximum: float | None = None
    nan: int = 0
    positive_infinite: int = 0
    negative_infinite: int = 0
    first: tuple[int, ...] | None = None
    abs_min: float | None = None

    @property
    def nonfinite(self) -> int:
        """The number of elements that are NaN or infinite."""
        return self.nan + self.positive_infinite + self.negative_infinite

    @property
    def abs_max(self) -> float | None:
        """The largest magnitude of a finite element; None if there is none."""
        if self.minimum is None or self.maximum is None:
            return None
        return max(abs(self.minimum), abs(self.maximum))


@dataclass(frozen=True)
class Gap:
    """What may have made the first bad number, if only the calls of layers are known: the code between two of them.

    Args:
        before: the layer that was called before the place; empty if none was.
        at: the layer whose output, or the gradient of whose output, is the first that is not finite.
        modules: the modules whose own code can run between the calls of both; empty for the root.
        joined: whether several calls of the layer are noted together, as they are on a device.
    """

    before: str
    at: str
    modules: tuple[str, ...] = ()
    joined: bool = False


@dataclass(frozen=True)
class Place:
    """Where the first bad number appeared.

    Args:
        module: the dotted name of the module, or of the parameter for `update` and `weights`; empty for the model itself, and
            for code outside all modules.
        type: the class of the module; empty if there is none.
        direction: `forward`, `backward` or `update`.
        tensor: `output`, `output_grad`, `grad`, `param`, `loss`, `batch`, or `state.exp_avg_sq`; empty for an exception that is
            in no module.
        call: the number of the call of the module in its micro-batch, from 0.
        micro_batch: the number of the batch in its optimizer's step, from 0.
        step: the x-axis of `self.log`.
        rank: the process.
        world_size: the number of processes.
        result: the tensor with the first bad number.
        gap: what else may have made it; None if the operation is known, and if no call of a layer was the first.
    """

    module: str
    type: str
    direction: str
    tensor: str
    call: int
    micro_batch: int
    step: int
    rank: int = 0
    world_size: int = 1
    result: TensorSummary | None = None
    gap: Gap | None = None

    @property
    def module_text(self) -> str:
        """The name of the module in words."""
        if self.module or self.type:
            return self.module or "the model itself"
        is_known = self.tensor or self.direction != "backward"
        return "code outside all modules" if is_known else "not known, an exception of the backward pass names none"


@dataclass(frozen=True)
class Operation:
    """The operation that made the first bad number, found by running the step again.

    Args:
        name: of the operator, without its overload: `aten.log`; for a backward operation also of the node: see `node`.
        direction: `forward`, `backward` or `update`.
        module: the dotted name of the module that called it; empty outside all modules.
        type: the class of that module.
        call: the number of the call of that module in its batch, from 0.
        source: `file.py:31 in forward`, the innermost line of the user's code; empty if none is known.
        line: the text of that line.
        node: for a backward operation the autograd node, such as `SqrtBackward0`; empty otherwise.
        inputs: the tensors that it read, all finite.
        result: the tensor that it gave.
    """

    name: str
    direction: str
    module: str
    type: str
    call: int = 0
    source: str = ""
    line: str = ""
    node: str = ""
    inputs: tuple[TensorSummary, ...] = ()
    result: TensorSummary | None = None


_SIGNS: Final[Mapping[str, str]] = {"+inf": "+Inf", "-inf": "−Inf", "inf": "±Inf"}


@dataclass(frozen=True)
class TrailEntry:
    """One call in the order of execution.

    Args:
        name: the dotted name of the module or parameter.
        tensor: `output`, `output_grad`, `grad`, `param` or `loss`.
        step: the step of the call.
        micro_batch: the number of the batch in its step, from 0.
        call: the number of the call of this row in its micro-batch, from 0.
        minimum: the smallest finite element; None if there is none.
        maximum: the largest finite element; None if there is none.
        nonfinite: the number of elements that are not finite.
        kind: what these are: `nan` if a NaN is among them, else `+inf`, `-inf` or `inf` for both; empty if there are none.
        abs_min: the smallest magnitude of an element; None if a NaN is among them, or if it was not measured.
    """

    name: str
    tensor: str
    step: int
    micro_batch: int
    call: int
    minimum: float | None
    maximum: float | None
    nonfinite: int
    kind: str = ""
    abs_min: float | None = None

    @property
    def abs_max(self) -> float | None:
        """The largest magnitude; None if an element is not finite."""
        return None if self.minimum is None or self.maximum is None else max(abs(self.minimum), abs(self.maximum))

    @property
    def nonfinite_text(self) -> str:
        """How many elements are not finite, and what they are, as far as the trail knows; empty if all are finite."""
        if not self.nonfinite:
            return ""
        if self.kind == "nan":
            return "1 NaN" if self.nonfinite == 1 else f"{self.nonfinite}, with NaN"
        return f"{self.nonfinite} {_SIGNS.get(self.kind, '')}".strip()


@dataclass(frozen=True)
class Growth:
    """The largest magnitude of one row at the last steps.

    Args:
        name: the dotted name of the module or parameter.
        tensor: the tensor of the row.
        steps: the steps at which it was measured and had no NaN, ascending.
        abs_max: the largest magnitude at each.
    """

    name: str
    tensor: str
    steps: tuple[int, ...]
    abs_max: tuple[float, ...]


@dataclass(frozen=True)
class Failure:
    """The exception or the signal that ended the run.

    Args:
        type: the class of the exception, or the name of the signal.
        message: its text.
        traceback: as Python prints it.
        module: the dotted name of the innermost module whose method is in the traceback; empty for the model itself, None if
            there is no such module, or if the exception came out of a backward pass.
        direction: `forward` or `backward`.
    """

    type: str
    message: str
    traceback: str = ""
    module: str | None = ""
    direction: str = "forward"


@dataclass(frozen=True)
class FlightRecord:
    """What is known of the step in which something went wrong.

    Args:
        verdict: what happened.
        step: the step in which it was noticed.
        place: where; None if nothing was not finite.
        message: the verdict in one or two sentences.
        reproduced: whether the step, run again in place, gave the same; None if it was not run again.
        operation: the operation; None if the step was not run again or no operation of PyTorch made the number.
        inputs: what was still good, or the parts of the batch or the parameters that were bad.
        trail: the last calls, the earliest first.
        growth: the row of `place` at the last steps; None if it has no row.
        context: learning rates, loss scale, clipping, precision, autocast, compile, versions, by their names: values of JSON.
        failure: what ended the run; None if the run goes on.
        files: the files beside `record.json`, by what they hold: `batch`, `weights`, `optimizers`, `generators`.
        notes: what else is known, and what the record cannot say and why.
        format: the version of the format.
    """

    verdict: Verdict
    step: int
    place: Place | None = None
    message: str = ""
    reproduced: bool | None = None
    operation: Operation | None = None
    inputs: tuple[TensorSummary, ...] = ()
    trail: tuple[TrailEntry, ...] = ()
    growth: Growth | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    format: int = FORMAT
