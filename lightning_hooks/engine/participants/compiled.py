"""Modules under `torch.compile`: which they are, what is refused there, and the hooks that are traced into their graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from lightning_hooks.engine.participants.actions import in_order
from lightning_hooks.engine.participants.participant import ModuleRule, Participant
from lightning_hooks.errors import UnsupportedError, listed
from lightning_hooks.hooks import Action, Handles, HookSwitch, by_module
from lightning_hooks.private import private

if TYPE_CHECKING:
    from lightning_hooks.hooks.traced import TracedHooks


def compiled_modules(model: nn.Module) -> dict[int, str]:
    """The modules inside compiled code, by id: what is compiled there, in words."""
    inside: dict[int, str] = {}
    for what, module, includes_itself in _compiled(model):
        for part in module.modules():
            if includes_itself or part is not module:
                inside.setdefault(id(part), what)
    return inside


def refuse_compiled(inside: Mapping[int, str], rule: ModuleRule) -> None:
    """Refuse a rule at a module inside compiled code if what the rule does cannot be traced into a graph.

    Args:
        inside: from `compiled_modules`.
    """
    for target in () if rule.is_traceable else rule.targets:
        if id(target.value) in inside:
            raise UnsupportedError(
                f"{rule.where}: {target.name!r} is compiled ({inside[id(target.value)]}), and {rule.effect} cannot be part of "
                "a compiled graph. Watching, capturing and changing gradients there works; for this, run without torch.compile "
                "or exclude the module from it (torch.compiler.disable)"
            )


def refuse_traced(rules: Iterable[ModuleRule], called: set[int]) -> None:
    """Refuse rules without effect in a batch in which hooks were traced as part of a function that was not known as compiled.

    Args:
        rules: those that act in the step.
        called: the ids of the modules whose hooks have run.
    """
    for rule in rules:
        idle = [target.name for target in rule.targets if rule.effect and id(target.value) not in called]
        if idle:
            instead = (
                "Compile the module itself, before the batch begins"
                if rule.is_traceable
                else "Run without torch.compile, or exclude the module from it (torch.compiler.disable)"
            )
            raise UnsupportedError(
                f"{rule.where}: {listed(idle)} had no effect in this batch: the module was called by code that was compiled in "
                f"the batch, or by a compiled function. {instead}"
            )


class CompiledHooks:
    """The hooks of one model inside compiled code. They are installed before the first trace and stay; each step fills them.

    Attributes:
        inside: the ids of the modules inside compiled ones; these modules are kept alive for as long.
        busy: whether anything happens there in the steps to come.
    """

    def __init__(self, model: nn.Module, switch: HookSwitch, step_handles: Handles) -> None:
        self.model = model
        self.switch = switch
        self.inside: dict[int, str] = {}
        self.busy = False
        self._step_handles = step_handles
        self._handles = Handles()
        self._hooks: dict[int, TracedHooks] = {}
        self._modules: list[nn.Module] = []

    def install(self, participants: Sequence[Participant]) -> None:
        """Install hooks for everything that any participant may do, instead of those that are installed."""
        self.close()
        self._modules = [part for _, module, _ in _compiled(self.model) for part in module.modules()]
        self.inside = compiled_modules(self.model)
        if not self.inside:
            return
        from lightning_hooks.hooks.traced import TracedHooks  # defines operations, so only where they are needed

        actions = [action for p in participants if p.graph_key is not None for action in p.actions(p.graph_key)]
        for own in by_module(in_order(action for action in actions if id(action.owner) in self.inside), set()):
            traced = self._hooks[id(own.module)] = TracedHooks(own, self.switch, self._step_handles)
            traced.register(self._handles)
        if self._hooks:
            forget_graphs(self._modules)

    def changed(self) -> bool:
        """Whether something was compiled, or is no longer, since the hooks were installed."""
        if not self.inside and not any(True for _ in _compiled(self.model)):
            return False
        return compiled_modules(self.model).keys() != self.inside.keys()

    def fill(self, actions: Iterable[Action], called: set[int]) -> None:
        """Set the actions inside compiled code in the steps to come."""
        filled = {id(own.module): own for own in by_module(actions, called)}
        self.busy = bool(filled)
        for key, traced in self._hooks.items():
            traced.fill(filled.get(key))

    def close(self) -> None:
        self._handles.close()
        self._hooks.clear()
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
    for function in (module.forward, *compiled, getattr(type(module), "training_step", None)):
        while function is not None:
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code
            function = getattr(function, "_torchdynamo_orig_callable", None) or getattr(function, "__wrapped__", None)


def _compiled(model: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """What is compiled: in words, the module that holds all modules inside it, and whether that module is inside it too.

    A compiled `forward` runs inside the module's `__call__`, which runs the hooks of the module outside the graph.
    """
    finds_functions = "torch._dynamo" in sys.modules and _knows_functions()
    if finds_functions and _has_compiled(model, "training_step"):
        yield "training_step", model, True
    for name, module in model.named_modules():
        if _is_compiled(module):
            yield name or "the model itself", module, True
        elif finds_functions and _has_compiled(module, "forward"):
            yield f"{name}.forward" if name else "forward", module, False


def _has_compiled(module: nn.Module, method: str) -> bool:
    """Whether a method of a module, or of its class, is a function that `torch.compile` returned."""
    function = module.__dict__.get(method) or getattr(type(module), method, None)
    # What `torch.compiler.disable` returns has the first name too.
    return hasattr(function, "_torchdynamo_orig_callable") and not getattr(function, "_torchdynamo_disable", False)


def _is_compiled(module: nn.Module) -> bool:
    if _is_wrapper(module):
        return True
    # A loop, not `any`: all modules are asked at each watched step that follows an unwatched one.
    attributes = module.__dict__
    for mark in _MARKS:  # noqa: SIM110
        if attributes.get(mark) is not None:
            return True
    return False


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


@cache
def _knows_functions() -> bool:
    """Whether compiled functions can be told from others; asked when there may be one, since it imports the compiler."""

    def find() -> bool:
        disabled = torch.compiler.disable(_is_compiled)
        if not hasattr(disabled, "_torchdynamo_orig_callable") or not hasattr(disabled, "_torchdynamo_disable"):
            raise AttributeError("what torch.compiler.disable returned has none")
        return True

    lost = "modules with a compiled forward or training_step are treated as eager ones: rules have no effect there"
    return private("_torchdynamo_orig_callable, _torchdynamo_disable", find, False, lost)
