"""Put a training back as it was after its step was run again: bit for bit, with the same objects."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.contents import saved_content
from lightning_hooks.private import private
from lightning_hooks.tensor_kinds import version_of

_OF_MODULES: Final = frozenset(vars(nn.Module()))


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
    containers or tensors (as metrics and lists of outputs are), generators of torch, CUDA, Python and NumPy, the scaler, and
    the objects in `extra`. Parameters and the state of optimizers are copied only with `updates`.

    Args:
        model: its modules are restored.
        optimizers: their state and the values of their groups are restored with `updates`.
        scaler: a `GradScaler`; None if there is none.
        extra: objects with `state_dict` and `load_state_dict`.
        updates: whether the block updates parameters. It needs a copy of them and of the optimizers' state.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> with restored(model):
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> model.weight.grad is None
        True
    """
    with ExitStack() as stack:
        stack.enter_context(preserved_versions([*model.buffers(), *(model.parameters() if updates else ())]))
        # What is entered last is restored first: generators come last, since nothing else may draw numbers after them.
        stack.callback(Generators().restore)
        for holder in ([] if scaler is None else [scaler], extra):
            for each in holder:
                stack.callback(_saved_state(each))
        if updates:
            for optimizer in optimizers:
                stack.callback(_saved_optimizer(optimizer))
            stack.callback(saved_tensors([each.data for each in model.parameters()], always=True))
        stack.callback(saved_tensors(list(model.buffers())))
        for module in model.modules():
            stack.callback(_saved_module(module))
        stack.callback(_saved_gradients(list(model.parameters())))
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


class Generators:
    """The states of the generators of torch, of each CUDA device in use, of Python and of NumPy, as they are now."""

    def __init__(self) -> None:
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self.python = random.getstate()
        self.numpy: Any = np.random.get_state(legacy=True)

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


def _saved_gradients(parameters: Sequence[nn.Parameter]) -> Callable[[], None]:
    gradients = [(each, each.grad, each.requires_grad) for each in parameters]
    for parameter in parameters:
        parameter.grad = None

    def restore() -> None:
        for parameter, gradient, requires_grad in gradients:
            parameter.grad = gradient
            if parameter.requires_grad is not requires_grad:
                parameter.requires_grad_(requires_grad)

    return restore


def saved_tensors(tensors: Sequence[Tensor], *, always: bool = False) -> Callable[[], None]:
    """Restore the elements of tensors.

    Args:
        always: write also the tensors whose version counters say that they were not changed.
    """
    copies = [(each, version_of(each), each.detach().clone()) for each in tensors]

    def restore() -> None:
        with torch.no_grad():
            for tensor, version, values in copies:
                # The statistics of a batch norm are changed without a new version: compare them, too.
                if always or version_of(tensor) != version or not _are_same(tensor, values):
                    tensor.copy_(values)

    return restore


def _are_same(tensor: Tensor, values: Tensor) -> bool:
    return tensor.shape == values.shape and bool(((tensor == values) | (tensor.isnan() & values.isnan())).all())


def _saved_module(module: nn.Module) -> Callable[[], None]:
    """Restore the training flag, the objects of parameters and buffers, and plain attributes of a module, not its children."""
    parameters = module.named_parameters(recurse=False, remove_duplicate=False)
    registered: list[tuple[str, Tensor]] = [*parameters, *module.named_buffers(recurse=False, remove_duplicate=False)]
    attributes = {name: value for name, value in vars(module).items() if name not in _OF_MODULES}
    contents = [saved_content(value, saved_tensors) for value in attributes.values()]
    is_training = module.training

    def restore() -> None:
        module.training = is_training
        for name, tensor in registered:
            if getattr(module, name, None) is not tensor:
                setattr(module, name, tensor)
        current = vars(module)
        for name in [name for name in current if name not in _OF_MODULES and name not in attributes]:
            del current[name]
        current.update((name, value) for name, value in attributes.items() if current.get(name, restore) is not value)
        for each in contents:
            each()

    return restore


def _saved_state(holder: Any) -> Callable[[], None]:
    state = copy.deepcopy(holder.state_dict())

    def restore() -> None:
        if holder.state_dict() != state:
            holder.load_state_dict(state)

    return restore


def _saved_optimizer(optimizer: Optimizer) -> Callable[[], None]:
    """Restore the state and the groups of an optimizer, with the same tensors."""
    states = {param: dict(state) for param, state in optimizer.state.items()}
    tensors = [each for state in states.values() for each in state.values() if isinstance(each, Tensor)]
    others = {
        param: {key: copy.deepcopy(each) for key, each in state.items() if not isinstance(each, Tensor)}
        for param, state in states.items()
    }
    groups = [
        {name: each.clone() if isinstance(each, Tensor) else each for name, each in group.items()}
        for group in optimizer.param_groups
    ]
    restore_tensors = saved_tensors(tensors, always=True)

    def restore() -> None:
        optimizer.state.clear()
        for param, state in states.items():
            optimizer.state[param] = {**state, **others[param]}
        restore_tensors()
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)

    return restore
