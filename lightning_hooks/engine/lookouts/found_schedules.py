"""Finds the schedules of learning rates of optimizers in a plain loop, which tells nobody of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any, Final

from torch.optim.lr_scheduler import LRScheduler

_MARK: Final = "initial_lr"
"""The key that each schedule of PyTorch sets in the groups of its optimizer."""
_COUNT: Final = "last_epoch"
"""The attribute of a schedule that counts its advances."""
_PARTS: Final = "_schedulers"
"""The attribute of a schedule that is made of others, of which it advances one or all."""


def found_schedules(optimizers: Iterable[Any]) -> list[LRScheduler]:
    """The schedule of each optimizer that has exactly one, without the parts of a schedule that is made of others.

    A search walks through the objects of the process, which takes some hundredths of a second for each 100 000. It is skipped
    if no optimizer has the mark of a schedule, which `ReduceLROnPlateau` does not set.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.ones(1)], 0.1)
        >>> schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        >>> found_schedules([optimizer]) == [schedule]
        True
    """
    marked = [each for each in optimizers if any(_MARK in group for group in getattr(each, "param_groups", ()))]
    if not marked:
        return []
    holders = gc.get_referrers(*marked)
    # The interpreter keeps the fields of an object in a dictionary once somebody has asked for that.
    fields = [each for each in holders if type(each) is dict and _COUNT in each]
    owners = [*holders, *(gc.get_referrers(*fields) if fields else ())]
    # `isinstance` would ask a proxy for its class, which may run a user's code.
    schedules = list({id(each): each for each in owners if issubclass(type(each), LRScheduler)}.values())
    parts = {id(part) for each in schedules for part in getattr(each, _PARTS, ())}
    whole = [each for each in schedules if id(each) not in parts]
    by_optimizer = ([each for each in whole if getattr(each, "optimizer", None) is optimizer] for optimizer in marked)
    return [found[0] for found in by_optimizer if len(found) == 1]
