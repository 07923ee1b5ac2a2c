"""Batches that were changed in place since they were kept, and how many are kept."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor

from lightning_hooks.engine.recording.batches import MOST_TENSORS, BatchReferences


def test_a_tensor_that_was_changed_in_place_is_named() -> None:
    references, batch = BatchReferences(), {"x": torch.ones(2), "y": torch.ones(2)}
    references.keep(batch, 4, step=2)
    kept = references.of(2, 0)
    assert kept is not None and kept.changed() == []
    batch["y"][0] = 7.0
    assert kept.changed() == ["batch['y']"] and kept.batch_idx == 4
    batch["z"] = torch.ones(1)
    assert kept.changed() == ["batch"]


def _keep(references: BatchReferences, updates: tuple[int, ...], batches: list[Tensor]) -> None:
    """Keep batches two to a step, with an update before some of them."""
    for i, each in enumerate(batches):
        references.keep(each, i, step=i // 2, micro_batch=i % 2, after_update=i in updates)


def test_the_batches_since_the_last_update_are_kept_and_one_before() -> None:
    references, batches = BatchReferences(), [torch.ones(1) for _ in range(6)]
    watched = [weakref.ref(each) for each in batches]
    _keep(references, (0, 3), batches)
    assert [kept.batch_idx for kept in references.since_update] == [3, 4, 5] and references.dropped == 0
    assert [references.of(i // 2, i % 2) is not None for i in range(6)] == [False, False, True, True, True, True]
    del batches
    gc.collect()
    assert [ref() is None for ref in watched] == [True, True, False, False, False, False]
    references.close()
    assert references.since_update == () and all(ref() is None for ref in watched)


def test_the_earliest_are_dropped_if_they_are_too_large() -> None:
    references = BatchReferences(most_bytes=8 * 4)
    _keep(references, (0,), [torch.ones(4) for _ in range(6)])
    assert [kept.batch_idx for kept in references.since_update] == [3, 4, 5] and references.dropped == 3
    references.keep(torch.ones(1000), 6, step=3)
    assert [kept.batch_idx for kept in references.since_update] == [6]
    references = BatchReferences(most_bytes=0)
    _keep(references, (0, 2), [torch.ones(4) for _ in range(4)])
    assert [kept.batch_idx for kept in references.since_update] == [3] and references.of(0, 1) is not None


def test_small_batches_are_bounded_too() -> None:
    references = BatchReferences()
    for i in range(MOST_TENSORS + 10):
        references.keep("text", i, step=0, micro_batch=i, after_update=i == 0)
    assert len(references.since_update) == MOST_TENSORS + 1
