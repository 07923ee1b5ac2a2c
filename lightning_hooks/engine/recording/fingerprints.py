"""A dispatch mode that notes the bits of what each operator of a step reads and gives, so that two runs can be compared."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks.engine.recording.autograd_nodes import ForwardOperators, running_node
from lightning_hooks.engine.recording.examination import eagerly
from lightning_hooks.engine.recording.module_calls import Call, ModuleCalls
from lightning_hooks.engine.recording.operators import (
    UNINITIALISED,
    base_name,
    plain_arguments,
    results_of,
    tensor_arguments,
)
from lightning_hooks.engine.recording.origins import OriginMap, address_of
from lightning_hooks.engine.recording.provenance import StoppedEarly
from lightning_hooks.engine.recording.source_lines import Line, stack_of_operation
from lightning_hooks.engine.rerun.ranks import DispatchMode, shown_name, waits_for_ranks
from lightning_hooks.errors import shortened
from lightning_hooks.tensor_kinds import is_dense

UNREADABLE: Final = "unread"
"""Stands for the bits of a tensor that cannot be read, such as a sparse one."""


@dataclass(frozen=True)
class OperatorRun:
    """One operator of a step that computed something: operators that return views, or memory without numbers, are left out.

    Args:
        operator: its name, `aten.add_`.
        call: the call of the module that ran it; in the backward pass, the call whose operator is differentiated.
        line: the line of the user's code; in the backward pass, that of the operator that is differentiated.
        node: the node of autograd that ran it; empty outside the backward pass.
        inputs: by the name of an argument, the type, the shape and a checksum of what was read.
        numbers: the other arguments in order, as text.
        outputs: the type, the shape and a checksum of each result, and of each argument that was written.
        is_random: whether it draws random numbers.
        uninitialised: the names of the arguments whose memory nothing has initialised.
    """

    operator: str
    call: Call
    line: Line | None
    node: str
    inputs: tuple[tuple[str, str], ...]
    numbers: tuple[str, ...]
    outputs: tuple[str, ...]
    is_random: bool = False
    uninitialised: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepRun:
    """The operators of a step in order.

    Args:
        operators: that ran.
        notes: why the step has not come to its end; empty if it has.
    """

    operators: tuple[OperatorRun, ...]
    notes: tuple[str, ...] = ()


def followed(model: nn.Module, step: Callable[[], object], limit: float = 600.0) -> StepRun:
    """Run a step under the mode. The caller restores what the step changes, and calls it inside `run_step`.

    Args:
        model: names the modules.
        step: the step.
        limit: seconds after which it is stopped.
    """
    calls, notes = ModuleCalls(model), []
    mode = _Fingerprints(calls, limit)
    try:
        with eagerly(), calls.followed(), mode:
            step()
    except StoppedEarly as stopped:
        notes.append(str(stopped))
    except (Exception, SystemExit) as error:
        notes.append(f"the step raised {shortened(f'{type(error).__name__}: {error}', 300)}")
    return StepRun(tuple(mode.runs), tuple(notes))


class _Fingerprints(DispatchMode, TorchDispatchMode):
    """Notes each operator.

    Args:
        calls: tells which module runs.
        limit: seconds from now after which the step is stopped.
    """

    def __init__(self, calls: ModuleCalls, limit: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runs: list[OperatorRun] = []
        self._calls, self._memory, self._forward = calls, OriginMap(), ForwardOperators()
        self._deadline, self._limit = time.perf_counter() + limit, limit

    def dispatched(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator between two readings of its tensors."""
        if waits_for_ranks(operator):
            raise StoppedEarly(f"the step waits for other ranks ({shown_name(operator)}), so it was followed up to there")
        if time.perf_counter() > self._deadline:
            raise StoppedEarly(f"the step was stopped after {self._limit:g} s")
        node = running_node()
        self._forward.note(self._calls.current, node)
        arguments = tensor_arguments(operator, args, kwargs)
        inputs = tuple((each.name, digest_of(each.tensor)) for each in arguments if each.is_read)
        raw = tuple(each.name for each in arguments if each.is_read and self._memory.is_uninitialised(each.tensor))
        result = operator(*args, **kwargs)
        read_from = {address_of(each.tensor) for each in arguments}
        fresh = [each for _, each in results_of(result) if address_of(each) not in read_from or not address_of(each)]
        written = [each.tensor for each in arguments if each.is_written]
        is_raw = base_name(operator) in UNINITIALISED
        for each in fresh:
            self._memory.renew(each, None, is_initialised=not is_raw)
        for each in written:
            self._memory.write(each, None)
        if not is_raw and (fresh or written):
            outputs = tuple(map(digest_of, [*written, *fresh]))
            is_random = torch.Tag.nondeterministic_seeded in operator.tags
            numbers = plain_arguments(operator, args, kwargs)
            call, line = self._place(node)
            name = node.name() if node is not None else ""
            self.runs.append(OperatorRun(shown_name(operator), call, line, name, inputs, numbers, outputs, is_random, raw))
        return result

    def _place(self, node: Any) -> tuple[Call, Line | None]:
        line = stack_of_operation().line
        if node is None:
            return self._calls.current, line
        call, forward_line = self._forward.of_node(node)
        return call, line or forward_line


def digest_of(tensor: Tensor) -> str:
    """The type, the shape and a checksum of the bits of a tensor.

    Example:
        >>> digest_of(torch.zeros(2)) == digest_of(torch.zeros(2)), digest_of(torch.zeros(2)) == digest_of(-torch.zeros(2))
        (True, False)
    """
    if not is_dense(tensor):
        return UNREADABLE
    with torch.no_grad():
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
        bits = hashlib.blake2b(dense.view(torch.uint8).numpy().data, digest_size=12).hexdigest() if dense.numel() else ""
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype)[6:]} {bits}"


def shape_of(digest: str) -> str:
    """The shape and the type of a digest, without its checksum.

    Example:
        >>> shape_of(digest_of(torch.zeros(2, 3)))
        '2x3 float32'
    """
    return digest.rpartition(" ")[0]
