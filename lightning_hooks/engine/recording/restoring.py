"""Put a training back as it was after its step was run again: bit for bit, with the same objects."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.source_lines import is_user_code
from lightning_hooks.errors import listed
from lightning_hooks.private import private
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.snapshot.lending import UntouchableError
from lightning_hooks.snapshot.reach import CLOSED, Reach
from lightning_hooks.snapshot.snapshot import Snapshot
from lightning_hooks.tensor_kinds import is_plain, version_of


@contextmanager
def restored(
    model: nn.Module,
    optimizers: Sequence[Optimizer] = (),
    scaler: Any = None,
    extra: Iterable[Any] = (),
    *,
    updates: bool = False,
) -> Iterator[None]:
    """Restore everything that a step changes, when the block ends, also if it raises.

    Inside the block no parameter has a gradient, so a backward pass gives that of its batch alone. What is restored: `.grad`
    (the same tensor, or None), buffers, training flags, `requires_grad`, attributes of modules that are plain values,
    containers or tensors (as metrics and lists of outputs are), hooks, generators of torch, CUDA, Python and NumPy, the
    scaler, and the objects in `extra`. Parameters and the state of optimizers are copied only with `updates`. What cannot be
    restored is lent, as of `Snapshot.lend`.

    Args:
        model: its modules are restored.
        optimizers: their state and the values of their groups are restored with `updates`.
        scaler: a `GradScaler`; None if there is none.
        extra: objects with `state_dict` and `load_state_dict`.
        updates: whether the block updates parameters. It needs a copy of them and of the optimizers' state.

    Raises:
        UntouchableError: the block uses an object that could not be restored, or might use one that cannot be lent.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> with restored(model):
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> model.weight.grad is None
        True
    """
    with ExitStack() as stack:
        stack.enter_context(preserved_versions([*model.buffers(), *(model.parameters() if updates else ())]))
        # The stack calls back in reverse order: the generators are registered first and restored last, because restoring
        # something else may draw numbers.
        stack.callback(Generators().restore)
        for holder in (*([] if scaler is None else [scaler]), *extra):
            stack.callback(_saved_state(holder))
        # Pass parameters and buffers as roots of their own: of each root, the snapshot keeps only the first 10,000 values.
        registered = [*model.parameters(), *model.buffers()]
        snapshots = [Snapshot([*registered, model], _ReachOfStep(model, updates))]
        if updates:
            snapshots.append(Snapshot(optimizers, _ReachOfUpdate()))
        unrestorable = [name for snapshot in snapshots for name in snapshot.unrestorable]
        if unrestorable:
            raise UntouchableError(f"the step may use {listed(unrestorable, 3)}, which cannot be restored")
        for snapshot in snapshots:
            stack.callback(snapshot.restore)
            snapshot.lend()
        for snapshot in snapshots:
            snapshot.clear_gradients()
        yield


def preserved_versions(tensors: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Surrounds writes that end where they began, so that autograd does not take a saved tensor for a changed one.

    A graph that was not differentiated yet has saved buffers, such as the running statistics of a batch norm.
    """

    def find() -> Any:
        autograd: Any = torch.autograd
        preserve = autograd._unsafe_preserve_version_counter
        probe = torch.zeros(1)
        with preserve((probe,)):
            probe.add_(1)
        if version_of(probe) != 0:
            raise AttributeError("it does not preserve the version of a tensor")
        return preserve

    lost = "a backward after a step was run again may refuse buffers that the step wrote"
    preserving: Any = private("torch.autograd._unsafe_preserve_version_counter", find, lambda tensors: nullcontext(), lost)
    context: AbstractContextManager[None] = preserving(tuple(tensors))
    return context


class _ReachOfStep(Reach):
    """What a step changes of a model: tensors without a graph, containers, and objects of classes of the user's own.

    Args:
        model: its modules are kept, and no module that it only refers to.
        updates: whether the step updates parameters.
    """

    depth = math.inf
    values = 10_000
    entries = math.inf

    def __init__(self, model: nn.Module, updates: bool) -> None:
        super().__init__()
        self._modules = set(model.modules())
        self._registered = {id(each) for each in (*model.parameters(), *model.buffers())}
        self._updates = updates

    def opens(self, value: Any) -> bool:
        """Modules of the model, and objects of a class of the user's own."""
        if isinstance(value, nn.Module):
            return value in self._modules
        return _is_users(type(value).__module__)

    def opens_code(self, code: type | FunctionType) -> bool:
        """Classes and functions of the user's own."""
        return _is_users(getattr(code, "__module__", None) or "")

    def keeps(self, value: Tensor | np.ndarray[Any, Any]) -> bool:
        """What the model has registered, and tensors that are changed in place; a tensor of a graph is not."""
        if isinstance(value, np.ndarray):
            return False
        return id(value) in self._registered or (is_plain(value) and not value.requires_grad)

    def copies(self, tensor: Tensor) -> bool:
        """All but parameters, which only an update changes."""
        return self._updates or not isinstance(tensor, nn.Parameter)


def _is_users(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    # Code in a notebook has no file.
    return module == "__main__" if file is None else "-packages" not in file and is_user_code(file)


class _ReachOfUpdate(Reach):
    """Everything that optimizers hold, but the parameters, which are kept with the model, and the hooks of this package."""

    def __init__(self) -> None:
        super().__init__(closed=(*CLOSED, __name__.partition(".")[0]))

    def keeps(self, value: Tensor | np.ndarray[Any, Any]) -> bool:
        """No parameter."""
        return not isinstance(value, nn.Parameter)


def _saved_state(holder: Any) -> Callable[[], None]:
    state = copy.deepcopy(holder.state_dict())

    def restore() -> None:
        if holder.state_dict() != state:
            holder.load_state_dict(state)

    return restore
