"""Action: what somebody does with one tensor of a module or of a parameter. Participants yield actions, and hooks run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from torch import nn

from lightning_hooks.hooks.readers import Reader, read_in_order
from lightning_hooks.hooks.switch import BackwardPass


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """What somebody does with one tensor of a module, or with the gradient of a parameter.

    An action either reads or changes tensors. Actions with one tensor run in their order, and each is given the tensor as the
    actions before it returned it.

    Args:
        owner: the module or the parameter.
        tensor: of a module `input`, `output`, `input_grad` or `output_grad`, or `node`: the autograd nodes of the result. Of a
            parameter `grad`: each gradient that backward makes, which readers are given after all changes.
        call: called with each floating tensor, or each node; with `changes` it may return a replacement.
        path: to a part of the arguments or the result: `[0]`, `.logits`; empty for all of it.
        changes: whether it may replace tensors.
        whole: whether `call` is given the whole call of the module instead of each tensor. At `input` it is given
            `(module, args, kwargs)` and returns None or new `(args, kwargs)`; at `output` it is given
            `(module, args, kwargs, output)` and returns None or a new output.
        merge: of an action that measures: takes a measurement that it shares with others. `call` measures for it alone.
        absent: with a `path`, called at every call of the module with whether there is a tensor, and the arguments or the
            result.
        first: whether it goes before all others with that tensor.
        backward: the backward passes whose gradients the action is given.
        recomputed: whether a reader is called in a recomputation of activation checkpointing too. `is_recomputation()` tells it
            which call this is. Changes and whole calls always are: a recomputation must give the numbers of the first forward.
    """

    owner: nn.Module | nn.Parameter
    tensor: str
    call: Callable[..., Any]
    path: str = ""
    changes: bool = False
    whole: bool = False
    merge: Callable[[Any], None] | None = None
    absent: Callable[[bool, Any], None] | None = None
    first: bool = False
    backward: BackwardPass = BackwardPass.LOSS
    recomputed: bool = False

    @property
    def only_reads(self) -> bool:
        """Whether it is given single tensors and replaces none."""
        return not self.changes and not self.whole

    @property
    def source(self) -> tuple[Any, ...]:
        """Equal for readers that are given the same tensors, if nothing is changed between them."""
        return self.path, self.backward, self.recomputed


@dataclass(slots=True)
class ModuleActions:
    """The actions at one module by tensor, each in the order in which they run.

    Args:
        called: takes the id of the module when it is called; one set for all modules, cleared when a step begins.
    """

    module: nn.Module
    input: tuple[Action, ...] = ()
    output: tuple[Action, ...] = ()
    input_grad: tuple[Action, ...] = ()
    output_grad: tuple[Action, ...] = ()
    node: tuple[Action, ...] = ()
    called: set[int] = field(default_factory=set)

    @property
    def is_plain(self) -> bool:
        """Whether plain hooks and those for whole calls do all that follows the call of the module.

        They give readers the whole result, and read or change the whole gradient of it. Changes of single tensors of the
        result, actions in recomputations, on inner gradients, on nodes and on the gradient of the input need the general hook.
        """
        if self.input_grad or self.node:
            return False
        plain = all(each.whole or not (each.path or each.changes or each.recomputed) for each in self.output)
        return plain and not any(each.path or each.backward is BackwardPass.INNER for each in self.output_grad)


def by_module(actions: Iterable[Action], called: set[int]) -> list[ModuleActions]:
    """Actions at modules, grouped by module.

    Args:
        actions: those with one tensor in the order in which they run.
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
    """Actions with one tensor, neighbouring readers of the same source as one action: the tensor is looked up once for all."""
    result: list[Action] = []
    for (reads, _), run in groupby(actions, key=lambda action: (action.only_reads, action.source)):
        readers = list(run)
        result += [together(readers, read_in_order([each.call for each in readers]))] if reads else readers
    return result


def together(readers: Sequence[Action], call: Reader) -> Action:
    """One action in place of readers of the same source.

    Args:
        call: does what each of them does.
    """
    if len(readers) == 1:
        return readers[0]
    told = [reader.absent for reader in readers if reader.absent is not None]

    def absent(found: bool, tree: Any) -> None:
        for tell in told:
            tell(found, tree)

    return replace(readers[0], call=call, merge=None, absent=absent if told else None)
