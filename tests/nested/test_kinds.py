"""Which kinds of batches are known, and that everybody finds the same tensors in them: recorder, checks, snapshot, hooks."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_hooks.checks.batch import changed_copy, copied
from lightning_hooks.engine.recording.batches import BatchReferences
from lightning_hooks.engine.recording.saving import load_batch, save_batch
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks.eager import measured_in
from lightning_hooks.nested.tensors import named_tensors, tensors_of
from lightning_hooks.snapshot.snapshot import Snapshot
from tests.nested.kinds import CLASSES, KINDS, Data, Instances, one, packed


class Holder:
    """An object that a training step may change."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch


def names_of(batch: Any) -> list[str]:
    return [name for name, _ in named_tensors(batch)]


def numbers_of(batch: Any) -> list[list[float]]:
    return [tensor.tolist() for tensor in tensors_of(batch)]


def saved_and_loaded(batch: Any, classes: dict[str, type]) -> Any:
    with TemporaryDirectory() as folder:
        save_batch(batch, Path(folder))
        return load_batch(Path(folder), classes=classes).value


def assert_alike(batch: Any, *, in_calls: bool) -> None:
    """Everybody finds the tensors of a batch, and those who copy it give them other tensors of the same names and numbers."""
    tensors = tensors_of(batch)
    assert len(names_of(batch)) == len(set(names_of(batch))) == len(tensors)
    loaded = saved_and_loaded(batch, CLASSES)
    assert type(copied(batch)) is type(batch) and (type(loaded) is type(batch) or type(batch) not in CLASSES.values())
    for copy in (copied(batch), loaded):
        assert names_of(copy) == names_of(batch) and numbers_of(copy) == numbers_of(batch)
        assert not {id(tensor) for tensor in tensors_of(copy)} & {id(tensor) for tensor in tensors}
    snapshot, numbers = Snapshot([Holder(batch)]), numbers_of(batch)
    with torch.no_grad():
        for tensor in tensors:
            tensor.add_(1)
    snapshot.restore()
    assert numbers_of(batch) == numbers
    found = measured_in(batch)
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in tensors if in_calls]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tensors_of_every_kind_have_a_name_and_everybody_finds_them(kind: str) -> None:
    batch = KINDS[kind].make(one())
    assert names_of(batch) == [f"batch{KINDS[kind].name}"]
    assert_alike(batch, in_calls=KINDS[kind].in_calls)


def wrapped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    kinds = st.sampled_from([kind.make for kind in KINDS.values() if kind.in_calls])
    return st.builds(lambda make, values: make(values), kinds, st.one_of(inner, st.lists(inner, max_size=2)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.recursive(st.one_of(st.builds(one), st.just("text"), st.none()), wrapped, max_leaves=6))
def test_everybody_finds_the_same_tensors_in_any_nest(batch: Any) -> None:
    assert_alike(batch, in_calls=True)


def test_a_packed_sequence_is_a_named_tuple_of_its_tensors() -> None:
    assert names_of(packed()) == ["batch.data", "batch.batch_sizes"]
    for copy in (copied(packed()), saved_and_loaded(packed(), {})):
        assert type(copy) is type(packed()) and numbers_of(copy) == numbers_of(packed())


@pytest.mark.parametrize(
    "value", [3, "text", b"bytes", None, object(), nn.Linear(1, 1), torch.relu, {1, 2}, Path("a"), Instances(3), Tensor]
)
def test_what_holds_no_tensors_of_a_batch_has_none(value: Any) -> None:
    assert tensors_of(value) == []
    assert tensors_of([value, one()])[0].shape == (2,)


def test_an_object_in_an_attribute_of_an_object_is_no_part_of_the_batch(tmp_path: Path) -> None:
    batch = Instances([Instances(one())], dataset=Instances(torch.zeros(9)))
    assert names_of(batch) == ["batch.boxes[0].boxes"]
    assert names_of(copied(batch)) == ["batch.boxes[0].boxes"]
    saved = save_batch(batch, tmp_path)
    assert saved.notes == ("batch.dataset is a tests.nested.kinds.Instances, which is no part of the batch and is not saved",)
    assert names_of(load_batch(tmp_path).value) == ["batch.boxes[0].boxes"]


def test_the_copy_of_a_graph_knows_itself_and_keeps_its_other_items() -> None:
    batch = Data(x=one(), edges=[torch.zeros(1)], name="a")
    new = changed_copy(batch, lambda name, tensor: tensor + 1 if name.endswith("['x']") else tensor)
    assert (new.x.tolist(), new.edges[0].tolist(), new.name) == ([2, 2], [0], "a")
    assert new._store._parent() is new and batch.x.tolist() == [1, 1]


def test_a_plain_value_with_the_items_of_a_graph_stands_for_its_class() -> None:
    batch = saved_and_loaded([Data(x=one(), name="a")], {})[0]
    assert (batch.x.tolist(), batch["name"], hasattr(batch, "y")) == ([1, 1], "a", False)
    with pytest.raises(KeyError, match="y"):
        batch["y"]


class Unique(Instances):
    """An object that cannot be copied."""

    def __copy__(self) -> Any:
        raise TypeError("there is only one")


def test_an_object_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(UnsupportedError) as raised:
        copied({"boxes": [Unique(one())]})
    assert str(raised.value) == (
        "batch['boxes'][0], a Unique, holds tensors and cannot be copied (TypeError: there is only one); give it a __copy__"
    )
    assert copied([unique := Unique(3)])[0] is not None and names_of([unique]) == []


class Finalized(Instances):
    """An object that runs code when it is dropped."""

    def __del__(self) -> None:
        raise AssertionError("a record has chosen the attributes")


def test_a_record_fills_no_object_that_runs_code_when_it_is_dropped(tmp_path: Path) -> None:
    path = f"{__name__}.Finalized"
    value = {"object": path, "fields": {"name": "/etc"}}
    (tmp_path / "batch.json").write_text(json.dumps({"format": 1, "tensors": "", "value": value}))
    loaded = load_batch(tmp_path, classes={path: Finalized})
    assert loaded.replaced == (path,) and loaded.value.name == "/etc"


def test_a_tensor_of_an_object_that_was_changed_in_place_is_named() -> None:
    references, batch = BatchReferences(), Data(x=one())
    references.keep(batch, 0, step=3)
    batch.x.zero_()
    kept = references.of(step=3, micro_batch=0)
    assert kept is not None and kept.changed() == ["batch._store._mapping['x']"]


def test_a_batch_that_holds_itself_is_searched_once_and_its_copy_holds_itself() -> None:
    batch: dict[str, Any] = {"x": one()}
    batch["graph"] = Instances([batch])
    assert names_of(batch) == ["batch['x']"]
    new = copied(batch)
    assert new["graph"].boxes[0] is new and new["x"] is not batch["x"]
    with TemporaryDirectory() as folder:
        saved = save_batch(batch, Path(folder))
    assert saved.notes == ("graph.boxes.0 is a builtins.dict, which holds itself there and cannot be saved",)
