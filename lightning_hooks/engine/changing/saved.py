"""What a checkpoint keeps of transforms, and how it is found again when rules have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_hooks.engine.changing.report import Counts
from lightning_hooks.errors import RuleError

if TYPE_CHECKING:
    from lightning_hooks.engine.changing.bound import BoundTransform


@dataclass(frozen=True)
class SavedTransform:
    """What a checkpoint keeps of a transform.

    Args:
        transform: how the transform is shown.
        place: what it acts on.
        seed: of its random numbers, which may be greater than an integer of 64 bits.
        state: its own state, of any kind that it chooses.
        generators: the states of its generators, by device.
        report: what was reported of it.
    """

    transform: str
    place: str
    seed: Any
    state: Any
    generators: Any
    report: Counts


@dataclass(frozen=True)
class SavedTransforms:
    """What a checkpoint keeps of the transforms of a callback.

    Args:
        links: of each transform.
        skipped_steps: how many optimizer steps transforms have skipped.

    Raises:
        RuleError: the number of steps is negative.
    """

    links: list[SavedTransform]
    skipped_steps: int = 0

    def __post_init__(self) -> None:
        if self.skipped_steps < 0:
            raise RuleError(f"skipped_steps must be at least 0, got {self.skipped_steps}")


def match_saved(
    saved: Sequence[SavedTransform], transforms: Sequence[BoundTransform]
) -> tuple[list[tuple[SavedTransform, BoundTransform]], list[str]]:
    """Find what a checkpoint keeps of each transform, at whatever position it was saved.

    Args:
        saved: of all transforms of the checkpoint.
        transforms: the transforms in order.

    Returns:
        The transforms that did not change, each with what is saved of it, and a phrase for each change.
    """
    gone, new = dict(enumerate(saved)), dict(enumerate(transforms))
    pairs = []
    for i, now in enumerate(transforms):
        what = now.shown, now.acts_on
        same = next((j for j, old in gone.items() if (old.transform, old.place) == what), None)
        if same is not None:
            pairs.append((gone.pop(same), new.pop(i)))
    changes = []
    # If the same targets have another transform or other arguments now, report one change instead of two.
    for j, old in list(gone.items()):
        other = next((i for i, now in new.items() if now.acts_on == old.place), None)
        if other is not None:
            changes.append(f"{old.transform} is now {new.pop(other).shown}")
            del gone[j]
    changes += [f"{old.transform} on {old.place} is gone" for old in gone.values()]
    changes += [f"{now.shown} on {now.acts_on} is new" for now in new.values()]
    return pairs, changes
