"""A dispatch mode that follows numbers that are not finite from the operator that made them through all others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks.engine.recording.autograd_nodes import ForwardOperators, running_node
from lightning_hooks.engine.recording.double_precision import is_infinite_in_double
from lightning_hooks.engine.recording.module_calls import Call, ModuleCalls
from lightning_hooks.engine.recording.operators import (
    UNINITIALISED,
    Argument,
    bad_scalars,
    base_name,
    results_of,
    tensor_arguments,
)
from lightning_hooks.engine.recording.origins import Birth, Origin, OriginMap, address_of
from lightning_hooks.engine.recording.source_lines import Line, stack_of_operation
from lightning_hooks.engine.recording.summaries import range_of, summary
from lightning_hooks.engine.rerun.ranks import DispatchMode, shown_name, waits_for_ranks
from lightning_hooks.recorder.record import TensorSummary


class StoppedEarly(BaseException):
    """Ends the step that a mode follows; not an `Exception`, so that the code of the step does not catch it."""


class Provenance(DispatchMode, TorchDispatchMode):
    """Notes the origin of every number that is not finite while a step runs.

    Args:
        calls: tells which module runs.
        origins: knows the tensors that were bad when the step began.
        limit: seconds from now after which the step is stopped.

    Attributes:
        births: the operators that made bad numbers, in order.
        is_update: set by the caller while the optimizer updates parameters.
        first_nan: the origin of the first NaN that was not there before.
        failures: operators whose tensors could not be read, with the reason.
        bad_roots: the origins of those tensors that are not finite and from which a backward pass began; None if unknown.
    """

    def __init__(self, calls: ModuleCalls, origins: OriginMap, limit: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.births: list[Birth] = []
        self.bad_roots: list[Origin | None] = []
        self.first_nan: Origin | None = None
        self.failures: dict[str, str] = {}
        self._calls, self._origins = calls, origins
        self.is_update = False
        self._deadline = time.perf_counter() + limit
        self._limit = limit
        self._forward = ForwardOperators()
        self._root_is_bad = False
        self._read_scalar: Origin | None = None

    def dispatched(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator, and find the origin of what is not finite in its results."""
        self._stop_if_due(operator)
        # An error of the examination must not change the step, so it becomes a note of the record.
        operation = None
        try:
            operation = self._before(operator, args, kwargs)
        except Exception as error:
            self.failures.setdefault(shown_name(operator), f"{type(error).__name__}: {error}")
        result = operator(*args, **kwargs)
        if operation is not None:
            try:
                self._after(operation, result)
            except Exception as error:
                self.failures.setdefault(shown_name(operator), f"{type(error).__name__}: {error}")
        return result

    def _before(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> _Operation:
        node = running_node()
        self._forward.note(self._calls.current, node)
        arguments = tensor_arguments(operator, args, kwargs)
        # Summarize the tensors that the operator changes before it runs: their elements are gone afterwards.
        before = {
            id(each): summary(each.name, each.tensor)
            for each in arguments
            if each.is_written and each.is_read and not self._origins.is_uninitialised(each.tensor)
        }
        scalars = bad_scalars(operator, args, kwargs)
        return _Operation(operator, base_name(operator), node, arguments, before, scalars, (args, kwargs))

    def _after(self, operation: _Operation, result: Any) -> None:
        name, arguments = operation.name, operation.arguments
        if name == "ones_like" and operation.node is None and arguments:
            self._note_root(arguments[0].tensor)
        elif name == "lift_fresh" and arguments:
            # `lift_fresh` takes a literal in new memory: forget the origin of an earlier tensor at the same address.
            self._origins.renew(arguments[0].tensor, None)
        elif name == "_local_scalar_dense" and arguments and not _is_finite(arguments[0].tensor):
            self._read_scalar = self._origins.origin_of(arguments[0].tensor)
        else:
            self._note_results(operation, result)

    def _stop_if_due(self, operator: Any) -> None:
        if waits_for_ranks(operator):
            raise StoppedEarly(f"the step waits for other ranks ({shown_name(operator)}), so it was not run again to its end")
        if time.perf_counter() > self._deadline:
            raise StoppedEarly(f"the step was stopped after {self._limit:g} s")

    def _note_root(self, root: Tensor) -> None:
        """Note the tensor from which a backward pass begins, if autograd asks for its first gradient."""
        if stack_of_operation().makes_root:
            self._root_is_bad = not _is_finite(root)
            if self._root_is_bad:
                self.bad_roots.append(self._origins.origin_of(root))

    def _note_results(self, operation: _Operation, result: Any) -> None:
        read_from = {address_of(each.tensor) for each in operation.arguments}
        fresh = [(i, each) for i, each in results_of(result) if address_of(each) not in read_from]
        if operation.name in UNINITIALISED:
            for _, tensor in fresh:
                self._origins.renew(tensor, None, is_initialised=False)
            return
        written = [(each.position, each.tensor) for each in operation.arguments if each.is_written]
        # Look up the origins of all results before noting any: a result that is written in place is also an operand.
        origins = [self._origin(operation, position, tensor) for position, tensor in [*written, *fresh]]
        renewed: set[int] = set()
        for (_, tensor), origin in zip([*written, *fresh], origins, strict=True):
            if origin is not None and self.first_nan is None and not origin.is_intended and _has_nan(tensor):
                self.first_nan = origin
            address = address_of(tensor)
            if address in read_from or address in renewed:
                self._origins.write(tensor, origin)
            else:
                self._origins.renew(tensor, origin)
                renewed.add(address)

    def _origin(self, operation: _Operation, position: int | None, tensor: Tensor) -> Origin | None:
        """The origin of the bad numbers of one result; None if it has none."""
        extent = range_of(tensor)
        if extent is None or extent.is_finite:
            return None
        operands = operation.operands_of(position)
        bad = [(each, has_nan) for each, has_nan in map(operation.with_nan, operands) if has_nan is not None]
        known = [(has_nan, self._origins.origin_of(each.tensor)) for each, has_nan in bad]
        stack = stack_of_operation()
        is_backward = (operation.node is not None or stack.in_backward) and not stack.recomputes
        direction = "backward" if is_backward else "update" if self.is_update or stack.in_optimizer else "forward"
        cause = None
        unintended = [(has_nan, origin) for has_nan, origin in known if origin is not None and not origin.is_intended]
        if operation.scalars and self._read_scalar is not None:
            unintended.append((extent.has_nan, self._read_scalar))
        if unintended:
            earliest = _earliest(unintended, extent.has_nan)
            is_of_forward = isinstance(earliest, Birth) and earliest.direction == "forward"
            if not (is_backward and is_of_forward and not self._root_is_bad):
                return earliest
            # The loss is finite, so the infinity of the forward pass did not reach it. This operator of the backward pass uses
            # the infinity first.
            cause = earliest
        unknown = [(each, has_nan) for (each, has_nan), (_, origin) in zip(bad, known, strict=True) if origin is None]
        intended = [origin for _, origin in known if origin is not None and origin.is_intended]
        has_literal = bool(intended or operation.scalars or unknown)
        is_intended = direction == "forward" and not extent.has_nan and has_literal and not any(nan for _, nan in unknown)
        if is_intended and intended:
            return min(intended, key=lambda origin: origin.order)
        call, line = self._place(operation.node, is_backward, stack.line)
        # Only the numbers that an operator reads show whether its type is too narrow, so others must not have been bad before.
        is_made = not (extent.has_nan or is_intended or bad or operation.scalars)
        birth = Birth(
            shown_name(operation.operator),
            direction,
            call,
            line,
            operation.node.name() if is_backward and operation.node is not None else "",
            extent.has_nan,
            is_intended,
            len(self.births),
            tuple(map(operation.summary_of, operands)),
            summary("result", tensor),
            operation.scalars,
            cause,
            tuple(self._remark(each) for each, _ in unknown),
            operation.exceeds_range(position) if is_made else None,
        )
        self.births.append(birth)
        return birth

    def _place(self, node: Any, is_backward: bool, line: Line | None) -> tuple[Call, Line | None]:
        if not is_backward or node is None:
            return self._calls.current, line
        call, forward_line = self._forward.of_node(node)
        # A line of the user's code that runs in the backward pass, as in a custom function, is more exact than the line of the
        # differentiated operator.
        return call, line or forward_line

    def _remark(self, operand: Argument) -> str:
        if self._origins.is_uninitialised(operand.tensor):
            return f"{operand.name} is memory that nothing has initialised, as torch.empty returns it"
        return f"{operand.name} was not finite before, and is neither in the batch nor a parameter or buffer of the model"


class _Operation:
    """One operator with its arguments.

    Args:
        operator: of torch.
        name: without namespace and overload.
        node: the node of autograd that runs it; None outside the backward pass.
        arguments: its tensors.
        before: by the `id` of an argument, the numbers of a tensor before it was changed in place.
        scalars: the numbers among its arguments that are not finite.
        given: all of its arguments, in order and by name.
    """

    def __init__(
        self,
        operator: Any,
        name: str,
        node: Any,
        arguments: Sequence[Argument],
        before: dict[int, TensorSummary],
        scalars: dict[str, float],
        given: tuple[Any, dict[str, Any]],
    ) -> None:
        self.operator, self.name, self.node = operator, name, node
        self.arguments, self.before, self.scalars = arguments, before, scalars
        self._given = given

    def exceeds_range(self, position: int | None) -> bool | None:
        """Whether an infinite result is finite in double precision; None if the operator cannot run again."""
        if any(each.is_written for each in self.arguments):
            return None
        try:
            return not is_infinite_in_double(self.operator, *self._given, position)
        except Exception:
            # Some operators do not take float64, such as those of flash attention.
            return None

    def with_nan(self, argument: Argument) -> tuple[Argument, bool | None]:
        """An argument, and whether it has NaN; None if it is finite. One pass over a tensor, since bad ones are many."""
        earlier = self.before.get(id(argument))
        if earlier is not None:
            return argument, earlier.nan > 0 if earlier.nonfinite else None
        extent = range_of(argument.tensor)
        return argument, None if extent is None or extent.is_finite else extent.has_nan

    def summary_of(self, argument: Argument) -> TensorSummary:
        return self.before.get(id(argument)) or summary(argument.name, argument.tensor)

    def operands_of(self, position: int | None) -> list[Argument]:
        """The tensors that a result depends on.

        Args:
            position: of the result. An operator on lists computes each result from the elements at the same position.
        """
        if position is None or not self.name.startswith(("_foreach_", "_fused_")):
            return [each for each in self.arguments if each.is_read]
        return [each for each in self.arguments if each.is_read and each.position in (None, position)]


def _is_finite(tensor: Tensor) -> bool:
    extent = range_of(tensor)
    return extent is None or extent.is_finite


def _has_nan(tensor: Tensor) -> bool:
    extent = range_of(tensor)
    return extent is not None and extent.has_nan


def _earliest(known: Sequence[tuple[bool, Origin]], result_has_nan: bool) -> Origin:
    """The first of several origins; if the result has NaN, the first among the operands with NaN, if there are any."""
    with_nan = [origin for has_nan, origin in known if has_nan] if result_has_nan else []
    return min(with_nan or [origin for _, origin in known], key=lambda origin: origin.order)
