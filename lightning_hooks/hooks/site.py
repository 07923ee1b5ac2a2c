"""Hook site: everything that happens at one module, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.autograd.graph import Node

from lightning_hooks.hooks.gate import Passes
from lightning_hooks.hooks.gradients import Visitor


@dataclass(frozen=True, slots=True, eq=False)
class TensorAction:
    """Reads or changes the tensors in one part of the arguments or the result of a module.

    Args:
        path: which part: "" for all of it, `[0]`, `.logits`.
        visit: called with each floating tensor there; where it changes them, it may return a replacement.
        changes: whether it may.
        absent: called at every call of the module with whether there is a tensor at the path, and with the arguments or the
            result. None where it is not requested.
        passes: of a gradient, the backward passes in which it acts.
    """

    path: str
    visit: Visitor
    changes: bool = False
    absent: Callable[[bool, Any], None] | None = None
    passes: Passes = Passes.LOSS


@dataclass(frozen=True, slots=True)
class CallAction:
    """Gets the whole arguments, or the whole result, of a module.

    Args:
        visit: before the module `(module, args, kwargs)`, returning None or new `(args, kwargs)`; after it
            `(module, args, kwargs, output)`, returning None or a new output.
    """

    visit: Callable[..., Any]


@dataclass(slots=True)
class HookSite:
    """A module with its actions, in the order in which they run.

    Args:
        module: where.
        input: read or change the arguments.
        output: read or change the result.
        input_grad: read or change the module's contribution to the gradient of its input.
        output_grad: read or change the gradient of the result, as it left `output`.
        node: called with the autograd node of each tensor of that result.
        called: takes the id of the module when it is called; one set for all sites, cleared when a step begins.
    """

    module: nn.Module
    input: tuple[TensorAction | CallAction, ...] = ()
    output: tuple[TensorAction | CallAction, ...] = ()
    input_grad: tuple[TensorAction, ...] = ()
    output_grad: tuple[TensorAction, ...] = ()
    node: tuple[Callable[[Node], None], ...] = ()
    called: set[int] = field(default_factory=set)

    @property
    def is_plain(self) -> bool:
        """Whether at most one action reads the whole result, at most one the whole gradient of it, and there is no other.

        An action on inner gradients is not plain.
        """
        if self.input or self.input_grad or self.node or len(self.output) > 1 or len(self.output_grad) > 1:
            return False
        reads = all(isinstance(action, TensorAction) and not action.path and not action.changes for action in self.output)
        plain = not any(action.path or action.passes is Passes.INNER for action in self.output_grad)
        return bool(self.output or self.output_grad) and reads and plain
