"""Where the tensors of a module are seen: one pre-hook and one forward hook per module, at most.

`register_full_backward_hook` is never used: it forbids in-place operations, misses outputs in dictionaries and costs six
times as much as a hook on the output tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from lightning_hooks.hooks.gate import Gate
from lightning_hooks.hooks.gradients import (
    Contribution,
    GradHook,
    Visitor,
    connect,
    contributions,
    sequence_number,
    takes_gradient,
)
from lightning_hooks.hooks.handles import Handles, OurHook
from lightning_hooks.hooks.site import CallAction, HookSite, TensorAction
from lightning_hooks.hooks.tree import Arguments, is_measured, map_tensors, part_of, tensors_in


class EagerCall:
    """The two hooks of a module, and what they share: the inputs of calls that have begun and not returned.

    Args:
        place: what happens there.
        gate: of the model.
        step_handles: takes over the handles on tensors that may outlive a step.
    """

    __slots__ = ("begun", "forward_hook", "gate", "leaves", "place", "pre_hook", "step_handles")

    def __init__(self, place: HookSite, gate: Gate, step_handles: Handles) -> None:
        self.place = place
        self.gate = gate
        self.step_handles = step_handles
        self.begun: list[tuple[int, list[Contribution]]] = []
        self.leaves = WeakTensorKeyDictionary()  # leaves of the graph whose gradient is seen in this step
        self.pre_hook = PreHook(self)
        self.forward_hook = ForwardHook(self)

    def remove(self) -> None:
        """Forget the step: calls that never returned, as recomputations that stop early, hold a graph and its tensors."""
        self.begun.clear()
        self.leaves.clear()

    def part(self, line: TensorAction, tree: Any) -> Any:
        """The part of arguments or of a result that a line means."""
        part = _part(tree, line.path) if isinstance(tree, Arguments) else part_of(tree, line.path)
        if line.absent is not None:
            line.absent(any(True for _ in tensors_in(part)), tree)
        return part

    def keep(self) -> None:
        """Have `remove` called when the step ends."""
        if self not in self.step_handles:
            self.step_handles.keep(self, key=self)

    @property
    def rewrites_inputs(self) -> bool:
        """Whether the gradient of an input is changed, for which the input needs a node of its own."""
        return any(line.changes for line in self.place.input_grad)


class PreHook(OurHook):
    """Sees or changes the arguments of a call, and notes where the gradients of its inputs will come from."""

    __slots__ = ("call",)

    def __init__(self, call: EagerCall) -> None:
        self.call = call

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by torch before the module."""
        call, place = self.call, self.call.place
        if not call.gate.open or torch.compiler.is_compiling():  # compiled with a function that the module knows nothing of
            return None
        place.called.add(id(module))
        arguments = given = Arguments(args, kwargs)
        if call.rewrites_inputs:
            arguments = Arguments(*_rewritten(arguments, place.input_grad, call.gate))
        elif place.input_grad:
            pending = []
            for line in place.input_grad:
                tensors = list(_measured(call.part(line, arguments)))
                with torch._C.DisableTorchFunctionSubclass():
                    pending.append(contributions(tensors, line.visit, call.gate))
            call.keep()
            call.begun.append((sequence_number(), [contribution for group in pending for contribution in group]))
        for item in place.before:
            if isinstance(item, CallAction):
                changed = item.visit(module, arguments.args, arguments.kwargs)
                arguments = arguments if changed is None else Arguments(*changed)
            elif item.changes:
                arguments = _changed(arguments, call.part(item, arguments), item)
            elif not is_recomputation():
                for tensor in _measured(call.part(item, arguments)):
                    item.visit(tensor)
        return None if arguments is given else (arguments.args, arguments.kwargs)


class ForwardHook(OurHook):
    """Sees or changes the result of a call, and hooks what its gradients flow through."""

    __slots__ = ("call",)

    def __init__(self, call: EagerCall) -> None:
        self.call = call

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Called by torch after the module."""
        call, place = self.call, self.call.place
        if not call.gate.open or torch.compiler.is_compiling():  # compiled with a function that the module knows nothing of
            return None
        place.called.add(id(module))
        given = output
        for item in place.after:
            if isinstance(item, CallAction):
                changed = item.visit(module, args, kwargs, output)
                output = output if changed is None else changed
            elif item.changes:
                output = _changed(output, call.part(item, output), item)
            elif not is_recomputation():
                for tensor in _measured(call.part(item, output)):
                    item.visit(tensor)
        if call.begun:
            start, pending = call.begun.pop()
            with torch._C.DisableTorchFunctionSubclass():
                _connect_each(pending, list(tensors_in(output)), start)
        if place.output_grad and torch.is_grad_enabled():  # else what is handed through belongs to a graph from outside
            with torch._C.DisableTorchFunctionSubclass():  # hooks are no business of a subclass
                self._hook_outputs((args, kwargs), output)
        for visit in place.node:
            with torch._C.DisableTorchFunctionSubclass():
                nodes = dict.fromkeys(t.grad_fn for t in _measured(output) if t.grad_fn is not None)
            for node in nodes:
                visit(node)
        return None if output is given else output

    def _hook_outputs(self, given: Any, output: Any) -> None:
        call = self.call
        visitors: dict[int, tuple[Tensor, list[Visitor]]] = {}
        for line in call.place.output_grad:
            seen: set[int] = set()
            for tensor in _measured(call.part(line, output)):
                if tensor.requires_grad and id(tensor) not in seen:
                    seen.add(id(tensor))
                    visitors.setdefault(id(tensor), (tensor, []))[1].append(line.visit)
        for tensor, visits in visitors.values():
            if not tensor.is_leaf:
                handed = any(tensor is other for other in tensors_in(given))
                if not handed or takes_gradient(call, tensor):
                    tensor.register_hook(GradHook(visits, call.gate))
            elif tensor not in call.leaves:
                # A parameter or an input handed through may outlive the step: its hook is ours to take away again.
                call.leaves[tensor] = None
                call.keep()
                call.step_handles.keep(tensor.register_hook(GradHook(visits, call.gate)))


def is_recomputation() -> bool:
    """Whether a forward runs inside a backward: only activation checkpointing does so, and it was seen the first time."""
    return torch._C._current_graph_task_id() != -1


def _part(arguments: Arguments, path: str) -> Any:
    return part_of(arguments, path) if path else (arguments.args, arguments.kwargs)


def _changed(tree: Any, part: Any, line: TensorAction) -> Any:
    """The tree with what the visitor made of each tensor of the part; the same object where nothing changed."""
    new: dict[int, Tensor] = {}
    for tensor in _measured(part):
        if id(tensor) not in new:  # one tensor given twice stays one
            result = line.visit(tensor)
            if result is not None and result is not tensor:
                new[id(tensor)] = result
    if not new:
        return tree
    if isinstance(tree, Arguments):
        return Arguments(*map_tensors(lambda t: new.get(id(t), t), (tree.args, tree.kwargs)))
    return map_tensors(lambda t: new.get(id(t), t), tree)


def _measured(tree: Any) -> Iterator[Tensor]:
    return (tensor for tensor in tensors_in(tree) if is_measured(tensor))


def _connect_each(pending: Iterable[Contribution], outputs: list[Tensor], start: int) -> None:
    # Two lines may watch the same input, so their edges are looked up one set at a time.
    groups: list[dict[Any, Contribution]] = []
    for contribution in pending:
        key = (contribution.edge.node, contribution.edge.output_nr)
        group = next((group for group in groups if key not in group), None)
        if group is None:
            group = {}
            groups.append(group)
        group[key] = contribution
    for group in groups:
        connect(list(group.values()), outputs, start)


def _rewritten(arguments: Arguments, lines: tuple[TensorAction, ...], gate: Gate) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with each tensor behind a node of its own, whose gradient is the module's own contribution.

    A clone, since a view would break modules that work in place.
    """
    wanted: dict[int, list[Visitor]] = {}
    for line in lines:
        for key in {id(tensor) for tensor in _measured(_part(arguments, line.path)) if tensor.requires_grad}:
            wanted.setdefault(key, []).append(line.visit)
    clones: dict[int, Tensor] = {}

    def change(tensor: Tensor) -> Tensor:
        key = id(tensor)
        if key not in wanted or not torch.is_grad_enabled():
            return tensor
        if key not in clones:
            clones[key] = tensor.clone()
            clones[key].register_hook(GradHook(wanted[key], gate))
        return clones[key]

    args, kwargs = map_tensors(change, (arguments.args, arguments.kwargs))
    return args, kwargs
