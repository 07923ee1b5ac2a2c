"""Tensors of a batch by name, and batches that were changed in place since they were kept."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.engine.recording.batches import BatchReferences, named_tensors, tensors_of

Pair = namedtuple("Pair", "first second")


@dataclass
class Sample:
    image: Tensor
    label: Any


class Graph:
    def __init__(self) -> None:
        self.nodes, self.edges, self.name = torch.ones(1), [torch.ones(1)], "graph"


ONE = torch.ones(1)
BATCHES: dict[str, tuple[Any, list[str]]] = {
    "tensor": (ONE, ["batch"]),
    "tuple": ((ONE, ONE), ["batch[0]", "batch[1]"]),
    "mixed": ([ONE, "text", 3, [ONE]], ["batch[0]", "batch[3][0]"]),
    "mapping": ({"x": ONE, 1: (ONE,)}, ["batch['x']", "batch[1][0]"]),
    "named tuple": (Pair(ONE, {"y": ONE}), ["batch.first", "batch.second['y']"]),
    "dataclass": (Sample(ONE, [ONE]), ["batch.image", "batch.label[0]"]),
    "attributes": (Graph(), ["batch.nodes", "batch.edges[0]"]),
    "none": (None, []),
}


@pytest.mark.parametrize("name", BATCHES)
def test_tensors_are_named_by_the_expression_that_gives_them(name: str) -> None:
    batch, names = BATCHES[name]
    assert [each for each, _ in named_tensors(batch)] == names
    assert len(tensors_of(batch)) == len(names)


def test_a_batch_that_holds_itself_ends() -> None:
    batch: list[Any] = [torch.ones(1)]
    batch.append(batch)
    assert len(tensors_of(batch)) == 8


def test_a_tensor_that_was_changed_in_place_is_named() -> None:
    references, batch = BatchReferences(), {"x": torch.ones(2), "y": torch.ones(2)}
    references.keep(batch, 4)
    assert references.last is not None and references.last.changed() == []
    batch["y"][0] = 7.0
    assert references.last.changed() == ["batch['y']"] and references.last.batch_idx == 4
    batch["z"] = torch.ones(1)
    assert references.last.changed() == ["batch"]


def test_the_last_two_batches_are_kept_and_no_other() -> None:
    references, batches = BatchReferences(), [torch.ones(1) for _ in range(3)]
    watched = [weakref.ref(each) for each in batches]
    for i, each in enumerate(batches):
        references.keep(each, i)
    assert [kept.batch_idx for kept in references.kept] == [1, 2]
    del each, batches
    gc.collect()
    assert [ref() is None for ref in watched] == [True, False, False]
    references.close()
    assert references.last is None and all(ref() is None for ref in watched)
