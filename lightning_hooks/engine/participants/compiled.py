"""Modules under `torch.compile`: finds them, refuses rules that cannot work there, and installs hooks that are traced."""

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
    from lightning_hooks.hooks.places import Places
    from lightning_hooks.hooks.traced import TracedHooks


def compiled_modules(model: nn.Module) -> dict[int, str]:
    """The ids of the modules inside compiled code, each with a description of the compiled module or function."""
    inside: dict[int, str] = {}
    for description, root, includes_root in _compiled(model):
        for module in root.modules():
            if includes_root or module is not root:
                inside.setdefault(id(module), description)
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
    """Refuse rules that had no effect in a batch because their hooks were traced as part of a function compiled in the batch.

    Args:
        rules: the rules that act in the step.
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
        inside: the ids of the modules inside compiled code, with descriptions. The modules are kept alive, so ids stay valid.
        busy: whether the hooks have any action in the current kind of step.
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
        self._called: set[int] = set()
        # The places of what operations in graphs measure: in the forward pass, and in the backward of the loss.
        self._places: tuple[Places, Places] | None = None

    def install(self, participants: Sequence[Participant]) -> None:
        """Replace the installed hooks by hooks for everything that any participant may do in any step."""
        self.close()
        self._modules = [module for _, root, _ in _compiled(self.model) for module in root.modules()]
        self.inside = compiled_modules(self.model)
        if not self.inside:
            return
        # Import the module only here, because it defines torch operations, which a run without compiled modules does not need.
        from lightning_hooks.hooks.places import Places
        from lightning_hooks.hooks.traced import TracedHooks

        self._places = Places(), Places()
        actions = [action for p in participants if p.graph_key is not None for action in p.actions(p.graph_key)]
        for at_module in by_module(in_order(action for action in actions if id(action.owner) in self.inside), set()):
            traced = self._hooks[id(at_module.module)] = TracedHooks(at_module, self.switch, self._step_handles, *self._places)
            traced.register(self._handles)
        if self._hooks:
            forget_graphs(self._modules)

    def changed(self) -> bool:
        """Whether other modules are compiled than when the hooks were installed."""
        if not self.inside and not any(True for _ in _compiled(self.model)):
            return False
        return compiled_modules(self.model).keys() != self.inside.keys()

    def fill(self, actions: Iterable[Action], called: set[int]) -> None:
        """Set the actions that the installed hooks run from now on."""
        by_id = {id(each.module): each for each in by_module(actions, called)}
        self.busy = bool(by_id)
        self._called = called
        for key, traced in self._hooks.items():
            traced.fill(by_id.get(key))

    def turn_on(self, announced: bool) -> None:
        """Let operations in graphs measure in the batch that begins, if they may write all rows of the step.

        Args:
            announced: whether the backward of the loss will be announced. A graph that is replayed cannot ask which pass runs.
        """
        self.switch.traced = self.busy
        self.switch.replays = False
        if self._places is None or not any(map(len, self._places)):
            return
        reads, grads = (places.rows() if announced else None for places in self._places)
        self.switch.replays = self.busy and reads is not None and grads is not None
        self._places[0].set(reads if self.switch.replays else None)
        self._places[1].clear()
        if self.switch.replays:
            # A replay does not tell which modules it calls.
            self._called.update(key for key, traced in self._hooks.items() if traced.acts)

    def note_backward(self, begins: bool) -> None:
        """Called when the backward of the loss begins, and when it has ended."""
        if self._places is not None and len(self._places[1]):
            self._places[1].set(self._places[1].rows() if begins else None)

    def close(self) -> None:
        for places in self._places or ():
            places.clear()
        self._places = None
        self._handles.close()
        self._hooks.clear()
        self.busy = False


def forget_graphs(modules: Sequence[nn.Module]) -> None:
    """Drop the compiled graphs in which modules were traced, so that the compiler traces their new hooks.

    The compiler does not notice hooks on modules that had none when it traced them. Its only public way drops every graph of
    the process, also those of other models; that is the fallback.
    """
    lost = "all graphs of the process are dropped (torch.compiler.reset())"
    if not private("torch._dynamo.convert_frame.input_codes", lambda: _forget(modules), False, lost):
        torch.compiler.reset()


def _forget(modules: Sequence[nn.Module]) -> bool:
    """Drop the graphs of modules with torch's private list of traced code. Returns whether that worked.

    Torch keeps graphs with the code object that was traced, which modules of one class share. The code after a graph break is a
    code object of its own. Its graphs have the same backend object, since each call of `torch.compile` makes one backend.
    """
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
    from torch._dynamo.convert_frame import input_codes

    traced = [(code, _debug_get_cache_entry_list(code)) for code in (known() for known in input_codes.seen) if code]
    wrappers = {id(code) for module in modules if _is_wrapper(module) for code in _codes_of(module)}
    forwards = {id(code): code for module in modules if not _is_wrapper(module) for code in _codes_of(module)}
    backends = {id(graph.backend) for code in forwards.values() for graph in _debug_get_cache_entry_list(code)}
    stale = [
        code
        for code, graphs in traced
        if id(code) in wrappers or id(code) in forwards or any(id(graph.backend) in backends for graph in graphs)
    ]
    for code in stale:
        # Code without graphs may be marked as code that the compiler skips. Resetting it would remove the mark.
        if _debug_get_cache_entry_list(code):
            reset_code(code)
    return not any(map(_debug_get_cache_entry_list, [*forwards.values(), *stale]))


def _codes_of(module: nn.Module) -> Iterator[CodeType]:
    """The code of a module's forward and of its compiled methods, and of the functions that these wrap."""
    # A LightningModule holds compiled steps such as `training_step` as attributes.
    compiled = (value for value in vars(module).values() if hasattr(value, "_torchdynamo_orig_callable"))
    for function in (module.forward, *compiled, getattr(type(module), "training_step", None)):
        while function is not None:
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code
            function = getattr(function, "_torchdynamo_orig_callable", None) or getattr(function, "__wrapped__", None)


def _compiled(model: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """The compiled parts of a model: a description, the root module, and whether hooks of the root are inside the graph too.

    A compiled `forward` runs inside the `__call__` of its module, which runs the hooks of that module outside the graph.
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
    # A function that `torch.compiler.disable` returned has both attributes, and is not compiled.
    return hasattr(function, "_torchdynamo_orig_callable") and not getattr(function, "_torchdynamo_disable", False)


def _is_compiled(module: nn.Module) -> bool:
    if _is_wrapper(module):
        return True
    # A loop is faster than `any`, and each watched step that follows an unwatched one calls this function for all modules.
    attributes = module.__dict__
    for mark in _MARKS:  # noqa: SIM110
        if attributes.get(mark) is not None:
            return True
    return False


def _is_wrapper(module: nn.Module) -> bool:
    """Whether a module is the wrapper that `torch.compile` returned, whose child `_orig_mod` is the original module."""
    return "_orig_mod" in module._modules


def _find_marks() -> tuple[str, ...]:
    if nn.Module._compiled_call_impl is not None:
        raise AttributeError("it is not None for a module that is not compiled")
    # `Module.compile` sets the first, and Lightning sets the second on a compiled LightningModule.
    return "_compiled_call_impl", "_compiler_ctx"


_NO_MARKS: tuple[str, ...] = ()
_MARKS: Final = private(
    "Module._compiled_call_impl",
    _find_marks,
    _NO_MARKS,
    "modules compiled in place are treated as eager ones: graph breaks, or no rows",
)


@cache
def _knows_functions() -> bool:
    """Whether compiled functions can be told from others. Call it only if there may be one: it imports the compiler."""

    def find() -> bool:
        disabled = torch.compiler.disable(_is_compiled)
        if not hasattr(disabled, "_torchdynamo_orig_callable") or not hasattr(disabled, "_torchdynamo_disable"):
            raise AttributeError("what torch.compiler.disable returned has none")
        return True

    lost = "modules with a compiled forward or training_step are treated as eager ones: rules have no effect there"
    return private("_torchdynamo_orig_callable, _torchdynamo_disable", find, False, lost)
