"""Parts of outputs by their paths, and outputs in words."""

from __future__ import annotations

import collections

import torch

from lightning_hooks.hooks.parts import described, part_of
from lightning_hooks.nested.rebuilding import map_tensors
from tests.nested.test_rebuilding import Lazy, ModelOutput


def test_a_mapping_that_is_not_searched_is_described_as_such() -> None:
    assert described(Lazy()) == "a Lazy, a mapping that may compute its items and is therefore not searched"
    assert map_tensors(torch.neg, given := Lazy()) is given


def test_items_are_found_by_their_numbers_in_a_dictionary_of_fields_only() -> None:
    out = ModelOutput(torch.ones(1), torch.ones(2))
    assert [len(part_of(out, f"[{index}]")) for index in (0, 1, -1, 2)] == [1, 2, 2, 0]
    given = collections.defaultdict(list, a=torch.ones(1))
    assert part_of(given, "[0]") == () and list(given) == ["a"]
