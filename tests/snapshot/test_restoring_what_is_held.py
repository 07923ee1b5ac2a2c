"""Whatever a model holds is as before after a step, or the step ends before it changes what cannot be restored."""

from __future__ import annotations

import array
import io
import itertools
import queue
import warnings
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks.snapshot.lending import UntouchableError
from lightning_hooks.snapshot.snapshot import Snapshot


@dataclass(slots=True)
class Slots:
    n: int = 0

    def use(self) -> int:
        self.n += 1
        return self.n


class OnClass:
    n, seen, numbers = 0, [], itertools.count(5)

    def use(self) -> Any:
        type(self).n += 1
        type(self).added = 1
        self.seen.append(self.n)
        return self.n, len(self.seen), next(self.numbers)


class InDefault:
    def use(self, seen: list[int] = []) -> int:  # noqa: B006 - a mutable default is what is tested
        seen.append(1)
        return len(seen)


def closure() -> Any:
    count = 0

    def use() -> int:
        nonlocal count
        count += 1
        return count

    return use


def written(value: Any, content: Any) -> Any:
    value.write(content)
    return value.getvalue()


def grown(value: Any) -> Any:
    value.append(7)
    return len(value), value[-1]


def of_mapping() -> Any:
    numbers = itertools.count()
    return defaultdict(numbers.__next__)


def of_partial() -> Any:
    return partial(next, itertools.count())


def of_objects() -> Any:
    made = np.empty(1, dtype=object)
    made[0] = [1]
    return made


RESTORED: dict[str, tuple[Any, Any]] = {
    "slots": (Slots, lambda held: held.use()),
    "class": (OnClass, lambda held: held.use()),
    "default": (InDefault, lambda held: held.use()),
    "closure": (closure, lambda held: held()),
    "bytearray": (lambda: bytearray(b"a"), grown),
    "array": (lambda: array.array("d", [float("nan")]), grown),
    "StringIO": (io.StringIO, lambda held: written(held, "a")),
    "BytesIO": (io.BytesIO, lambda held: written(held, b"a")),
    "count": (itertools.count, next),
    "list": (lambda: iter([1, 2, 3]), next),
    "last item": (lambda: iter([1]), lambda held: next(held, None)),
    "range": (lambda: iter(range(9)), next),
    "dict": (lambda: iter({1: 2, 3: 4}), next),
    "cycle": (lambda: itertools.cycle([1, 2]), next),
    "nested": (lambda: zip(itertools.count(), iter("abc"), strict=False), next),
    "chain": (lambda: itertools.chain([1], [2], [3]), lambda held: (next(held), next(held))),
    "in a tuple": (lambda: (1, (itertools.count(),)), lambda held: next(held[1][0])),
    "method": (lambda: itertools.count().__next__, lambda held: held()),
    "partial": (of_partial, lambda held: held()),
    "default factory": (of_mapping, lambda held: held["new"]),
    "bits": (lambda: np.random.PCG64(0), lambda held: int(held.random_raw())),
    "objects": (of_objects, lambda held: held[0].append(2) or len(held[0])),
}


@pytest.mark.parametrize("name", RESTORED)
def test_a_step_on_what_is_lent_leaves_what_is_held(name: str) -> None:
    make, use = RESTORED[name]
    model = nn.Module()
    model.held = held = make()
    snapshot = Snapshot([model])
    assert not snapshot.unrestorable
    uses = []
    for _ in range(2):
        snapshot.lend()
        uses.append(use(model.held))
        snapshot.restore()
        assert model.held is held
    assert use(held) == uses[0] == uses[1]
    snapshot.restore()


def test_two_names_of_one_iterator_stay_one_and_no_warning_is_given() -> None:
    model = nn.Module()
    model.first = model.second = itertools.count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snapshot = Snapshot([model])
        snapshot.lend()
    assert model.first is model.second and (next(model.first), next(model.second)) == (0, 1)
    snapshot.restore()
    assert model.first is model.second and next(model.first) == 0


@pytest.mark.parametrize(
    ("make", "kind"),
    [(lambda: (each for each in range(3)), "generator"), (queue.Queue, "Queue"), (lambda: map(int, (c for c in "12")), "map")],
)
def test_what_cannot_be_restored_is_named_before_it_is_touched(make: Any, kind: str) -> None:
    model = nn.Sequential(nn.Module())
    model[0].held = {"a": make()}
    snapshot = Snapshot([model])
    snapshot.lend()
    with pytest.raises(UntouchableError, match=r"the step uses model\.0\.held\['a'\]") as raised:
        held = model[0].held["a"]
        held.put(1) if kind == "Queue" else next(held)
    assert "which cannot be restored" in str(raised.value)
    snapshot.restore()
    held = model[0].held["a"]
    assert held.empty() if kind == "Queue" else next(held) in (0, 1)


def test_a_file_that_is_read_gets_its_position_back(tmp_path: Any) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    model = nn.Module()
    with path.open() as file, (tmp_path / "log.txt").open("w") as log:
        model.file, model.log = file, log
        file.readline()
        snapshot = Snapshot([model])
        snapshot.lend()
        model.log.write("a")
        assert model.file.readline() == "two\n"
        snapshot.restore()
        assert file.readline() == "two\n" and not snapshot.unrestorable


def test_a_generator_of_which_nothing_can_stand_in_the_place_is_named() -> None:
    model = nn.Module()
    model.held = frozenset({each for each in [(n for n in "ab")]})
    assert Snapshot([model]).unrestorable == ["model.held[0] (generator)"]


def test_all_else_is_restored_if_one_object_refuses() -> None:
    model = nn.Linear(1, 1)
    model.text, model.calls = io.StringIO(), 0
    snapshot = Snapshot([model])
    model.text.close()
    model.calls, before = 3, model.weight.item()
    nn.init.zeros_(model.weight)
    with pytest.raises(ValueError, match="closed file"):
        snapshot.restore()
    assert model.calls == 0 and model.weight.item() == before


def test_a_compiled_object_is_lent_as_a_copy() -> None:
    pandas = pytest.importorskip("pandas")
    model = nn.Module()
    model.table = table = pandas.DataFrame({"a": [1.0, 2.0]})
    snapshot = Snapshot([model])
    snapshot.lend()
    model.table.loc[0, "a"] = 9.0
    snapshot.restore()
    assert model.table is table and table["a"].tolist() == [1.0, 2.0] and torch.is_grad_enabled()
