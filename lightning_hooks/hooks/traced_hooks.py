"""The hooks of a module inside compiled code: placed once for as long as the run lasts, filled anew for each step.

A hook that comes or goes means that the compiler starts again, and one that comes after the first trace is not even noticed.
So these stay, and a flag says whether they are on: at most one more variant of each graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

from lightning_hooks.hooks.gate import Gate
from lightning_hooks.hooks.handles import Handles, OurHook
from lightning_hooks.hooks.module_calls import EagerCall
from lightning_hooks.hooks.site import HookSite, TensorAction
from lightning_hooks.hooks.traced import Mark, Seen
from lightning_hooks.hooks.tree import Arguments, is_measured, map_tensors, part_at, steps_of, tensors_in

_LISTS = ("before", "after", "input_grad", "output_grad")


class TracedSite:
    """Everything that may happen at a module inside compiled code.

    Args:
        place: all that ever happens there, in any step.
        gate: of the model.
        step_handles: for what is placed where the module runs uncompiled after all.
    """

    def __init__(self, place: HookSite, gate: Gate, step_handles: Handles) -> None:
        self.module = place.module
        self.gate = gate
        self._eager = EagerCall(HookSite(place.module), gate, step_handles)
        self._marks: dict[tuple[str, str], Mark] = {}
        self._changes: set[tuple[str, str]] = set()
        for name in _LISTS:
            for line in getattr(place, name):
                assert isinstance(line, TensorAction)  # what sees arguments as a whole is refused in compiled code
                self._marks.setdefault((name, line.path), Mark(gate, self._was_called))
                if line.changes:
                    self._changes.add((name, line.path))

    def register(self, handles: Handles) -> None:
        """Put the hooks on the module.

        Args:
            handles: takes them over.
        """
        marks = {name: [(path, mark) for (kind, path), mark in self._marks.items() if kind == name] for name in _LISTS}
        changes = {name: [(name, path) in self._changes for path, _ in marks[name]] for name in _LISTS}
        if marks["before"] or marks["input_grad"]:
            hook: Any = _TracedPreHook(self._eager, marks["before"], marks["input_grad"], changes["input_grad"])
            handles.keep(self.module.register_forward_pre_hook(hook, with_kwargs=True))
        if marks["after"] or marks["output_grad"] or marks["input_grad"]:
            hook = _TracedForwardHook(self._eager, marks["after"], marks["output_grad"], changes["output_grad"])
            handles.keep(self.module.register_forward_hook(hook, with_kwargs=True))

    def fill(self, place: HookSite | None) -> None:
        """Say what happens there from now on.

        Args:
            place: None for nothing.
        """
        place = HookSite(self.module) if place is None else place
        self._eager.place = place
        for (name, path), mark in self._marks.items():
            mark.visitors = [line.visit for line in getattr(place, name) if line.path == path]

    def _was_called(self) -> None:
        self._eager.place.called.add(id(self.module))


class _TracedPreHook(OurHook):
    def __init__(
        self, eager: EagerCall, looks: list[tuple[str, Mark]], grads: list[tuple[str, Mark]], changes: list[bool]
    ) -> None:
        self.gate = eager.gate
        self.eager = torch._dynamo.disable(eager.pre_hook)
        self.looks = [(steps_of(path), mark.tensor) for path, mark in looks]
        self.grads = [(steps_of(p), mark.tensor, mark.probe, change) for (p, mark), change in zip(grads, changes, strict=True)]
        self._keep = (looks, grads)  # the marks are known by number only

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.gate.traced:
            return None
        if not torch.compiler.is_compiling():
            return self.eager(module, args, kwargs)
        given: Any = (args, kwargs)
        for steps, mark, probe, changes in self.grads:
            given = _seen(given, part_at(Arguments(*given), steps) if steps else given, mark, probe, changes)
        for steps, mark in self.looks:
            _look(part_at(Arguments(args, kwargs), steps) if steps else (args, kwargs), mark)
        return given if self.grads else None


class _TracedForwardHook(OurHook):
    def __init__(
        self, eager: EagerCall, looks: list[tuple[str, Mark]], grads: list[tuple[str, Mark]], changes: list[bool]
    ) -> None:
        self.gate = eager.gate
        self.eager = torch._dynamo.disable(eager.forward_hook)
        self.looks = [(steps_of(path), mark.tensor) for path, mark in looks]
        self.grads = [(steps_of(p), mark.tensor, mark.probe, change) for (p, mark), change in zip(grads, changes, strict=True)]
        self._keep = (looks, grads)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self.gate.traced:
            return None
        if not torch.compiler.is_compiling():
            return self.eager(module, args, kwargs, output)
        for steps, mark in self.looks:
            _look(part_at(output, steps), mark)
        for steps, mark, probe, changes in self.grads:
            output = _seen(output, part_at(output, steps), mark, probe, changes)
        return output if self.grads else None


# Traced as part of a graph they are; alone, as the hooks of a compiled module itself may run, they are not worth one.
for _hook in (_TracedPreHook, _TracedForwardHook):
    torch._dynamo.eval_frame.skip_code(_hook.__call__.__code__)


def _look(part: Any, mark: Tensor) -> None:
    for tensor in tensors_in(part):
        if is_measured(tensor):
            torch.ops.lightning_hooks.look(tensor.detach(), mark)


def _seen(tree: Any, part: Any, mark: Tensor, probe: Tensor, changes: bool) -> Any:
    """The tree with each tensor of the part behind a node of its own."""
    wanted = list(tensors_in(part))
    done: list[tuple[Tensor, Tensor]] = []

    def through(tensor: Tensor) -> Tensor:
        if not is_measured(tensor) or not tensor.requires_grad or not any(tensor is one for one in wanted):
            return tensor
        for old, new in done:  # one tensor given twice stays one
            if old is tensor:
                return new
        result: Tensor = Seen.apply(tensor, probe, mark, changes)  # type: ignore[no-untyped-call]
        done.append((tensor, result))
        return result

    return map_tensors(through, tree)
