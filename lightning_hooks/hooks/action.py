"""Action: what a participant does with one tensor of a module or of a parameter. Hooks run the actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn

from lightning_hooks.hooks.readers import read_in_order
from lightning_hooks.hooks.switch import BackwardPass


class RowInGraph(NamedTuple):
    """A row that an operation in compiled code may write instead of the reader of the tensor.

    Args:
        device: of the row.
        magnitudes: whether the sum of magnitudes and underflow are measured.
        address: returns the address of the row; None if in the current step only the reader may write it.
    """

    device: torch.device
    magnitudes: bool
    address: Callable[[], int | None]


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """What a participant does with one tensor of a module, or with the gradient of a parameter.

    An action either reads or changes tensors. Actions on the same tensor run in order, and each gets the tensor that the
    previous one returned.

    Args:
        owner: the module or the parameter.
        tensor: for a module `input`, `output`, `input_grad` or `output_grad`, or `node`: the autograd nodes of the result. For
            a parameter `grad`: each gradient that backward computes. Readers of `grad` run after all changes.
        call: called with each floating-point tensor, or each node; with `changes` it may return a replacement.
        path: the path to a part of the arguments or the result: `[0]`, `.logits`; empty for everything.
        changes: whether the action may replace tensors.
        whole: whether `call` gets the whole call of the module instead of each tensor. At `input` it gets
            `(module, args, kwargs)` and returns None or new `(args, kwargs)`; at `output` it gets
            `(module, args, kwargs, output)` and returns None or a new output.
        absent: with a `path`, called at every call of the module with whether there is a tensor, and the arguments or the
            result.
        first: whether the action runs before all others on that tensor.
        backward: the backward passes whose gradients the action gets.
        recomputed: whether a reader is also called in a recomputation of activation checkpointing, which `is_recomputation()`
            detects. Changes and whole calls always run again: a recomputation must give the numbers of the first forward.
        in_graph: the row that a reader writes, if an operation in compiled code may write it instead.
    """

    owner: nn.Module | nn.Parameter
    tensor: str
    call: Callable[..., Any]
    path: str = ""
    changes: bool = False
    whole: bool = False
    absent: Callable[[bool, Any], None] | None = None
    first: bool = False
    backward: BackwardPass = BackwardPass.LOSS
    recomputed: bool = False
    in_graph: RowInGraph | None = None

    @property
    def only_reads(self) -> bool:
        """Whether the action gets single tensors and replaces none."""
        return not self.changes and not self.whole

    @property
    def source(self) -> tuple[Any, ...]:
        """A key that is equal for readers of the same tensors, if no change runs between them."""
        return self.path, self.backward, self.recomputed


@dataclass(slots=True)
class ModuleActions:
    """The actions at one module by tensor, in the order in which they run.

    Args:
        called: takes the id of the module when it is called; the same set for all modules, cleared when a step begins.
    """

    module: nn.Module
    input: tuple[Action, ...] = ()
    output: tuple[Action, ...] = ()
    input_grad: tuple[Action, ...] = ()
    output_grad: tuple[Action, ...] = ()
    node: tuple[Action, ...] = ()
    called: set[int] = field(default_factory=set)

    @property
    def acts_before(self) -> bool:
        """Whether actions need a hook before the forward of the module."""
        return bool(self.input or self.input_grad)

    @property
    def acts_after(self) -> bool:
        """Whether actions need a hook after the forward of the module."""
        return bool(self.output or self.output_grad or self.input_grad or self.node)

    @property
    def is_plain(self) -> bool:
        """Whether plain hooks and hooks for whole calls can run all actions after the forward of the module.

        They pass the whole result to readers, and read or change its whole gradient. The general hook is needed to change
        single tensors of the result, and for actions in recomputations, on inner gradients, on nodes, or input gradients.
        """
        if self.input_grad or self.node:
            return False
        plain = all(each.whole or not (each.path or each.changes or each.recomputed) for each in self.output)
        return plain and not any(each.path or each.backward is BackwardPass.INNER for each in self.output_grad)

    @property
    def only_reads_input(self) -> bool:
        """Whether all actions before the forward of the module are readers of all its arguments."""
        return not self.input_grad and all(each.only_reads and not (each.path or each.recomputed) for each in self.input)


def by_module(actions: Iterable[Action], called: set[int]) -> list[ModuleActions]:
    """Actions at modules, grouped by module.

    Args:
        actions: the actions, those on the same tensor in the order in which they run.
        called: takes the ids of the modules that are called.
    """
    modules: dict[int, ModuleActions] = {}
    groups: dict[tuple[int, str], list[Action]] = {}
    for action in actions:
        assert isinstance(action.owner, nn.Module)
        modules.setdefault(id(action.owner), ModuleActions(action.owner, called=called))
        groups.setdefault((id(action.owner), action.tensor), []).append(action)
    for (module, tensor), group in groups.items():
        setattr(modules[module], tensor, tuple(joined(group) if len(group) > 1 and tensor != "node" else group))
    return list(modules.values())


def joined(actions: Sequence[Action]) -> list[Action]:
    """The actions on one tensor. Neighbouring readers of the same source become one action, so the tensor is looked up once."""
    result: list[Action] = []
    for (reads, _), run in groupby(actions, key=lambda action: (action.only_reads, action.source)):
        readers = list(run)
        result += [_together(readers)] if reads else readers
    return result


def _together(readers: Sequence[Action]) -> Action:
    """One action in place of readers of the same source."""
    if len(readers) == 1:
        return readers[0]
    callbacks = [reader.absent for reader in readers if reader.absent is not None]

    def absent(found: bool, tree: Any) -> None:
        for callback in callbacks:
            callback(found, tree)

    call = read_in_order([reader.call for reader in readers])
    return replace(readers[0], call=call, absent=absent if callbacks else None, in_graph=None)
