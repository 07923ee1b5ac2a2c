from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from lightning_hooks.checks.batch import Samples, changed_copy, copied, first_samples, samples_of

Pair = namedtuple("Pair", "x y")


@dataclass
class Item:
    x: torch.Tensor
    name: str


NESTED = {"pair": Pair(torch.ones(2, 3), [torch.zeros(2)]), "item": Item(torch.ones(2), "a"), "text": "words"}


def test_a_copy_has_the_same_types_and_other_tensors():
    copy = copied(NESTED)
    assert type(copy["pair"]) is Pair and type(copy["item"]) is Item and copy["text"] == "words"
    copy["pair"].x.zero_()
    copy["item"].x.zero_()
    assert NESTED["pair"].x.all() and NESTED["item"].x.all()
    wrapped = UserDict({"x": torch.ones(1)})
    assert type(copied(wrapped)) is UserDict and copied(wrapped)["x"] is not wrapped["x"]
    assert changed_copy((1, torch.ones(1)), lambda path, tensor: path) == (1, "batch[1]")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.ones(4, 3), Samples(4, False)),
        ((torch.ones(4, 4, 2), torch.ones(4)), Samples(4, False)),
        ({"x": torch.ones(4, 3), "n": torch.tensor(5)}, Samples(4, False)),
        (torch.tensor(3), "the batch holds no tensor with a dimension for samples"),
        ((torch.ones(4, 4), torch.ones(4)), Samples(4, True)),
    ],
)
def test_samples_are_the_common_first_dimension(batch, expected):
    assert samples_of(batch) == expected


def test_the_first_samples_of_tensors_and_lists():
    batch = {"x": torch.arange(8).reshape(4, 2), "names": ["a", "b", "c", "d"], "scale": torch.ones(2)}
    few = first_samples(batch, 4, 2)
    assert few["x"].tolist() == [[0, 1], [2, 3]] and few["names"] == ["a", "b"] and few["scale"].shape == (2,)
    assert len(batch["names"]) == 4
