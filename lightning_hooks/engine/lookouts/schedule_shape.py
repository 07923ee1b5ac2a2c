"""The shape of a learning-rate schedule: its factor of the rate after each number of advances, without advancing it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dis import get_instructions
from functools import partial
from types import FunctionType
from typing import Any, Final

from torch.optim import lr_scheduler

from lightning_hooks.private import attribute
from lightning_hooks.snapshot.generators import Generators

Factor = Callable[[int], float]
"""The factor of the rate after a number of advances."""

_WRITES: Final = ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR", "DELETE_", "YIELD_", "IMPORT_")
"""The beginnings of the names of instructions by which a function changes what others read."""
_LOST: Final = "the length of a schedule of several parts is not known"
"""What is lost without the private names of such schedulers."""
_POINTS: Final = 256
"""The number of places at which a factor is looked at."""


def factor_of(scheduler: Any) -> Factor | None:
    """The factor of the rate by the number of advances; None for a scheduler whose rates do not follow from this number alone.

    Args:
        scheduler: as of torch, or a function of `transformers` made it. Only its first group is read.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> factor_of(lr_scheduler.StepLR(optimizer, 10, gamma=0.5))(25)
        0.25
    """
    make = _FACTORS.get(type(scheduler))
    try:
        return None if make is None else make(scheduler)
    except (AttributeError, LookupError, TypeError, ValueError, ZeroDivisionError):
        return None


def made_for(scheduler: Any) -> int | None:
    """The number of advances that a scheduler was made for; None if it does not say so.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> made_for(lr_scheduler.CosineAnnealingLR(optimizer, 90)), made_for(lr_scheduler.ExponentialLR(optimizer, 0.9))
        (90, None)
    """
    length: Any = None
    if isinstance(scheduler, lr_scheduler.CosineAnnealingLR):
        length = scheduler.T_max
    elif isinstance(scheduler, (lr_scheduler.OneCycleLR, lr_scheduler.PolynomialLR)):
        length = getattr(scheduler, "total_steps", None) or getattr(scheduler, "total_iters", None)
    elif isinstance(scheduler, lr_scheduler.LinearLR):
        length = scheduler.total_iters if scheduler.end_factor < scheduler.start_factor else None
    elif isinstance(scheduler, lr_scheduler.SequentialLR):
        last = made_for(_parts(scheduler)[-1]) if _parts(scheduler) else None
        length = None if last is None else _milestones(scheduler)[-1] + last
    elif isinstance(scheduler, lr_scheduler.ChainedScheduler):
        length = max((each for part in _parts(scheduler) if (each := made_for(part)) is not None), default=None)
    elif isinstance(scheduler, lr_scheduler.LambdaLR) and isinstance(function := scheduler.lr_lambdas[0], partial):
        length = function.keywords.get("num_training_steps")
    return int(length) if isinstance(length, (int, float)) and math.isfinite(length) else None


def factors(factor: Factor, last: int) -> dict[int, float]:
    """The factor at up to 257 places from 0 to `last`, by the number of advances; those before a place at which it raises.

    Args:
        factor: of a scheduler.
        last: the last number of advances.

    Example:
        >>> factors(lambda advances: 1 - advances / 4, 4)
        {0: 1.0, 1: 0.75, 2: 0.5, 3: 0.25, 4: 0.0}
    """
    places = range(last + 1) if last <= _POINTS else sorted({round(last * i / _POINTS) for i in range(_POINTS + 1)})
    return at(factor, places)


def at(factor: Factor, places: Sequence[int]) -> dict[int, float]:
    """The factor at ascending places, up to the first one at which it raises or is no number."""
    found: dict[int, float] = {}
    generators = Generators()
    try:
        for place in places:
            value = float(factor(place))
            if not math.isfinite(value):
                break
            found[place] = value
    # A function of the user may raise anything beyond the number of advances that it was written for.
    except Exception:
        return found
    finally:
        generators.restore()
    return found


def end_of(factor: Factor, last: int) -> int | None:
    """After how many advances a factor has fallen to a thousandth of its largest, at `last` at the latest; None if it has not.

    Args:
        factor: of a scheduler.
        last: the last number of advances that is looked at.

    Example:
        >>> end_of(lambda advances: max(0.0, 1 - advances / 70), 200)
        70
    """
    seen = factors(factor, last)
    low = 1e-3 * max(seen.values(), default=0.0)
    high_at = None
    for place, value in seen.items():
        if value > low:
            high_at = place
        elif high_at is not None:
            return _first_low(factor, low, high_at, place)
    return None


def _first_low(factor: Factor, low: float, high_at: int, low_at: int) -> int:
    while low_at - high_at > 1:
        middle = (high_at + low_at) // 2
        if at(factor, [middle]).get(middle, 0.0) > low:
            high_at = middle
        else:
            low_at = middle
    return low_at


def _of_lambdas(scheduler: Any) -> Factor | None:
    function = scheduler.lr_lambdas[0]
    inner = function.func if isinstance(function, partial) else function
    return function if isinstance(inner, FunctionType) and _only_reads(inner) else None


def _only_reads(function: FunctionType) -> bool:
    """Whether a function changes nothing that others read, as far as its own instructions show."""
    calls_next = {"next", "pop", "append", "send"}.intersection(function.__code__.co_names)
    return not calls_next and not any(each.opname.startswith(_WRITES) for each in get_instructions(function))


def _of_steps(scheduler: Any) -> Factor:
    return lambda advances: float(scheduler.gamma ** (advances // scheduler.step_size))


def _of_milestones(scheduler: Any) -> Factor:
    milestones = sorted(scheduler.milestones.elements())
    return lambda advances: float(scheduler.gamma ** bisect_right(milestones, advances))


def _of_exponent(scheduler: Any) -> Factor:
    return lambda advances: float(scheduler.gamma**advances)


def _constant(scheduler: Any) -> Factor:
    return lambda advances: float(scheduler.factor if advances < scheduler.total_iters else 1.0)


def _linear(scheduler: Any) -> Factor:
    begin, end, total = scheduler.start_factor, scheduler.end_factor, scheduler.total_iters
    return lambda advances: float(begin + (end - begin) * min(advances, total) / total)


def _polynomial(scheduler: Any) -> Factor:
    return lambda advances: float((1 - min(advances, scheduler.total_iters) / scheduler.total_iters) ** scheduler.power)


def _cosine(scheduler: Any) -> Factor:
    least = float(scheduler.eta_min) / float(scheduler.base_lrs[0])
    return lambda advances: least + (1 - least) * (1 + math.cos(math.pi * advances / scheduler.T_max)) / 2


def _sequence(scheduler: Any) -> Factor | None:
    parts, milestones = [factor_of(each) for each in _parts(scheduler)], _milestones(scheduler)

    def factor(advances: int) -> float:
        number = bisect_right(milestones, advances)
        part = parts[number]
        assert part is not None
        return part(advances - (milestones[number - 1] if number else 0))

    return factor if all(parts) and len(parts) == len(milestones) + 1 else None


def _chain(scheduler: Any) -> Factor | None:
    parts = [factor_of(each) for each in _parts(scheduler)]
    is_known = bool(parts) and all(parts)
    return (lambda advances: math.prod(part(advances) for part in parts if part is not None)) if is_known else None


def _parts(scheduler: Any) -> list[Any]:
    return attribute(scheduler, "SequentialLR._schedulers", list, _LOST) or []


def _milestones(scheduler: Any) -> list[int]:
    return attribute(scheduler, "SequentialLR._milestones", list, _LOST) or [0]


_FACTORS: Final[Mapping[type, Callable[[Any], Factor | None]]] = {
    lr_scheduler.LambdaLR: _of_lambdas,
    lr_scheduler.StepLR: _of_steps,
    lr_scheduler.MultiStepLR: _of_milestones,
    lr_scheduler.ExponentialLR: _of_exponent,
    lr_scheduler.ConstantLR: _constant,
    lr_scheduler.LinearLR: _linear,
    lr_scheduler.PolynomialLR: _polynomial,
    lr_scheduler.CosineAnnealingLR: _cosine,
    lr_scheduler.SequentialLR: _sequence,
    lr_scheduler.ChainedScheduler: _chain,
}
"""By the class of a scheduler, what makes its factor."""
