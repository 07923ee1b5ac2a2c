"""The codec: any value of the annotated types survives JSON, and damage is an error that names its dotted key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.codec import bare, decode, encode, row, saved_as
from lightning_hooks.errors import RuleError

T = TypeVar("T")


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    name: str
    share: float = 0.5


@row
@dataclass(frozen=True)
class Corner:
    step: int
    names: tuple[str, ...]
    value: float | None = None


@bare
@dataclass
class Steps(Generic[T]):
    at: list[tuple[int, T]] = field(default_factory=list)


@dataclass(frozen=True)
class Inner:
    count: int = field(metadata=saved_as("how many"))
    note: str | None = field(default=None, metadata=saved_as(or_absent=True))


@dataclass
class Outer:
    colour: Colour
    mode: Literal["on", "off", 3]
    flag: bool
    level: Level = Level.LOW
    inner: Inner | None = None
    either: int | str = 0
    pairs: list[Pair] = field(default_factory=list)
    corners: Sequence[Corner] = ()
    span: tuple[int, float] = (0, 1.0)
    by_row: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    by_colour: dict[Colour, float] = field(default_factory=dict)
    folder: Path = Path("logs")
    context: Mapping[str, Any] = field(default_factory=dict)
    steps: Steps[Colour] = field(default_factory=Steps)

    def __post_init__(self) -> None:
        if self.span[0] < 0:
            raise ValueError(f"span must not begin before 0, got {self.span[0]}")


texts, counts = st.text(max_size=4), st.integers(-(2**62), 2**62)
# NaN is not equal to itself, so NaN has a test of its own.
numbers = st.floats(allow_nan=False)
several = st.lists(texts, max_size=3).map(tuple)
plain = st.recursive(st.none() | st.booleans() | counts | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=3)
outers = st.builds(
    Outer,
    st.sampled_from(Colour),
    st.sampled_from(["on", "off", 3]),
    st.booleans(),
    st.sampled_from(Level),
    st.none() | st.builds(Inner, counts, st.none() | texts),
    counts | texts,
    st.lists(st.builds(Pair, texts, numbers), max_size=2),
    st.lists(st.builds(Corner, counts, several, st.none() | numbers), max_size=2).map(tuple),
    st.tuples(st.integers(0, 9), numbers),
    st.dictionaries(counts, several, max_size=2),
    st.dictionaries(st.sampled_from(Colour), numbers, max_size=2),
    st.sampled_from([Path("logs"), Path("a/b")]),
    st.dictionaries(texts, plain, max_size=2),
    st.builds(Steps, st.lists(st.tuples(counts, st.sampled_from(Colour)), max_size=2)),
)


@settings(deadline=None)
@given(outers)
def test_any_value_survives_strict_json(value: Outer) -> None:
    assert decode(Outer, json.loads(json.dumps(encode(value), allow_nan=False)), "outer") == value


def test_the_plain_values_are_as_documented() -> None:
    corner = Corner(3, ("a",), math.nan)
    value = Outer(Colour.RED, "on", True, inner=Inner(2), pairs=[Pair("p", -math.inf)], corners=[corner], by_row={7: ("x",)})
    assert encode(value) == {
        "colour": "red",
        "mode": "on",
        "flag": True,
        "level": 1,
        "inner": {"how many": 2},
        "either": 0,
        "pairs": [["p", "-inf"]],
        "corners": [[3, ["a"], "nan"]],
        "span": [0, 1.0],
        "by_row": {"7": ["x"]},
        "by_colour": {},
        "folder": "logs",
        "context": {},
        "steps": [],
    }
    assert math.isnan(decode(Corner, [3, ["a"], "nan"], "corner").value or 0.0)


def test_numbers_of_numpy_become_those_of_python_and_a_users_object_its_text() -> None:
    found = encode([np.float32(0.5), np.int64(3), np.float64("nan"), type])
    assert found == [0.5, 3, "nan", "<class 'type'>"] and [type(each) for each in found] == [float, int, str, str]


def test_defaults_fill_what_is_missing_and_unknown_keys_are_ignored() -> None:
    old = {"colour": "blue", "mode": "off", "flag": False, "mood": "bad"}
    assert decode(Outer, old, "outer") == Outer(Colour.BLUE, "off", False)
    assert decode(Corner, [3, []], "corner") == Corner(3, ()) and decode(Pair, ["p"], "pair") == Pair("p")


WHOLE = encode(
    Outer(Colour.RED, "on", True, inner=Inner(2), pairs=[Pair("p")], corners=[Corner(1, ("a",))], by_colour={Colour.RED: 0.5})
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "pink"}, "outer.colour must be one of red, blue, got 'pink'"),
        ({"colour": ["red"]}, "outer.colour must be one of red, blue, got ['red']"),
        ({"mode": "dim"}, "outer.mode must be one of on, off, 3, got 'dim'"),
        ({"flag": 1}, "outer.flag must be true or false, got 1"),
        ({"inner": 3}, "outer.inner must be a mapping, got 3"),
        ({"inner": {"count": 2}}, "outer.inner has no 'how many'"),
        ({"inner": {"how many": True}}, "outer.inner.how many must be an integer below 2**63, got True"),
        ({"inner": {"how many": 2**63}}, f"outer.inner.how many must be an integer below 2**63, got {2**63}"),
        ({"either": 0.5}, "outer.either must be a string, got 0.5"),
        ({"pairs": [["p", "much"]]}, "outer.pairs[0].share must be a number, or one of nan, inf, -inf, got 'much'"),
        ({"pairs": [["p", 10**400]]}, "outer.pairs[0].share must be a number, or one of nan, inf, -inf, got 1000"),
        ({"pairs": "p"}, "outer.pairs must be a list, got 'p'"),
        ({"pairs": [[]]}, "outer.pairs[0] has no 'name'"),
        ({"corners": [[1, [2]]]}, "outer.corners[0].names[0] must be a string, got 2"),
        ({"corners": [[1, [], None, 4]]}, "outer.corners[0] must be a list of at most 3 values, got [1, [], None, 4]"),
        ({"span": [1]}, "outer.span must be a list of 2 values, got [1]"),
        ({"span": [-1, 0.0]}, "outer: span must not begin before 0, got -1"),
        ({"by_row": {"x": []}}, "a key of outer.by_row must be an integer below 2**63, got 'x'"),
        ({"by_row": {"1": [None]}}, "outer.by_row['1'][0] must be a string, got None"),
        ({"by_colour": {"pink": 1.0}}, "a key of outer.by_colour must be one of red, blue, got 'pink'"),
        ({"by_colour": {3: 1.0}}, "a key of outer.by_colour must be one of red, blue, got 3"),
        ({"context": {3: 1.0}}, "a key of outer.context must be a string, got 3"),
        ({"steps": [[0, "pink"]]}, "outer.steps[0][1] must be one of red, blue, got 'pink'"),
        ({"folder": 3}, "outer.folder must be a string, got 3"),
    ],
)
def test_damage_is_named_with_its_key_and_what_would_be_right(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError) as caught:
        decode(Outer, WHOLE | change, "outer")
    assert str(caught.value).startswith(message)


def test_a_type_that_the_codec_does_not_know_is_an_error_of_the_programmer() -> None:
    with pytest.raises(TypeError, match="set"):
        decode(set[int], [1], "numbers")
