"""A rule on parameters that something else than the optimizer changes, between one step and the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, NamedTuple

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Array, Mask, percent, roles_of
from lightning_hooks.health.rule import HealthRule, Kind, Symptom, symptoms_where
from lightning_hooks.health.rules.base import Needs, Obstacles
from lightning_hooks.health.track import Track
from lightning_hooks.health.usage import is_named_copy


def _searches(evidence: Evidence) -> str | None:
    """An obstacle: an optimizer that moves weights several times in a step, each time to compute the loss there."""
    optimizers = () if evidence.facts is None else evidence.facts.optimizers
    return "LBFGS moves weights within a step" if any(each.type == "LBFGS" for each in optimizers) else None


class Moves(NamedTuple):
    """The moves of parameters between one step and the next, each float64 or bool [window, parameters].

    Args:
        shares: by which share of itself the size of each has changed; NaN where that is not known.
        limits: what the update of the step before can have changed it by; infinite where that is not known.
        holds: where the share is larger.
    """

    shares: Array
    limits: Array
    holds: Mask


@dataclass(frozen=True, kw_only=True)
class MovesBetweenSteps(HealthRule):
    """A parameter is not where the last step of its optimizer left it.

    No change of a tensor changes its root mean square by more than the root mean square of the change itself. Code that clips
    weights, normalises them or exchanges them for an average does so on purpose. A parameter that a step did not change, such
    as an average of others or one that is stepped within backward, is moved by other code always.

    Args:
        most: how many updates of the measured size a step may consist of, as an optimizer may step several times in it.
        rounding: the share of a parameter that may be an error of rounding.
        left: the share of its largest size below which a weight has lost nearly all of it.
        times: the number of moves since the last look, each of which makes such a weight smaller.
    """

    most: float = 4.0
    rounding: float = 1e-4
    left: float = 0.1
    times: int = 3
    patience: int = 1
    every_n_steps: int = 20
    family: ClassVar[str] = "updates"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (_searches,)
    needs: ClassVar[Needs] = (("param", "rms"), ("update", "ratio"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Search for code outside the optimizer that writes into weights: `copy_`, `mul_`, `.data`, `load_state_dict`.",
        "If it is meant, as for an average of weights or a norm that is kept, accept the finding.",
    )
    source: ClassVar[str] = (
        "a sum is at most as large as its parts together, the weight and the update; four updates, because a step of a GAN or "
        "of PPO may hold several"
    )
    consequence: ClassVar[str] = (
        "The optimizer's state no longer fits the weight, and its update acts on numbers that it has not made."
    )
    false_alarm: ClassVar[str] = (
        "Weight clipping, normalised weights and averages write on purpose. The finding is a note until the loss shows harm "
        "or hardly anything of a weight is left; accept it where it is meant."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        param = evidence.track("param", "rms")
        if param is None or not param.new.stop > param.new.start:
            return
        moves = self.moves(evidence, param.new.start)
        if moves is None or not moves.holds.any():
            return
        known = np.isfinite(moves.limits)
        moved = param._replace(stat="moved", values=np.where(known, moves.shares, np.nan))
        shares = _left(evidence, param)
        smaller = moves.holds & (np.diff(param.values, axis=0, prepend=param.values[:1]) < 0)
        are_lost = (shares < self.left) & (smaller[param.new].sum(axis=0) >= self.times)
        lost = smaller & are_lost
        limits = np.where(known, moves.limits, 0.0)
        yield from symptoms_where(moved, moves.holds & ~lost, limits, _moved)
        if lost.any():
            text = partial(_lost, float(np.median(shares[are_lost])))
            yield from symptoms_where(moved, lost, limits, text, facts=np.ones(len(moved.names), dtype=np.bool_))

    def moves(self, evidence: Evidence, begin: int = 0) -> Moves | None:
        """What other code than the optimizer has moved, at the steps of the window from `begin` on; None if it is not known."""
        param, update = evidence.track("param", "rms"), evidence.track("update", "ratio")
        if param is None or update is None:
            return None
        # The size at the step `begin` is compared with that at the step before.
        begin = max(begin - 1, 0)
        sizes, columns = param.values[begin:], columns_of(update.names, param.names)
        ratios = np.where(columns >= 0, update.values[begin:][:, columns], np.nan)
        shares = np.full_like(param.values, np.nan)
        limits = np.full_like(param.values, np.inf)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares[begin + 1 :] = np.abs(np.diff(sizes, axis=0)) / sizes[:-1]
            limits[begin + 1 :] = np.where(ratios[:-1] > 0, self.most * ratios[:-1] + self.rounding, np.inf)
            holds = (shares > limits) & np.isfinite(shares)
        if holds.any():
            holds &= np.diff(param.steps, prepend=param.steps[0])[:, None] == 1
            holds &= np.array([not is_named_copy(name) for name in param.names], dtype=np.bool_)
        return Moves(shares, limits, holds)


def _left(evidence: Evidence, param: Track) -> Array:
    """Which share of its largest size in the window is left of each weight now, float64 [parameters]; NaN for others."""
    roles = roles_of(evidence)
    if roles is None:
        return np.full(len(param.names), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares: Array = param.values[-1] / np.fmax.reduce(param.values, axis=0)
    return np.where(roles.are_weights(param.names), shares, np.nan)


def _lost(left: float, share: float) -> str:
    return f"{_moved(share)}; after several such moves {percent(left)} of its largest size is left"


def _moved(share: float) -> str:
    return f"its root mean square is {percent(share)} away from where the step before left it, which is no update of that step"


RULES: Final[tuple[HealthRule, ...]] = (MovesBetweenSteps(),)
"""The rule on what moves a parameter between two steps, with its default thresholds."""
