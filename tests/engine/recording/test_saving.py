"""What is kept for a replay is read back as it was, and what cannot be kept is named."""

from __future__ import annotations

import collections
import copy
import json
import random
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.engine.recording.saving import (
    load_batch,
    load_generators,
    load_optimizers,
    load_weights,
    save_batch,
    save_generators,
    save_optimizers,
    save_weights,
)
from lightning_hooks.errors import RuleError
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.untrusted import UnreadableError

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Sample:
    image: Tensor
    label: int = 3
    names: list[str] = field(default_factory=list)


SHARED = torch.arange(6.0).reshape(2, 3)
BATCHES: dict[str, Any] = {
    "tensor": torch.tensor([1.0, float("nan"), float("-inf")]),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 4),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j, 3 - 4j]),
    "view": SHARED.T,
    "shared": (SHARED, SHARED[0], SHARED),
    "nested": {"x": [torch.ones(2), (1, 2.5, None, True)], 7: "seven", ("a", 1): torch.zeros(1)},
    "same names": {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}},
    "namedtuple": Pair(torch.ones(1), [Pair(1, 2)]),
    "dataclass": Sample(torch.ones(2), names=["a"]),
    "ordered": collections.OrderedDict(x=torch.ones(1)),
    "array": {"x": np.arange(3, dtype=np.int64), "y": np.float32(0.5)},
    "floats": [float("inf"), float("-inf"), 0.1, -0.0],
    "packed": nn.utils.rnn.pack_sequence([torch.ones(2), torch.zeros(1)]),
    "others": (b"\x00\xff", torch.float16, torch.device("cpu"), {1, 2}),
}


def assert_same(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, Tensor):
        assert first.dtype is second.dtype and first.shape == second.shape
        assert first.requires_grad is second.requires_grad
        assert torch.equal(torch.nan_to_num(first.detach()), torch.nan_to_num(second.detach()))
        assert torch.equal(first.detach().isnan(), second.detach().isnan())
    elif isinstance(first, np.ndarray):
        assert first.dtype == second.dtype and np.array_equal(first, second)
    elif isinstance(first, dict):
        assert list(first) == list(second)
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    elif isinstance(first, Sample):
        assert_same(vars(first), vars(second))
    else:
        assert first == second


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    saved = save_batch(BATCHES[name], tmp_path)
    assert saved == ("batch.json", ())
    batch = BATCHES[name]
    expected = {**batch, "y": 0.5} if name == "array" else batch
    loaded = load_batch(tmp_path, saved.file, {f"{__name__}.Pair": Pair, f"{__name__}.Sample": Sample})
    assert_same(loaded.value, expected)
    assert loaded.notes == loaded.replaced == ()
    assert not list(tmp_path.glob("*.tmp"))


def test_a_gradient_flag_is_kept(tmp_path: Path) -> None:
    save_batch(torch.ones(2, requires_grad=True), tmp_path)
    assert load_batch(tmp_path).value.requires_grad


def test_a_sparse_tensor_is_kept(tmp_path: Path) -> None:
    save_batch(torch.eye(3).to_sparse(), tmp_path)
    assert torch.equal(load_batch(tmp_path).value.to_dense(), torch.eye(3))


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    saved = save_batch({"x": torch.ones(1), "image": object(), "deep": [torch.ones(2, device="meta")]}, tmp_path)
    assert saved.notes == (
        "image is a builtins.object, which cannot be saved",
        "deep.0 is a torch.Tensor, which cannot be saved",
    )
    loaded = load_batch(tmp_path)
    assert loaded.value["image"] is None and torch.equal(loaded.value["x"], torch.ones(1))
    assert loaded.notes[0] == "a builtins.object was not saved; it is None"


class Batch(dict[str, Any]):
    """The batch class of a library."""


def test_a_plain_value_with_the_same_attributes_stands_for_a_class_that_is_not_given(tmp_path: Path) -> None:
    save_batch([Pair(1, torch.ones(1)), Sample(torch.ones(1)), Batch(x=7)], tmp_path)
    loaded = load_batch(tmp_path)
    pair, sample, batch = loaded.value
    assert pair._fields == ("first", "second") and pair.first == 1 and sample.label == 3
    assert batch == {"x": 7} and batch.x == 7 and copy.deepcopy(batch) == batch and type(batch) is not Batch
    with pytest.raises(AttributeError, match="the saved mapping has no 'y'"):
        _ = batch.y
    assert loaded.replaced == (f"{__name__}.Pair", f"{__name__}.Sample", f"{__name__}.Batch")
    given = load_batch(tmp_path, classes={f"{__name__}.Batch": Batch, f"{__name__}.Pair": Batch})
    assert given.replaced == (f"{__name__}.Pair", f"{__name__}.Sample") and type(given.value[2]) is Batch


@pytest.mark.parametrize(
    "value",
    [
        {"dict": [], "type": "imported_by_a_record.Mapping"},
        {"dict": [["filename", "x"]], "type": "shelve.DbfilenameShelf"},
        {"namedtuple": "imported_by_a_record.Pair", "fields": {"a": 1}},
        {"dataclass": "imported_by_a_record.Sample", "fields": {"a": 1}},
    ],
)
def test_no_name_in_a_file_is_imported(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_a_record.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "batch.json").write_text(json.dumps({"format": 1, "tensors": "", "value": value}))
    assert len(load_batch(tmp_path).replaced) == 1
    assert "imported_by_a_record" not in sys.modules


def test_no_file_outside_the_folder_is_read(tmp_path: Path) -> None:
    save_batch(torch.ones(1), tmp_path)
    folder = tmp_path / "flight_record"
    folder.mkdir()
    (folder / "linked.json").symlink_to(tmp_path / "batch.json")
    (folder / "batch.json").write_text('{"format": 1, "tensors": "../batch.safetensors", "value": {"tensor": "batch"}}')
    for file in ("../batch.json", str(tmp_path / "batch.json"), "linked.json", "batch.json"):
        with pytest.raises(UnreadableError, match=f"leads out of the folder {folder} and is not read"):
            load_batch(folder, file)


def model() -> nn.Module:
    torch.manual_seed(0)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    tied[1].weight = tied[0].weight
    tied.register_buffer("mask", torch.full((2,), -float("inf")), persistent=False)
    return tied


def test_weights_and_all_buffers_come_back(tmp_path: Path) -> None:
    first = model()
    first[2].running_mean.fill_(7.0)
    assert save_weights(first, tmp_path) == ("weights.json", ())
    second = model()
    for each in [*second.parameters(), *second.buffers()]:
        each.data.zero_()
    assert load_weights(second, tmp_path) == ()
    assert_same(dict(first.state_dict()), dict(second.state_dict()))
    assert torch.equal(first.mask, second.mask) and second[0].weight is second[1].weight


def test_weights_of_another_module_are_refused_and_missing_names_noted(tmp_path: Path) -> None:
    save_weights(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), tmp_path)
    other = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2), nn.Linear(1, 1, bias=False))
    assert load_weights(other, tmp_path) == ("2.weight is not in weights.json", "0.bias of weights.json is not in the module")
    with pytest.raises(RuleError, match=r"0.weight has the shape \(3, 3\) in weights.json and \(4, 4\) in the module"):
        load_weights(nn.Sequential(nn.Linear(4, 4)), tmp_path)


def test_optimizers_come_back(tmp_path: Path) -> None:
    first = model()
    optimizer = torch.optim.Adam(first.parameters(), lr=0.1, betas=(0.8, 0.9))
    first(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    assert save_optimizers([optimizer], tmp_path) == ("optimizers.json", ())
    (state,) = load_optimizers(tmp_path).value
    assert_same(state, optimizer.state_dict())


def test_generators_draw_the_same_numbers_again(tmp_path: Path) -> None:
    torch.manual_seed(1), random.seed(2), np.random.seed(3)
    np.random.standard_normal()  # leaves a second number in the state
    assert save_generators(tmp_path) == ("generators.json", ())
    kept = Generators()
    drawn = torch.rand(3).tolist(), random.random(), np.random.standard_normal(3).tolist()
    torch.manual_seed(9), random.seed(9), np.random.seed(9)
    load_generators(tmp_path).restore()
    assert drawn == (torch.rand(3).tolist(), random.random(), np.random.standard_normal(3).tolist())
    save_generators(tmp_path, kept)
    load_generators(tmp_path).restore()
    assert drawn[1] == random.random()
    json.loads((tmp_path / "generators.json").read_text())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is not JSON"),
        ("[]", "it is damaged: it must have a format, the name of a file of tensors, and a value"),
        ("[" * 100_000, "nested deeper than 100 levels"),
        ('{"format": 9, "tensors": "", "value": 1}', "has format 9, and this version reads formats up to 1"),
        ('{"format": 1, "tensors": "", "value": {"tensor": "x"}}', "damaged: KeyError: 'x'"),
        ('{"format": 1, "tensors": "", "value": {"wrong": 1}}', "it has a 'wrong'"),
        ('{"format": 1, "tensors": "", "value": [1]}', "it has a 'list without a kind'"),
        ('{"format": 1, "tensors": "", "value": {"dtype": "load"}}', "'load' is not a dtype"),
        ('{"format": 1, "tensors": "", "value": {"set": [{"list": []}]}}', "damaged: TypeError: unhashable type"),
        ('{"format": 1, "tensors": "none.safetensors", "value": 1}', "none.safetensors does not exist"),
    ],
)
def test_a_damaged_file_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "batch.json").write_text(content)
    with pytest.raises(RuleError, match=message) as raised:
        load_batch(tmp_path)
    assert str(tmp_path / "batch.json") in str(raised.value)
    with pytest.raises(UnreadableError, match="missing.json does not exist"):
        load_batch(tmp_path, "missing.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("torch", b"short"),
        ("torch", 5),
        ("python", (3, (1,), None)),
        ("numpy", ("MT19937", [0] * 624, 10**6, 0, 0.0)),
        ("numpy", {"bit_generator": "Philox", "state": {}, "buffer_pos": -1}),
    ],
)
def test_a_damaged_state_of_a_generator_is_refused_and_sets_none(key: str, value: Any, tmp_path: Path) -> None:
    save_generators(tmp_path)
    states = load_batch(tmp_path, "generators.json").value
    save_batch({**states, key: value}, tmp_path)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(UnreadableError, match="batch.json is damaged: no generator has this state"):
        load_generators(tmp_path, "batch.json")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


@pytest.mark.parametrize("value", [[1], {"weight": 1}, {"weight": torch.eye(2).to_sparse()}, {1: torch.ones(1)}])
def test_weights_and_optimizers_of_another_kind_are_refused(value: Any, tmp_path: Path) -> None:
    save_batch(value, tmp_path)
    with pytest.raises(UnreadableError, match="batch.json is damaged: it must hold dense tensors by their names"):
        load_weights(nn.Linear(1, 1), tmp_path, "batch.json")
    with pytest.raises(UnreadableError, match="batch.json is damaged: it must hold a list of the states of optimizers"):
        load_optimizers(tmp_path, "batch.json")


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        save_batch(torch.ones(1), tmp_path)
    assert list(tmp_path.iterdir()) == []
