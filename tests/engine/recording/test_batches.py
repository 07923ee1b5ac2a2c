"""Batches that were changed in place since they were kept."""

from __future__ import annotations

import gc
import weakref

import torch

from lightning_hooks.engine.recording.batches import BatchReferences


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
