"""Batches that were changed in place since they were kept."""

from __future__ import annotations

import gc
import weakref

import torch

from lightning_hooks.engine.recording.batches import BatchReferences


def test_a_tensor_that_was_changed_in_place_is_named() -> None:
    references, batch = BatchReferences(), {"x": torch.ones(2), "y": torch.ones(2)}
    references.keep(batch, 4, step=2)
    kept = references.last_of(step=2)
    assert kept is not None and kept.changed() == []
    batch["y"][0] = 7.0
    assert kept.changed() == ["batch['y']"] and kept.batch_idx == 4
    batch["z"] = torch.ones(1)
    assert kept.changed() == ["batch"]


def test_the_last_two_batches_are_kept_and_no_other() -> None:
    references, batches = BatchReferences(), [torch.ones(1) for _ in range(3)]
    watched = [weakref.ref(each) for each in batches]
    for i, each in enumerate(batches):
        references.keep(each, i, step=i // 2)
    assert [kept.batch_idx for kept in references.kept] == [1, 2]
    assert [references.last_of(step) is not None for step in (0, 1, 2)] == [True, True, False]
    del each, batches
    gc.collect()
    assert [ref() is None for ref in watched] == [True, False, False]
    references.close()
    assert references.kept == () and all(ref() is None for ref in watched)
