"""Usage: which optimizer holds a parameter, and which rows tell whether its module runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from operator import is_
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.memo import memo_of
from lightning_hooks.health.track import Track
from lightning_hooks.records.facts import GroupFacts, StepFacts, Structure

COPIES: Final = (
    "target",
    "targets",
    "teacher",
    "ema",
    "momentum",
    "averaged",
    "frozen",
    "reference",
    "ref",
    "old",
    "swa",
    "perceptual",
    "lpips",
)
"""Words in the names of modules that another rule than the gradient trains, or that are kept as they are on purpose."""
LOSS_COUNT: Final = ("loss", "count")
"""The number of losses of a step, over all ranks."""
_CHANGES: Final = ("update", "ratio")
_WARM_UP: Final = 0.9
"""The share of the steps of a fit from which on a rate that still rises is no warm-up."""
_WORDS: Final = re.compile(r"[._]")


class Membership(NamedTuple):
    """Which parameters the optimizers of a step hold.

    Args:
        optimizer_of: the number of the optimizer that holds a parameter, by its name.
        lr_of: the learning rate of its group; None if only the device knows it.
        strangers: the number of parameters of each optimizer that are not in the model.
    """

    optimizer_of: dict[str, int]
    lr_of: dict[str, float | None]
    strangers: tuple[int, ...]


def membership_of(facts: StepFacts) -> Membership:
    """The parameters that the optimizers hold.

    Example:
        >>> from lightning_hooks.records.facts import GroupFacts, OptimizerFacts
        >>> membership_of(StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, ("a", "b"), strangers=1),)),)))
        Membership(optimizer_of={'a': 0, 'b': 0}, lr_of={'a': 0.1, 'b': 0.1}, strangers=(1,))
    """
    memo = memo_of(facts)
    if "membership" not in memo:
        memo["membership"] = _membership(facts)
    membership: Membership = memo["membership"]
    return membership


def _membership(facts: StepFacts) -> Membership:
    optimizer_of: dict[str, int] = {}
    lr_of: dict[str, float | None] = {}
    for number, optimizer in enumerate(facts.optimizers):
        for group in optimizer.groups:
            optimizer_of.update(dict.fromkeys(group.params, number))
            lr_of.update(dict.fromkeys(group.params, group.lr))
    strangers = tuple(sum(group.strangers for group in each.groups) for each in facts.optimizers)
    return Membership(optimizer_of, lr_of, strangers)


def groups_of(facts: StepFacts | None) -> list[GroupFacts]:
    """The parameter groups of all optimizers; empty if nothing is known of them."""
    return [] if facts is None else [group for optimizer in facts.optimizers for group in optimizer.groups]


def rates_of(facts: StepFacts | None) -> list[float]:
    """The learning rate of each parameter group; 0 if only the device knows it."""
    return [group.lr or 0.0 for group in groups_of(facts)]


def has_risen(before: StepFacts | None, now: StepFacts | None) -> bool:
    """Whether the largest learning rate has risen between two steps, as in a warm-up; False if one of them is unknown."""
    if before is None or now is None:
        return False
    return max(rates_of(now), default=0.0) > 1.001 * max(rates_of(before), default=0.0)


def is_warming_up(evidence: Evidence) -> bool:
    """Whether the learning rate still rises, so that a loss need not fall yet. A warm-up that outlasts the fit is none.

    Args:
        evidence: of the run.
    """
    now, steps = evidence.facts, evidence.steps
    if not len(steps) or not has_risen(evidence.facts_at(int(steps[len(steps) // 2])), now):
        return False
    if now is None or any(each.kind == "warm-up-endless" for each in now.sightings):
        return False
    return now.last_step is None or evidence.step < _WARM_UP * now.last_step


def has_scaler(facts: StepFacts | None) -> bool:
    """Whether a loss scaler is at work."""
    return facts is not None and (facts.precision == "16-mixed" or facts.loss_scale not in (None, 1.0))


def losses_may_balance(evidence: Evidence) -> bool:
    """Whether several optimizers train with losses of their own, as in a GAN: these balance, and need not fall.

    Optimizers share a loss, as Muon for the matrices and AdamW for the other parameters do, if each step has one loss and each
    of them changes parameters in the same step.

    Args:
        evidence: of the run. What its rules do not measure cannot show that a loss is shared.
    """
    if not has_several_optimizers(evidence.facts) or evidence.facts is None:
        return False
    if not {LOSS_COUNT, _CHANGES} <= set(evidence.needs):
        return True
    counts, changes = evidence.track(*LOSS_COUNT), evidence.track(*_CHANGES)
    if counts is None or changes is None or not np.nanmax(counts.values, initial=0.0) == evidence.ranks:
        return True
    with np.errstate(invalid="ignore"):
        moves = changes.values > 0
    steps = np.flatnonzero(moves.any(axis=1))
    if not len(steps):
        return True
    moved = {name for name, moves_now in zip(changes.names, moves[steps[-1]].tolist(), strict=True) if moves_now}
    return not all(any(moved.intersection(group.params) for group in each.groups) for each in evidence.facts.optimizers)


def has_several_optimizers(facts: StepFacts | None) -> bool:
    """Whether several optimizers train."""
    return facts is not None and len(facts.optimizers) > 1


def trainable(structure: Structure, facts: StepFacts) -> list[str]:
    """The names of the parameters that are not frozen."""
    frozen = set(facts.frozen)
    return [each.name for each in structure.parameters if each.name not in frozen]


def unheld(structure: Structure, facts: StepFacts) -> list[str]:
    """The names of the parameters that are neither frozen nor held by an optimizer, without those of copies."""

    def names(held: set[str]) -> list[str]:
        return [name for name in trainable(structure, facts) if name not in held and not is_named_copy(name)]

    return _of_membership("unheld", structure, facts, names)


def frozen_and_held(structure: Structure, facts: StepFacts) -> list[str]:
    """The names of the parameters that are frozen and that an optimizer holds all the same, without those of copies."""

    def names(held: set[str]) -> list[str]:
        return [name for name in facts.frozen if name in held and not is_named_copy(name)]

    return _of_membership("frozen and held", structure, facts, names)


def _of_membership(what: str, structure: Structure, facts: StepFacts, names_of: Callable[[set[str]], list[str]]) -> list[str]:
    """Names that follow from the frozen parameters and from those that optimizers hold, computed once for each of both."""
    # Compare the tuples of names, not the facts: with a changing learning rate each step has new facts that share the tuples.
    # Compare the tuples by identity, because to compare thousands of names takes longer than a rule.
    read = [facts.frozen, *(group.params for each in facts.optimizers for group in each.groups)]
    memo = memo_of(structure)
    known, names = memo.get(what, ([], []))
    if len(known) != len(read) or not all(map(is_, known, read)):
        names = names_of({name for names in read[1:] for name in names})
        memo[what] = read, names
    return cast(list[str], names)


def is_named_copy(name: str, words: Collection[str] = COPIES) -> bool:
    """Whether a word in a dotted name says that the module is a copy or is kept as it is.

    Example:
        >>> is_named_copy("target_encoder.0.weight"), is_named_copy("schema.weight")
        (True, False)
    """
    return any(word in words for word in _WORDS.split(name.lower()))


def columns_for(module: str, names: Sequence[str]) -> NDArray[np.intp]:
    """The rows that tell whether a module runs: its own; else those of the modules inside it; else those of what holds it.

    Example:
        >>> columns_for("encoder", ["encoder.0", "encoder.1", "head"]).tolist(), columns_for("head.out", ["x", "head"]).tolist()
        ([0, 1], [1])
    """
    while True:
        found = [i for i, name in enumerate(names) if name == module]
        found = found or [i for i, name in enumerate(names) if not module or name.startswith(f"{module}.")]
        if found or not module:
            return np.array(found, dtype=np.intp)
        module = module.rpartition(".")[0]


def has_any(track: Track | None, module: str) -> NDArray[np.bool_] | None:
    """Whether the module has a number above 0 at each step, bool [window]; None if no row tells."""
    if track is None:
        return None
    columns = columns_for(module, track.names)
    if not len(columns):
        return None
    with np.errstate(invalid="ignore"):
        above: NDArray[np.bool_] = np.any(track.values[:, columns] > 0, axis=1)
    return above


def gap_at_end(holds: NDArray[np.bool_]) -> int:
    """The number of steps at the end at which a condition does not hold.

    Example:
        >>> gap_at_end(np.array([True, False, False])), gap_at_end(np.array([False, True]))
        (2, 0)
    """
    found = np.flatnonzero(holds)
    return len(holds) - (int(found[-1]) + 1 if len(found) else 0)
