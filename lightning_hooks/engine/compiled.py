"""Modules under `torch.compile`: which they are, what is refused there, and the taps that are traced into their graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch import nn

from lightning_hooks.engine.participant import ModulePart, Participant
from lightning_hooks.engine.places import build_places
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.select import Target
from lightning_hooks.taps import Gate, Handles

if TYPE_CHECKING:
    from lightning_hooks.taps.traced_hooks import TracedPlace


def compiled_modules(model: nn.Module) -> dict[int, str]:
    """The modules inside compiled ones, themselves included: id to the name of the compiled one.

    Args:
        model: the root.
    """
    inside: dict[int, str] = {}
    for name, module in model.named_modules():
        if _is_compiled(module):
            for part in module.modules():
                inside.setdefault(id(part), name or "the model itself")
    return inside


def refuse_compiled(model: nn.Module, targets: Iterable[Target[nn.Module]], where: str, what: str) -> None:
    """Refuse what cannot be traced into a compiled graph.

    Args:
        model: the root.
        targets: the modules that a rule means.
        where: the option, for the message.
        what: it would do there.

    Raises:
        UnsupportedError: with the first such module and the way out.
    """
    inside = compiled_modules(model)
    for target in targets:
        if id(target.value) in inside:
            raise UnsupportedError(
                f"{where}: {target.name!r} is compiled ({inside[id(target.value)]}), and {what} cannot be part of a compiled "
                "graph. Watching, capturing and changing gradients there works; for this, run without torch.compile or leave "
                "the module out of it (torch.compiler.disable)"
            )


class CompiledTaps:
    """The taps of one model inside compiled code.

    Args:
        model: the root.
        gate: of the model.
        step_handles: of the dispatcher.
    """

    def __init__(self, model: nn.Module, gate: Gate, step_handles: Handles) -> None:
        self.model = model
        self.gate = gate
        self.inside: dict[int, str] = {}
        self.busy = False
        self._step_handles = step_handles
        self._handles = Handles()
        self._places: dict[int, TracedPlace] = {}

    def place(self, participants: Sequence[Participant]) -> None:
        """Put hooks wherever any participant ever does anything, before the first trace.

        Args:
            participants: in their order.
        """
        self.close()
        self.inside = compiled_modules(self.model)
        if not self.inside:
            return
        from lightning_hooks.taps.traced_hooks import TracedPlace  # defines operations, so only where they are needed

        parts = [part for p in participants if p.ever is not None for part in p.module_parts(p.ever)]
        for place in build_places(self.inside_of(parts), set()):
            traced = self._places[id(place.module)] = TracedPlace(place, self.gate, self._step_handles)
            traced.register(self._handles)
        if self._places:
            forget_graphs()

    def changed(self) -> bool:
        """Whether something was compiled, or is no longer, since the hooks were placed."""
        # Asked wherever hooks are put on, and names of modules take longer than most models' hooks.
        if not self.inside and not any(map(_is_compiled, _all_modules(self.model))):
            return False
        return compiled_modules(self.model).keys() != self.inside.keys()

    def inside_of(self, parts: Iterable[ModulePart]) -> list[ModulePart]:
        """Those of the parts that are inside compiled code."""
        return [part for part in parts if id(part.module) in self.inside]

    def fill(self, parts: Iterable[ModulePart], called: set[int]) -> None:
        """Say what happens in the steps to come.

        Args:
            parts: of all modules; those outside compiled code are passed over.
            called: takes the ids of the modules that are called.
        """
        filled = {id(place.module): place for place in build_places(self.inside_of(parts), called)}
        self.busy = bool(filled)
        for key, traced in self._places.items():
            traced.fill(filled.get(key))

    def close(self) -> None:
        """Take the hooks away."""
        self._handles.close()
        self._places.clear()
        self.busy = False


def forget_graphs() -> None:
    """Let the compiler start again: it does not notice hooks on modules that had none when it traced them."""
    import torch._dynamo

    torch._dynamo.reset()


def _all_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Every module once, in any order."""
    found, left = {model}, [model]
    while left:
        module = left.pop()
        yield module
        for child in module._modules.values():
            if child is not None and child not in found:
                found.add(child)
                left.append(child)


def _is_compiled(module: nn.Module) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # not loaded, nothing can be compiled; loading it takes a while
    return (
        (dynamo is not None and isinstance(module, dynamo.OptimizedModule))
        or getattr(module, "_compiled_call_impl", None) is not None
        or module.__dict__.get("_compiler_ctx") is not None  # what Lightning keeps of a compiled LightningModule
    )
