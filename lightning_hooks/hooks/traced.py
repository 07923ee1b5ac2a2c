"""The hooks of a module inside compiled code: registered once per run, filled with actions for each step.

Adding or removing a hook makes the compiler trace again, and a hook that is added after the first trace is ignored. So these
hooks stay registered, and a flag turns them on and off, which costs at most one more variant of each graph.

Hooks on modules inside a compiled module are traced with it. So they may not use Python state: no lists, no counters, not even
an integer attribute, for which the compiler would make one graph for each of a hundred equal blocks. A traced hook has only a
tensor that holds a number, its mark, and a flag that all hooks of a model share. Its work is done by four custom operations
that the compiler does not trace into. When the graph runs, they read the number and call the actions of the mark, which are the
same as in eager mode.

A gradient is read or changed in the backward of an identity function. Its node also has the mark's probe as an input, so that
the compiler does not drop an operation whose result is not used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

import torch
import torch._dynamo
from torch import Tensor, nn

from lightning_hooks.hooks.action import Action, ModuleActions
from lightning_hooks.hooks.autograd import names
from lightning_hooks.hooks.eager import EagerHooks, ForwardHook, PreHook
from lightning_hooks.hooks.gradients import OutputGradients
from lightning_hooks.hooks.handles import Handles, OurHook
from lightning_hooks.hooks.parts import Arguments, part_at, steps_of
from lightning_hooks.hooks.places import Places
from lightning_hooks.hooks.switch import BackwardPass, HookSwitch
from lightning_hooks.hooks.untraced import untraced
from lightning_hooks.nested.rebuilding import map_tensors
from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.tensor_kinds import is_measured

_GRADIENTS = ("input_grad", "output_grad")
_LISTS = ("input", "output", *_GRADIENTS)
_IN_GRAPHS: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""The dtypes that operations in compiled code measure."""

_LIBRARY = torch.library.Library("lightning_hooks", "DEF")
# `read` is declared to change the mark, so that the compiler does not drop, repeat or reorder it.
_SCHEMAS: Final = (
    "read(Tensor x, Tensor(a!) mark) -> ()",
    "read_without_gradients(Tensor x, Tensor(a!) mark) -> ()",
    "read_grad(Tensor grad, Tensor mark) -> Tensor",
    "change_grad(Tensor grad, Tensor mark) -> Tensor",
)
for _schema in _SCHEMAS:
    # A replay of a CUDA graph would not call the actions. By this tag the compiler leaves the operation out of CUDA graphs.
    _LIBRARY.define(_schema, tags=(torch.Tag.cudagraph_unsafe,))

_NUMBERS = itertools.count()
_MARKS: dict[int, ReferenceType[Mark]] = {}
"""The marks of this process by their numbers, because an operation in a compiled graph is given only a number."""


@dataclass(eq=False)
class Mark:
    """The actions on one tensor of a module, which a traced graph finds by a number.

    Args:
        hooks: the hooks of the module; while their switch is off, no action is called.
        name: the name of the tensor, one of `_LISTS`.
        actions: called in order with each tensor; replaced from step to step.
        changes: whether any action in any step may replace the tensor.
    """

    hooks: EagerHooks
    name: str
    actions: list[Action] = field(default_factory=list)
    changes: bool = False

    def __post_init__(self) -> None:
        number = next(_NUMBERS)
        # Not a `WeakValueDictionary`, whose `get` is a function in Python: each read tensor looks its mark up.
        _MARKS[number] = ref(self, lambda _: _MARKS.pop(number, None))
        self.is_gradient = self.name in _GRADIENTS
        self.tensor = torch.tensor(number, device="cpu")
        self.probe = torch.zeros(1, requires_grad=True, device="cpu")
        self.replayed: Replayed | None = None

    def row(self) -> int | None:
        """The address of the row that an operation writes in place of the actions; 0 if there are none, None if it may not."""
        if not self.actions:
            return 0
        (action,) = self.actions
        return None if action.in_graph is None else action.in_graph.address()

    def run(self, tensor: Tensor) -> Tensor:
        """Call the actions, and return the tensor that the last change returned."""
        at_module = self.hooks.actions
        at_module.called.add(id(at_module.module))
        switch = self.hooks.switch
        for action in self.actions:
            if self.is_gradient:
                # While every backward pass is that of the loss, do not ask the switch, which takes two frames of Python.
                is_of_loss = switch.only_loss and action.backward is BackwardPass.LOSS
                if not is_of_loss and not switch.lets_through(action.backward, tensor):
                    continue
            elif not action.recomputed and names.graph_task_id() != -1:  # as `is_recomputation`, without its frame
                continue
            changed = action.call(tensor)
            tensor = changed if action.changes and changed is not None else tensor
        return tensor


class GradientInGraph(torch.autograd.Function):
    """The identity; an operation in its backward writes the gradient into the row at a place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probe: Tensor, place: Tensor, magnitudes: bool) -> Tensor:
        ctx.save_for_backward(place)
        ctx.magnitudes = magnitudes
        return x.clone()  # as in `GradientOf`

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None, None]:
        (grad,), (place,) = grads, ctx.saved_tensors
        return grad, torch.ops.lightning_hooks.measure_grad(grad, place, ctx.magnitudes), None, None


def _no_mark() -> None:
    """Replaces the reference to a mark that is gone."""


class Replayed(NamedTuple):
    """How an operation in compiled code writes the row of a mark, if its only action reads a tensor for a row on a device.

    Args:
        place: of the row.
        probe: as that of a mark, on the device.
        magnitudes: as of `RowInGraph`.
    """

    place: Tensor
    probe: Tensor
    magnitudes: bool


class GradientOf(torch.autograd.Function):
    """The identity; its backward passes the gradient to the actions of a mark."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probe: Tensor, mark: Tensor, changes: bool) -> Tensor:
        ctx.save_for_backward(mark)
        ctx.changes = changes
        # Copy: if this function returned a view, a module could not change its input in place.
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None, None]:
        # Also return a gradient of the probe, the second input of `forward`. Nothing reads its value.
        (grad,), (mark,) = grads, ctx.saved_tensors
        if ctx.changes:
            grad = torch.ops.lightning_hooks.change_grad(grad, mark)
            return grad, torch.zeros(1, device=mark.device), None, None
        return grad, torch.ops.lightning_hooks.read_grad(grad, mark), None, None


@untraced
def _read(x: Tensor, number: Tensor) -> None:
    mark = _MARKS.get(int(number), _no_mark)()
    if mark is not None and mark.hooks.switch.is_on:
        mark.run(x)


@untraced
def _read_without_gradients(x: Tensor, number: Tensor) -> None:
    mark = _MARKS.get(int(number), _no_mark)()
    if mark is not None and mark.hooks.switch.is_on and not mark.hooks.switch.leaves_out(has_gradients=False):
        mark.run(x)


@untraced
def _read_grad(grad: Tensor, number: Tensor) -> Tensor:
    mark = _MARKS.get(int(number), _no_mark)()
    if mark is not None and mark.hooks.switch.is_on:
        mark.run(grad)
    return torch.zeros(1, device=number.device)


@untraced
def _change_grad(grad: Tensor, number: Tensor) -> Tensor:
    mark = _MARKS.get(int(number), _no_mark)()
    result = mark.run(grad) if mark is not None and mark.hooks.switch.is_on else grad
    # Copy the result, because its strides must be those that `register_fake` promises to the compiler.
    return torch.empty_like(grad).copy_(result)


_LIBRARY.impl("read", _read, "CompositeExplicitAutograd")
_LIBRARY.impl("read_without_gradients", _read_without_gradients, "CompositeExplicitAutograd")
_LIBRARY.impl("read_grad", _read_grad, "CompositeExplicitAutograd")
_LIBRARY.impl("change_grad", _change_grad, "CompositeExplicitAutograd")
torch.library.register_fake("lightning_hooks::read", lambda x, mark: None)
torch.library.register_fake("lightning_hooks::read_without_gradients", lambda x, mark: None)
torch.library.register_fake("lightning_hooks::read_grad", lambda grad, mark: torch.zeros(1, device=mark.device))
torch.library.register_fake("lightning_hooks::change_grad", lambda grad, mark: torch.empty_like(grad))


class TracedHooks:
    """The hooks of a module inside compiled code.

    Args:
        actions: all actions that the module may have in any step.
        switch: the switch that the hooks read.
        step_handles: the handles for hooks on gradients, if the module runs uncompiled.
        reads: takes the places of inputs and outputs that operations in compiled code measure.
        grads: takes those of gradients.
    """

    def __init__(self, actions: ModuleActions, switch: HookSwitch, step_handles: Handles, reads: Places, grads: Places) -> None:
        self.module = actions.module
        self.switch = switch
        self._eager = EagerHooks(ModuleActions(actions.module), switch, step_handles, OutputGradients(step_handles))
        self._marks: dict[str, dict[str, Mark]] = {name: {} for name in _LISTS}  # name of the tensor -> path -> mark
        for name, marks in self._marks.items():
            for action in getattr(actions, name):
                # `refuse_compiled` has refused rules for compiled modules with an action that gets the whole call.
                assert not action.whole
                mark = marks.setdefault(action.path, Mark(self._eager, name))
                mark.changes = mark.changes or action.changes
            for path, mark in marks.items():
                _let_replay(mark, [action for action in getattr(actions, name) if action.path == path], reads, grads)

    @property
    def acts(self) -> bool:
        """Whether a hook has an action in the current step."""
        return any(mark.actions for marks in self._marks.values() for mark in marks.values())

    def register(self, handles: Handles) -> None:
        marks, eager = self._marks, self._eager
        if marks["input"] or marks["input_grad"]:
            before = _TracedPreHook(self.switch, PreHook(eager), marks["input"], marks["input_grad"])
            handles.register(self.module.register_forward_pre_hook, before, with_kwargs=True)
        if marks["output"] or marks["output_grad"] or marks["input_grad"]:
            after = _TracedForwardHook(self.switch, ForwardHook(eager), marks["output"], marks["output_grad"])
            handles.register(self.module.register_forward_hook, after, with_kwargs=True)

    def fill(self, actions: ModuleActions | None) -> None:
        """Set the actions that run from now on; None for no action."""
        actions = ModuleActions(self.module) if actions is None else actions
        self._eager.actions = actions
        for name, marks in self._marks.items():
            for path, mark in marks.items():
                mark.actions = [action for action in getattr(actions, name) if action.path == path]


def _let_replay(mark: Mark, actions: Sequence[Action], reads: Places, grads: Places) -> None:
    """Give a mark a place if its only action in any step reads a tensor for a row that an operation may write."""
    if len(actions) != 1:
        return
    (action,) = actions
    row = action.in_graph
    if row is None or action.changes or action.recomputed or action.backward is not BackwardPass.LOSS:
        return
    place = (grads if mark.is_gradient else reads).add(row.device, mark.row)
    mark.replayed = Replayed(place, torch.zeros(1, requires_grad=True, device=row.device), row.magnitudes)


class _TracedHook(OurHook):
    """Base of both hooks of a traced module. The compiler sees only the two tensors of a mark.

    Args:
        switch: the switch that the hook reads.
        eager: called instead if the module runs uncompiled.
        reads: by path, the marks of tensors that are read in the forward pass.
        grads: by path, the marks of tensors whose gradient is read or changed.
    """

    def __init__(self, switch: HookSwitch, eager: Callable[..., Any], reads: dict[str, Mark], grads: dict[str, Mark]) -> None:
        self.switch = switch
        self.eager = torch.compiler.disable(eager)
        self.reads = [(steps_of(path), mark.tensor, mark.replayed) for path, mark in reads.items()]
        self.grads = [(steps_of(path), mark.tensor, mark.probe, mark.changes, mark.replayed) for path, mark in grads.items()]
        # Keep the marks alive: a graph holds only their numbers, and `_MARKS` only weak references.
        self._keep = (reads, grads)


class _TracedPreHook(_TracedHook):
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.switch.traced:
            return None
        if not torch.compiler.is_compiling():
            return self.eager(module, args, kwargs)
        given: Any = (args, kwargs)
        for steps, mark, probe, changes, replayed in self.grads:
            replayed = replayed if self.switch.replays else None
            given = _with_nodes(given, part_at(Arguments(*given), steps) if steps else given, mark, probe, changes, replayed)
        for steps, mark, replayed in self.reads:
            replayed = replayed if self.switch.replays else None
            _read_all(part_at(Arguments(args, kwargs), steps) if steps else (args, kwargs), mark, replayed)
        return given if self.grads else None


class _TracedForwardHook(_TracedHook):
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self.switch.traced:
            return None
        if not torch.compiler.is_compiling():
            return self.eager(module, args, kwargs, output)
        for steps, mark, replayed in self.reads:
            _read_all(part_at(output, steps), mark, replayed if self.switch.replays else None)
        for steps, mark, probe, changes, replayed in self.grads:
            replayed = replayed if self.switch.replays else None
            output = _with_nodes(output, part_at(output, steps), mark, probe, changes, replayed)
        return output if self.grads else None


def _is_replayed(tensor: Tensor, replayed: Replayed | None) -> bool:
    return replayed is not None and tensor.dtype in _IN_GRAPHS and tensor.device == replayed.place.device


def _read_all(part: Any, mark: Tensor, replayed: Replayed | None) -> None:
    # Ask while the compiler traces, because torch runs the graph without gradients. The compiler makes one graph for each
    # answer.
    operations = torch.ops.lightning_hooks
    read = operations.read if torch.is_grad_enabled() else operations.read_without_gradients
    done: list[Tensor] = []
    for tensor in tensors_in(part):
        # The same tensor object may occur twice in a part. Read it once.
        if is_measured(tensor) and not any(tensor is one for one in done):
            done.append(tensor)
            if replayed is not None and torch.is_grad_enabled() and _is_replayed(tensor, replayed):
                operations.measure(tensor.detach(), replayed.place, replayed.magnitudes)
            else:
                read(tensor.detach(), mark)


def _with_nodes(tree: Any, part: Any, mark: Tensor, probe: Tensor, changes: bool, replayed: Replayed | None) -> Any:
    """The tree with each tensor of the part behind a node of its own."""
    tensors = list(tensors_in(part))
    done: list[tuple[Tensor, Tensor]] = []

    def through(tensor: Tensor) -> Tensor:
        if not is_measured(tensor) or not tensor.requires_grad or not any(tensor is one for one in tensors):
            return tensor
        # The same tensor object may occur twice in the tree. Replace it by the same node both times.
        for old, new in done:
            if old is tensor:
                return new
        if replayed is not None and _is_replayed(tensor, replayed):
            result: Tensor = GradientInGraph.apply(tensor, replayed.probe, replayed.place, replayed.magnitudes)  # type: ignore[no-untyped-call]
        else:
            result = GradientOf.apply(tensor, probe, mark, changes)  # type: ignore[no-untyped-call]
        done.append((tensor, result))
        return result

    return map_tensors(through, tree)
