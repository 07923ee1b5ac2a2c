"""A container gets back its entries and their order, and is written only if they have changed."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest

from lightning_hooks.snapshot.contents import contents_of, put_contents


class Computing(dict):
    """A dictionary that counts who reads it, and refuses to be emptied, as outputs of some libraries do."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()

    keys = values = __iter__ = items

    def clear(self) -> None:
        raise TypeError("an output is never emptied")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("an output is never changed")


@pytest.mark.parametrize(
    "holder",
    [{"a": 1, "b": 2}, OrderedDict(a=1, b=2), [1, 2], deque([1, 2], maxlen=2), {1, 2}],
    ids=["dict", "OrderedDict", "list", "deque", "set"],
)
def test_a_container_is_emptied_and_gets_its_contents_back(holder: Any) -> None:
    before, contents = repr(holder), contents_of(holder) or []
    holder.clear()
    put_contents(holder, contents)
    assert repr(holder) == before
    put_contents(holder, contents)
    assert repr(holder) == before


def test_keys_come_back_in_their_order() -> None:
    hooks = OrderedDict(a=1, b=2)
    contents = contents_of(hooks) or []
    hooks.move_to_end("a")
    hooks["c"] = 3
    put_contents(hooks, contents)
    assert list(hooks.items()) == [("a", 1), ("b", 2)]


def test_no_method_of_a_class_of_the_users_own_is_called() -> None:
    output = Computing(logits=1)
    contents = contents_of(output) or []
    dict.__setitem__(output, "logits", 2)
    dict.__setitem__(output, "loss", 3)
    put_contents(output, contents)
    assert output.reads == 0 and dict(dict.items(output)) == {"logits": 1}


def test_tuples_have_contents_and_plain_values_have_none() -> None:
    assert contents_of((1, 2)) == [1, 2] and contents_of("ab") is None and contents_of(3) is None
    put_contents((1, 2), [1, 2])
