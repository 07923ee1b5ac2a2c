"""Modules under `torch.compile`: which they are, what is refused there, and the hooks that are traced into their graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from lightning_hooks.engine.participant import Part, Participant
from lightning_hooks.engine.sites import build_sites
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks import Gate, Handles
from lightning_hooks.private import private
from lightning_hooks.rules.patterns import Target

if TYPE_CHECKING:
    from lightning_hooks.hooks.traced import TracedSite


def compiled_modules(model: nn.Module) -> dict[int, str]:
    """The modules inside compiled ones, themselves included: id to the name of the compiled one."""
    inside: dict[int, str] = {}
    for name, part in _compiled_parts(model):
        inside.setdefault(id(part), name)
    return inside


def refuse_compiled(model: nn.Module, targets: Iterable[Target[nn.Module]], where: str, what: str) -> None:
    """Refuse what cannot be traced into a compiled graph: `what` a rule, whose option is `where`, would do at its targets."""
    inside = compiled_modules(model)
    for target in targets:
        if id(target.value) in inside:
            raise UnsupportedError(
                f"{where}: {target.name!r} is compiled ({inside[id(target.value)]}), and {what} cannot be part of a compiled "
                "graph. Watching, capturing and changing gradients there works; for this, run without torch.compile or "
                "exclude the module from it (torch.compiler.disable)"
            )


class CompiledHooks:
    """The hooks of one model inside compiled code. They are installed before the first trace and stay; each step fills them.

    Attributes:
        inside: the ids of the modules inside compiled ones; these modules are kept alive for as long.
        busy: whether anything happens there in the steps to come.
    """

    def __init__(self, model: nn.Module, gate: Gate, step_handles: Handles) -> None:
        self.model = model
        self.gate = gate
        self.inside: dict[int, str] = {}
        self.busy = False
        self._step_handles = step_handles
        self._handles = Handles()
        self._sites: dict[int, TracedSite] = {}
        self._modules: list[nn.Module] = []

    def install(self, participants: Sequence[Participant]) -> None:
        """Install hooks for everything that any participant may do, instead of those that are installed."""
        self.close()
        self._modules = [part for _, part in _compiled_parts(self.model)]
        self.inside = compiled_modules(self.model)
        if not self.inside:
            return
        from lightning_hooks.hooks.traced import TracedSite  # defines operations, so only where they are needed

        parts = [part for p in participants if p.ever is not None for part in p.parts(p.ever)]
        for site in build_sites([part for part in parts if id(part.on) in self.inside], set()):
            traced = self._sites[id(site.module)] = TracedSite(site, self.gate, self._step_handles)
            traced.register(self._handles)
        if self._sites:
            forget_graphs(self._modules)

    def changed(self) -> bool:
        """Whether something was compiled, or is no longer, since the hooks were installed."""
        if not self.inside and not any(map(_is_compiled, self.model.modules())):
            return False
        return compiled_modules(self.model).keys() != self.inside.keys()

    def fill(self, parts: Iterable[Part], called: set[int]) -> None:
        """Set what happens inside compiled code in the steps to come."""
        filled = {id(site.module): site for site in build_sites(parts, called)}
        self.busy = bool(filled)
        for key, traced in self._sites.items():
            traced.fill(filled.get(key))

    def close(self) -> None:
        self._handles.close()
        self._sites.clear()
        self.busy = False


def forget_graphs(modules: Sequence[nn.Module]) -> None:
    """Drop the graphs in which modules were traced; those of other models stay.

    The compiler does not notice hooks on modules that had none when it traced them. It has a public way to drop every graph
    of the process only, which is the fallback.
    """
    lost = "all graphs of the process are dropped (torch.compiler.reset())"
    if not private("torch._dynamo.convert_frame.input_codes", lambda: _forget(modules), False, lost):
        torch.compiler.reset()


def _forget(modules: Sequence[nn.Module]) -> bool:
    """Drop the graphs of modules by torch's private list of them. Returns whether that worked.

    Torch keeps graphs with the code that was traced, and modules of one class share them. What follows a graph break has code
    of its own; its graphs are known by the backend, of which each call of `torch.compile` makes one.
    """
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
    from torch._dynamo.convert_frame import input_codes

    traced = [(code, _debug_get_cache_entry_list(code)) for code in (seen() for seen in input_codes.seen) if code]
    wrappers = {id(code) for module in modules if _is_wrapper(module) for code in _codes_of(module)}
    forwards = {id(code): code for module in modules if not _is_wrapper(module) for code in _codes_of(module)}
    backends = {id(graph.backend) for code in forwards.values() for graph in _debug_get_cache_entry_list(code)}
    stale = [
        code
        for code, graphs in traced
        if id(code) in wrappers or id(code) in forwards or any(id(graph.backend) in backends for graph in graphs)
    ]
    for code in stale:
        if _debug_get_cache_entry_list(code):  # without, the code may be marked as one to skip, and stays so
            reset_code(code)
    return not any(map(_debug_get_cache_entry_list, [*forwards.values(), *stale]))


def _codes_of(module: nn.Module) -> Iterator[CodeType]:
    """The code of a module's forward and of its compiled methods, and of what decorators and the compiler wrapped in them."""
    compiled = (value for value in vars(module).values() if hasattr(value, "_torchdynamo_orig_callable"))  # Lightning's steps
    for function in (module.forward, *compiled):
        while function is not None:
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code
            function = getattr(function, "_torchdynamo_orig_callable", None) or getattr(function, "__wrapped__", None)


def _compiled_parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module inside a compiled one with the name of that one, itself included; nested ones several times."""
    for name, module in model.named_modules():
        if _is_compiled(module):
            for part in module.modules():
                yield name or "the model itself", part


def _is_compiled(module: nn.Module) -> bool:
    return _is_wrapper(module) or any(module.__dict__.get(mark) is not None for mark in _MARKS)


def _is_wrapper(module: nn.Module) -> bool:
    """Whether this is what `torch.compile` returned for a module; names of parameters hold that of its child too."""
    return "_orig_mod" in module._modules


def _find_marks() -> tuple[str, ...]:
    if nn.Module._compiled_call_impl is not None:
        raise AttributeError("it is not None for a module that is not compiled")
    return "_compiled_call_impl", "_compiler_ctx"  # of Module.compile, and what Lightning keeps of a compiled LightningModule


_NO_MARKS: tuple[str, ...] = ()
_MARKS: Final = private(
    "Module._compiled_call_impl",
    _find_marks,
    _NO_MARKS,
    "modules compiled in place are treated as eager ones: graph breaks, or no rows",
)
