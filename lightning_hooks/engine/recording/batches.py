"""The tensors of a batch by name, and references to the last batches that tell what was changed in place since."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from lightning_hooks.tensor_kinds import version_of

_DEPTH = 8


class KeptBatch(NamedTuple):
    """One of the last batches, kept by reference for a second run of its step.

    Args:
        batch: the batch itself, not a copy.
        batch_idx: its index, as Lightning gives it.
        versions: the version counters of its tensors when it was kept, in the order of `tensors_of`.
    """

    batch: Any
    batch_idx: int
    versions: tuple[int, ...]

    def changed(self) -> list[str]:
        """The tensors that were changed in place since the batch was kept, by name. If any was, the step cannot run again."""
        named = list(named_tensors(self.batch))
        if len(named) != len(self.versions):
            return ["batch"]
        return [name for (name, each), version in zip(named, self.versions, strict=True) if version_of(each) != version]


class BatchReferences:
    """References to the last batches of a run.

    Call `keep` at the start of each batch, and `close` when the run ends, so that no batch lives longer than the run.

    Args:
        most: the number of batches that are kept.

    Example:
        >>> import torch
        >>> references, batch = BatchReferences(), {"x": torch.ones(2), "y": [torch.zeros(2)]}
        >>> references.keep(batch, 0)
        >>> batch["y"][0].add_(1)
        tensor([1., 1.])
        >>> references.last.changed()
        ["batch['y'][0]"]
    """

    def __init__(self, most: int = 2) -> None:
        self._kept: deque[KeptBatch] = deque(maxlen=most)

    def keep(self, batch: Any, batch_idx: int = 0) -> None:
        """Keep a reference to a batch, and the version counters of its tensors."""
        self._kept.append(KeptBatch(batch, batch_idx, tuple([version_of(each) for each in tensors_of(batch)])))

    @property
    def last(self) -> KeptBatch | None:
        """The batch that was kept last; None if there is none."""
        return self._kept[-1] if self._kept else None

    @property
    def kept(self) -> tuple[KeptBatch, ...]:
        """The batches, the earliest first."""
        return tuple(self._kept)

    def close(self) -> None:
        """Drop all references."""
        self._kept.clear()


def tensors_of(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in the order of `named_tensors`."""
    # Most batches are a tensor, or a tuple or list of tensors: look at these without names.
    if isinstance(batch, Tensor):
        return [batch]
    if type(batch) in (tuple, list):
        for each in batch:
            if not isinstance(each, Tensor):
                break
        else:
            return list(batch)
    return [tensor for _, tensor in named_tensors(batch)]


def named_tensors(batch: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested mappings, sequences, dataclasses and named tuples, each with the expression that gives it.

    Args:
        batch: what a data loader gave.
        name: of the batch.

    Example:
        >>> import torch
        >>> [name for name, _ in named_tensors({"x": torch.ones(2), "y": (1, torch.ones(3))})]
        ["batch['x']", "batch['y'][1]"]
    """
    return _named(batch, name, _DEPTH)


def _named(value: Any, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif depth and not isinstance(value, (str, bytes)):
        for inner_name, inner in _inner(value):
            yield from _named(inner, name + inner_name, depth - 1)


def _inner(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{field}", getattr(value, field)) for field in value._fields)
    elif isinstance(value, (tuple, list)):
        yield from ((f"[{i}]", each) for i, each in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value))
    elif hasattr(value, "__dict__") and not callable(value):
        # Batches of graph libraries hold their tensors in attributes.
        yield from ((f".{key}", each) for key, each in vars(value).items() if isinstance(each, (Tensor, Mapping, list, tuple)))
