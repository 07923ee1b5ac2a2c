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
from lightning_hooks.hooks.tree import tensors_in
from lightning_hooks.tensor_kinds import without_subclass

if TYPE_CHECKING:
    from lightning_hooks.hooks.action import Action


class GradHook(OurHook):
    """A tensor hook: each action gets the gradient as the one before it returned it; None leaves it unchanged."""

    def __init__(self, actions: Sequence[Action], switch: HookSwitch) -> None:
        self.actions = actions
        self.switch = switch

    def __call__(self, grad: Tensor | None) -> Tensor | None:
        if grad is None or not self.switch.is_on:  # autograd passes None where an operation's backward returned none
            return None
        changed = False
        for action in self.actions:
            # `HookSwitch.wants` says the same of nearly every gradient, but costs two calls.
            is_wanted = action.backward is BackwardPass.LOSS and self.switch.only_loss
            if not is_wanted and not self.switch.lets_through(action.backward, grad):
                continue
            result = action.call(grad)
            if action.changes and result is not None:
                grad, changed = result, True
        return grad if changed else None


def may_have_gradient(parameter: Tensor) -> bool:
    """Whether a parameter has a gradient, or would have one if it were unfrozen: one of integers never has."""
    if parameter.requires_grad:
        return True
    with without_subclass():
        return (parameter.is_floating_point() or parameter.is_complex()) and not parameter.is_inference()


class unfrozen:  # noqa: N801
    """While its gradient is hooked: torch refuses that for a frozen parameter, and a training step may unfreeze it at any time.

    Args:
        parameter: for which `may_have_gradient` is True.
        handles: freeze the parameter again when they are closed, if Ctrl-C kept this from doing so.
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

    A tensor hook on the input would give the total over everything that reads it. So the nodes between the module's outputs
    and the input are hooked: those whose `next_functions` have the input's gradient edge. Several of them (attention reads
    its input three times) add up to one contribution.

    Args:
        edge: the input's gradient edge, taken before the module ran.
        action: gets the contribution, once per call and backward.
        switch: says whether the action acts in a backward.
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
            # Branches that this backward does not reach never arrive: at its end the sum is complete.
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
    """One pending contribution for each input that needs a gradient, made before the module runs; duplicates count once."""
    if not torch.is_grad_enabled():
        return []
    distinct = {id(tensor): tensor for tensor in tensors if tensor.requires_grad}
    return [Contribution(get_gradient_edge(tensor), action, switch) for tensor in distinct.values()]


def connect(pending: Sequence[Contribution], outputs: Sequence[Tensor], start: int) -> None:
    """Find the nodes between the outputs and the inputs of a call, and hook them.

    Args:
        pending: from `contributions`; several may be of one input.
        outputs: the tensors that the module returned.
        start: the number of the next node before the call: older nodes are not the module's and are not searched.
    """
    by_edge: defaultdict[tuple[Any, int], list[Contribution]] = defaultdict(list)
    for contribution in pending:
        by_edge[contribution.edge.node, contribution.edge.output_nr].append(contribution)
    todo = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen, number_of = set(), names.numbers[1]
    while todo:
        node = todo.pop()
        if node in seen or number_of(node) < start:
            continue
        seen.add(node)
        found: dict[Contribution, list[int]] = {}
        for position, (following, output_nr) in enumerate(node.next_functions):
            if following is None:
                continue
            edge = (following, output_nr)
            if edge not in by_edge:
                todo.append(following)
                continue
            for contribution in by_edge[edge]:
                found.setdefault(contribution, []).append(position)
        for contribution, positions in found.items():
            contribution.watch(node, positions)


def takes_gradient(owner: Any, output: Tensor) -> bool:
    """Whether to hook the gradient of a tensor that a module returns unchanged, for this call of the module.

    Activation checkpointing calls a module twice. A tensor that passes through both calls unchanged is the same one in the
    graph, or belongs to a graph from outside the checkpoint, and its gradient would count twice.

    Args:
        owner: whose hook it is; the node of the tensor keeps it alive as long as the graph lives.
        output: the tensor, which has a node.
    """
    if not torch.is_grad_enabled():  # the first call under a reentrant checkpoint
        return False
    node: Any = output.grad_fn
    mark = (owner, output.output_nr)
    if mark in node.metadata:
        return False
    node.metadata[mark] = True
    return True


def has_gradient(hook: Any, args: tuple[Any, ...], output: Tensor) -> bool:
    """Whether a plain hook hooks the gradient of a result that has a node. Compiled hooks call this too."""
    if _holds(args, output):
        return takes_gradient(hook, output)
    return torch.is_grad_enabled()  # else it was passed through in another way


def _holds(args: tuple[Any, ...], output: Tensor) -> bool:
    """Whether a tensor is in a nest of tuples, lists and dictionaries, which may contain themselves."""
    nests: list[Any] = [args]
    seen = {id(args)}
    while nests:
        nest = nests.pop()
        for item in dict.values(nest) if isinstance(nest, dict) else nest:
            if item is output:
                return True
            if isinstance(item, (tuple, list, dict)) and id(item) not in seen:
                seen.add(id(item))
                nests.append(item)
    return False


class OutputGradients:
    """Hooks the gradients of tensors that modules return.

    Args:
        step_handles: removes at the end of the step what may outlive it.
    """

    def __init__(self, step_handles: Handles) -> None:
        self._step_handles = step_handles
        self._owners = WeakTensorKeyDictionary()  # leaf of the graph: who has hooked it in this step

    def hook(self, tensor: Tensor, hook: Callable[..., Any], owner: object, given: Any) -> None:
        """Hook a tensor, at most once per step and owner where it is a leaf.

        Args:
            tensor: needs a gradient.
            owner: the same object at every call of the module.
            given: the arguments of the call.
        """
        if not tensor.is_leaf:
            if not any(tensor is other for other in tensors_in(given)) or takes_gradient(owner, tensor):
                tensor.register_hook(hook)
            return
        # A parameter or an input that is returned unchanged may outlive the step, so its hook is removed then.
        owners = self._owners.setdefault(tensor, set())
        if owner not in owners:
            owners.add(owner)
            if self not in self._step_handles:
                self._step_handles.keep(self, key=self)
            self._step_handles.register(tensor.register_hook, hook)

    def remove(self) -> None:
        """Called when the step ends."""
        self._owners.clear()
