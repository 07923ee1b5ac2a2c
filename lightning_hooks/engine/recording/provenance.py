"""A dispatch mode that follows numbers that are not finite from the operator that made them through all others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks.engine.recording.autograd_nodes import ForwardOperators, running_node
from lightning_hooks.engine.recording.module_calls import Call, ModuleCalls
from lightning_hooks.engine.recording.operators import (
    COLLECTIVES,
    UNINITIALISED,
    Argument,
    bad_scalars,
    base_name,
    namespace,
    shown_name,
    tensor_arguments,
    tensors_in,
)
from lightning_hooks.engine.recording.origins import Birth, Origin, OriginMap, address_of
from lightning_hooks.engine.recording.source_lines import Line, stack_of_operation
from lightning_hooks.engine.recording.summaries import range_of, summary
from lightning_hooks.recorder.record import TensorSummary


class StoppedEarly(BaseException):
    """Ends the step that a mode follows; not an `Exception`, so that the code of the step does not catch it."""


class Provenance(TorchDispatchMode):
    """Notes the origin of every number that is not finite while a step runs.

    Args:
        calls: tells which module runs.
        origins: knows the tensors that were bad when the step began.
        limit: seconds from now after which the step is stopped.

    Attributes:
        births: the operators that made bad numbers, in order.
        is_update: set by the caller while the optimizer updates parameters.
        bad_roots: the origins of those tensors that are not finite and from which a backward pass began; None if unknown.
    """

    def __init__(self, calls: ModuleCalls, origins: OriginMap, limit: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.births: list[Birth] = []
        self.bad_roots: list[Origin | None] = []
        self._calls, self._origins = calls, origins
        self.is_update = False
        self._deadline = time.perf_counter() + limit
        self._limit = limit
        self._forward = ForwardOperators()
        self._root_is_bad = False
        self._read_scalar: Origin | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and find the origin of what is not finite in its results."""
        kwargs = kwargs or {}
        self._stop_if_due(func)
        node = running_node()
        if node is None:
            self._forward.note(self._calls.current)
        arguments = tensor_arguments(func, args, kwargs)
        # The elements of a tensor that is changed in place are gone afterwards.
        before = {
            id(each): summary(each.name, each.tensor)
            for each in arguments
            if each.is_written and each.is_read and not self._origins.is_uninitialised(each.tensor)
        }
        result = func(*args, **kwargs)
        name = base_name(func)
        if name == "ones_like" and node is None and arguments:
            self._note_root(arguments[0].tensor)
        elif name == "lift_fresh" and arguments:
            # The memory of a literal is new, but no operator has returned it.
            self._origins.renew(arguments[0].tensor, None)
        elif name == "_local_scalar_dense" and arguments and not _is_finite(arguments[0].tensor):
            self._read_scalar = self._origins.origin_of(arguments[0].tensor)
        else:
            step = _Operation(func, name, node, arguments, before, bad_scalars(func, args, kwargs))
            self._note_results(step, result)
        return result

    def _stop_if_due(self, operator: Any) -> None:
        if namespace(operator) in COLLECTIVES:
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
        fresh = [(i, each) for i, each in tensors_in(result) if address_of(each) not in read_from]
        if operation.name in UNINITIALISED:
            for _, tensor in fresh:
                self._origins.renew(tensor, None, is_initialised=False)
            return
        written = [(each.position, each.tensor) for each in operation.arguments if each.is_written]
        # Look up all origins before noting any: one result may be an operand of another.
        origins = [self._origin(operation, position, tensor) for position, tensor in [*written, *fresh]]
        renewed: set[int] = set()
        for (_, tensor), origin in zip([*written, *fresh], origins, strict=True):
            address = address_of(tensor)
            if address in read_from or address in renewed:
                self._origins.write(tensor, origin)
            else:
                self._origins.renew(tensor, origin)
                renewed.add(address)

    def _origin(self, operation: _Operation, position: int | None, tensor: Tensor) -> Origin | None:
        """The origin of the bad numbers of one result; None if it has none."""
        if _is_finite(tensor):
            return None
        result = summary("result", tensor)
        operands = operation.operands_of(position)
        summaries = [operation.before.get(id(each)) or summary(each.name, each.tensor) for each in operands]
        bad = [(each, of) for each, of in zip(operands, summaries, strict=True) if of.nonfinite]
        known = [(of, self._origins.origin_of(each.tensor)) for each, of in bad]
        stack = stack_of_operation()
        is_backward = (operation.node is not None or stack.in_backward) and not stack.recomputes
        direction = "backward" if is_backward else "update" if self.is_update or stack.in_optimizer else "forward"
        cause = None
        unintended = [(of, origin) for of, origin in known if origin is not None and not origin.is_intended]
        if operation.scalars and self._read_scalar is not None:
            unintended.append((result, self._read_scalar))
        if unintended:
            earliest = _earliest(unintended, result)
            is_of_forward = isinstance(earliest, Birth) and earliest.direction == "forward"
            if not (is_backward and is_of_forward and not self._root_is_bad):
                return earliest
            # The loss is finite, so the forward pass dropped the infinity. It is the backward pass that makes use of it.
            cause = earliest
        unknown = [each for (each, of), (_, origin) in zip(bad, known, strict=True) if origin is None]
        intended = [origin for _, origin in known if origin is not None and origin.is_intended]
        unknown_nan = any(of.nan for of, origin in known if origin is None)
        has_literal = bool(intended or operation.scalars or unknown)
        is_intended = direction == "forward" and not result.nan and has_literal and not unknown_nan
        if is_intended and intended:
            return min(intended, key=lambda origin: origin.order)
        call, line = self._place(operation.node, is_backward, stack.line)
        birth = Birth(
            shown_name(operation.operator),
            direction,
            call,
            line,
            operation.node.name() if is_backward and operation.node is not None else "",
            result.nan > 0,
            is_intended,
            len(self.births),
            tuple(summaries),
            result,
            operation.scalars,
            cause,
            tuple(self._remark(each) for each in unknown),
        )
        self.births.append(birth)
        return birth

    def _place(self, node: Any, is_backward: bool, line: Line | None) -> tuple[Call, Line | None]:
        if not is_backward or node is None:
            return self._calls.current, line
        call, forward_line = self._forward.of_node(node)
        # Code of the user's own in the backward pass is nearer than the operator that it differentiates.
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
    """

    def __init__(
        self,
        operator: Any,
        name: str,
        node: Any,
        arguments: Sequence[Argument],
        before: dict[int, TensorSummary],
        scalars: dict[str, float],
    ) -> None:
        self.operator, self.name, self.node = operator, name, node
        self.arguments, self.before, self.scalars = arguments, before, scalars

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


def _earliest(known: Sequence[tuple[TensorSummary, Origin]], result: TensorSummary) -> Origin:
    """The first of several origins; if the result has NaN, the first among the operands with NaN, if there are any."""
    with_nan = [origin for of, origin in known if of.nan] if result.nan else []
    return min(with_nan or [origin for _, origin in known], key=lambda origin: origin.order)
