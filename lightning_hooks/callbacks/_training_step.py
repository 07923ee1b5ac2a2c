"""A training step that this package runs itself: called as Lightning calls it, and without anything being logged."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from torch import Tensor

_LOGGING: Final = ("log", "log_dict", "print")


def takes_iterator(module: Any) -> bool:
    """Whether the training step takes its batches from the loader itself."""
    return "dataloader_iter" in inspect.signature(module.training_step).parameters


def call_training_step(module: Any, batch: Any, batch_idx: int) -> Any:
    """Call the training step of a module, with the number of the batch if it takes one, as Lightning decides."""
    parameters = inspect.signature(module.training_step).parameters
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    takes_index = takes_any or "batch_idx" in parameters or len(parameters) > 1
    return module.training_step(batch, batch_idx) if takes_index else module.training_step(batch)


def loss_of(output: Any) -> Any:
    """The loss in the output of a training step, of any type; None if there is none."""
    return output.get("loss") if isinstance(output, Mapping) else output


def tensor_loss_of(output: Any) -> Tensor | None:
    """The loss in the output of a training step if it is a tensor."""
    loss = loss_of(output)
    return loss if isinstance(loss, Tensor) else None


@contextmanager
def unlogged(module: Any) -> Iterator[None]:
    """In the block, `self.log`, `self.log_dict` and `self.print` of a module do nothing."""
    with ExitStack() as stack:
        for name in _LOGGING:
            stack.enter_context(patch.object(module, name, ignore))
        yield


def ignore(*args: Any, **kwargs: Any) -> None:
    """Take the place of a method that must do nothing."""
