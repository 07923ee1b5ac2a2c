"""Gradients that flow through modules: hooks on tensors and on the nodes of the autograd graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.weak import WeakTensorKeyDictionary

from lightning_hooks.hooks.autograd import names
from lightning_hooks.hooks.handles import Handles, OurHook
from lightning_hooks.hooks.switch import BackwardPass, HookSwitch
from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.tensor_kinds import without_subclass

if TYPE_CHECKING:
    from lightning_hooks.hooks.action import Action


class GradHook(OurHook):
    """A tensor hook: each action gets the gradient that the previous one returned, or the same one if that returned None."""

    def __init__(self, actions: Sequence[Action], switch: HookSwitch) -> None:
        self.actions = actions
        self.switch = switch

    def __call__(self, grad: Tensor | None) -> Tensor | None:
        # Autograd passes None where the backward of an operation returned None.
        if grad is None or not self.switch.is_on:
            return None
        changed = False
        for action in self.actions:
            # Test two attributes first: they decide for nearly every gradient, without the method calls of `lets_through`.
            is_of_loss = action.backward is BackwardPass.LOSS and self.switch.only_loss
            if not is_of_loss and not self.switch.lets_through(action.backward, grad):
                continue
            result = action.call(grad)
            if action.changes and result is not None:
                grad, changed = result, True
        return grad if changed else None


def may_have_gradient(parameter: Tensor) -> bool:
    """Whether a parameter can have a gradient, at least if it is unfrozen: an integer parameter never can."""
    if parameter.requires_grad:
        return True
    with without_subclass():
        return (parameter.is_floating_point() or parameter.is_complex()) and not parameter.is_inference()


class unfrozen:  # noqa: N801
    """Context manager that unfreezes a parameter while its gradient is hooked.

    Torch refuses to hook the gradient of a frozen parameter, but a training step may unfreeze the parameter at any time.

    Args:
        parameter: a parameter for which `may_have_gradient` is True.
        handles: freeze the parameter again when they are closed, in case Ctrl-C prevents the context manager from doing so.
    """

    __slots__ = ("handles", "is_unfrozen", "parameter")

    def __init__(self, parameter: Tensor, handles: Handles) -> None:
        self.parameter = ref(parameter)
        self.handles = handles
        self.is_unfrozen = False

    def __enter__(self) -> None:
        parameter = self.parameter()
        if parameter is not None and not parameter.requires_grad:
            self.handles.keep(self)
            self.is_unfrozen = True
            parameter.requires_grad_(True)

    def __exit__(self, *error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Freeze the parameter again; a second call does nothing."""
        parameter = self.parameter()
        if self.is_unfrozen and parameter is not None:
            parameter.requires_grad_(False)
            self.is_unfrozen = False


class Contribution:
    """A module's own contribution to the gradient of one of its inputs.

    A tensor hook on the input would get the total over all modules that read the input. So the nodes between the module's
    outputs and the input are hooked whose `next_functions` have the input's gradient edge. If there are several such nodes
    (attention reads its input three times), their gradients are added up to one contribution.

    Args:
        edge: the input's gradient edge, taken before the module ran.
        action: gets the contribution, once per call and backward.
        switch: decides whether the action acts in a backward.
    """

    def __init__(self, edge: GradientEdge, action: Action, switch: HookSwitch) -> None:
        self.edge = edge
        self.action = action
        self.switch = switch
        self._missing = 0
        self._expected = 0
        self._sum: Tensor | None = None

    def watch(self, node: Node, positions: list[int]) -> None:
        """Wait for one more node that feeds the input."""
        self._expected += 1
        self._missing += 1
        node.register_hook(_NodeHook(self, positions))

    def arrive(self, grads: Sequence[Tensor | None], positions: list[int]) -> None:
        """Add what one node sends to the input."""
        if not self.switch.lets_through(self.action.backward, *grads):
            return
        if self._missing == self._expected and self._expected > 1:
            # This backward pass may not reach all expected nodes, so finish the sum when the pass ends.
            names.at_end(self._finish)
        for position in positions:
            grad = grads[position] if position < len(grads) else None
            if grad is not None:
                self._sum = grad if self._sum is None else self._sum + grad
        self._missing -= 1
        if self._missing == 0:
            self._finish()

    def _finish(self) -> None:
        total, self._sum, self._missing = self._sum, None, self._expected
        if total is not None and self.switch.is_on:
            self.action.call(total)


class _NodeHook(OurHook):
    def __init__(self, contribution: Contribution, positions: list[int]) -> None:
        self.contribution = contribution
        self.positions = positions

    def __call__(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]) -> None:
        self.contribution.arrive(grad_inputs, self.positions)


def contributions(tensors: Sequence[Tensor], action: Action, switch: HookSwitch) -> list[Contribution]:
    """One pending contribution for each input that needs a gradient, once per tensor. Call it before the module runs."""
    if not torch.is_grad_enabled():
        return []
    distinct = {id(tensor): tensor for tensor in tensors if tensor.requires_grad}
    return [Contribution(get_gradient_edge(tensor), action, switch) for tensor in distinct.values()]


def connect(pending: Sequence[Contribution], outputs: Sequence[Tensor], start: int) -> None:
    """Find the nodes between the outputs and the inputs of a call, and hook them.

    Args:
        pending: from `contributions`; several may belong to one input.
        outputs: the tensors that the module returned.
        start: the number that the next node had before the call. Nodes with lower numbers are not searched: the module did not
            create them.
    """
    by_edge: defaultdict[tuple[Any, int], list[Contribution]] = defaultdict(list)
    for contribution in pending:
        by_edge[contribution.edge.node, contribution.edge.output_nr].append(contribution)
    todo = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    searched, number_of = set(), names.numbers[1]
    while todo:
        node = todo.pop()
        if node in searched or number_of(node) < start:
            continue
        searched.add(node)
        positions_of: dict[Contribution, list[int]] = {}
        for position, (following, output_nr) in enumerate(node.next_functions):
            if following is None:
                continue
            edge = (following, output_nr)
            if edge not in by_edge:
                todo.append(following)
                continue
            for contribution in by_edge[edge]:
                positions_of.setdefault(contribution, []).append(position)
        for contribution, positions in positions_of.items():
            contribution.watch(node, positions)


def takes_gradient(owner: Any, output: Tensor) -> bool:
    """Whether to hook the gradient of a tensor that a module returns unchanged, in this call of the module.

    Activation checkpointing calls a module twice. If both calls return the same tensor unchanged, its gradient would count
    twice.

    Args:
        owner: the owner of the hook; the node of the tensor keeps it alive as long as the graph lives.
        output: the tensor, which has a node.
    """
    # The first call under a reentrant checkpoint runs without gradients: leave the hook to the second call.
    if not torch.is_grad_enabled():
        return False
    node: Any = output.grad_fn
    mark = (owner, output.output_nr)
    if mark in node.metadata:
        return False
    node.metadata[mark] = True
    return True


def has_gradient(hook: Any, args: tuple[Any, ...], output: Tensor) -> bool:
    """Whether a plain hook hooks the gradient of a result that has a node. The C++ hooks call this function too."""
    if _holds(args, output):
        return takes_gradient(hook, output)
    # While autograd records nothing (first call under a reentrant checkpoint), a result with a node was not computed here: it
    # is an input, in a container that `_holds` does not search. Its gradient belongs to the second call.
    return torch.is_grad_enabled()


def _holds(args: tuple[Any, ...], output: Tensor) -> bool:
    """Whether a tensor is in nested tuples, lists and dictionaries, which may contain themselves."""
    nests: list[Any] = [args]
    visited = {id(args)}
    while nests:
        nest = nests.pop()
        for item in dict.values(nest) if isinstance(nest, dict) else nest:
            if item is output:
                return True
            if isinstance(item, (tuple, list, dict)) and id(item) not in visited:
                visited.add(id(item))
                nests.append(item)
    return False


class OutputGradients:
    """Hooks the gradients of tensors that modules return.

    Args:
        step_handles: removes at the end of the step the hooks on tensors that may outlive the step.
    """

    def __init__(self, step_handles: Handles) -> None:
        self._step_handles = step_handles
        self._owners = WeakTensorKeyDictionary()  # by leaf of the graph: the owners that have hooked it in this step

    def hook(self, tensor: Tensor, hook: Callable[..., Any], owner: object, given: Any) -> None:
        """Hook the gradient of a tensor; a leaf at most once per step and owner.

        Args:
            tensor: a tensor that needs a gradient.
            hook: the tensor hook.
            owner: the same object at every call of the module.
            given: the arguments of the call.
        """
        if not tensor.is_leaf:
            if not any(tensor is other for other in tensors_in(given)) or takes_gradient(owner, tensor):
                tensor.register_hook(hook)
            return
        # A leaf is a parameter or an input that the module returned unchanged. It may outlive the step, so its hook is removed
        # when the step ends.
        owners = self._owners.setdefault(tensor, set())
        if owner not in owners:
            owners.add(owner)
            if self not in self._step_handles:
                self._step_handles.keep(self, key=self)
            self._step_handles.register(tensor.register_hook, hook)

    def remove(self) -> None:
        """Called when the step ends."""
        self._owners.clear()
