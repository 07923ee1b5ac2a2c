"""What happens at one module: what a hook of it has to do, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.autograd.graph import Node

from lightning_hooks.hooks.gradients import Visitor


@dataclass(frozen=True, slots=True, eq=False)
class TensorAction:
    """One thing that looks at, or changes, one tensor of a module.

    Args:
        path: which part of the arguments or the result: "" for all of it, `[0]`, `.logits`.
        visit: called with each floating tensor there; where it changes them, it may return a replacement.
        changes: whether it may.
        absent: called at every call of the module with whether there is a tensor at the path, and with the arguments or the
            result. None where nobody asks.
    """

    path: str
    visit: Visitor
    changes: bool = False
    absent: Callable[[bool, Any], None] | None = None


@dataclass(frozen=True, slots=True)
class CallAction:
    """Something that is handed the whole arguments, or the whole result, of a module.

    Args:
        visit: before the module `(module, args, kwargs)`, returning None or new `(args, kwargs)`; after it
            `(module, args, kwargs, output)`, returning None or a new output.
    """

    visit: Callable[..., Any]


@dataclass(slots=True)
class HookSite:
    """Everything that happens at one module, each part in the order in which it runs.

    Args:
        module: where.
        before: what sees or changes the arguments.
        after: what sees or changes the result.
        input_grad: what sees or changes the module's contribution to the gradient of its input.
        output_grad: what sees or changes the gradient of the result, as it left `after`.
        node: called with the autograd node of each tensor of that result.
        called: the ids of the modules that were called in the step, shared by all places.
    """

    module: nn.Module
    before: tuple[TensorAction | CallAction, ...] = ()
    after: tuple[TensorAction | CallAction, ...] = ()
    input_grad: tuple[TensorAction, ...] = ()
    output_grad: tuple[TensorAction, ...] = ()
    node: tuple[Callable[[Node], None], ...] = ()
    called: set[int] = field(default_factory=set)

    @property
    def is_plain(self) -> bool:
        """Whether at most one thing looks at the whole result, at most one at its gradient, and nothing else happens."""
        looks = [isinstance(item, TensorAction) and not item.path and not item.changes for item in self.after]
        grads = [not line.path for line in self.output_grad]
        many = len(looks) > 1 or len(grads) > 1 or self.before or self.input_grad or self.node
        return bool(looks or grads) and not many and all(looks) and all(grads)
