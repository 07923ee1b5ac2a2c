"""Which trainings of a gallery the tests run: some of each family, drawn by a seed. With GALLERY=all they run every one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def sample(trainings: Iterable[T], of_each: int = 1, family: Callable[[T], Any] = lambda each: each.family) -> list[T]:
    """Draw trainings of each family. GALLERY_SEED draws others.

    Args:
        trainings: those to draw from.
        of_each: how many of a family; all, if it has no more.
        family: of a training.
    """
    if os.environ.get("GALLERY") == "all":
        return [*trainings]
    draw = random.Random(int(os.environ.get("GALLERY_SEED", "0")))
    families: dict[Any, list[T]] = {}
    for each in trainings:
        families.setdefault(family(each), []).append(each)
    return [each for members in families.values() for each in draw.sample(members, min(of_each, len(members)))]
