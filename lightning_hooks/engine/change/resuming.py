"""Which links of a chain are those of a checkpoint, and how the others changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_hooks.engine.change.bound import BoundTransform

Saved = dict[str, Any]


def compare(saved: Sequence[Saved], links: Sequence[BoundTransform]) -> tuple[list[tuple[Saved, BoundTransform]], list[str]]:
    """Find the state of each link among those of a checkpoint, wherever it stood then.

    Args:
        saved: of the links of the checkpoint.
        links: as they are now.

    Returns:
        The links that did not change, each with its state, and a half-sentence for each change.
    """
    gone, new = list(saved), list(links)
    pairs = []
    for link in links:
        same = next((old for old in gone if old["transform"] == repr(link.transform) and old["place"] == link.acts_on), None)
        if same is not None:
            pairs.append((same, link))
            _drop(gone, same)
            _drop(new, link)
    changes = []
    for old in list(gone):  # at the same place another transform, or other numbers
        now = next((link for link in new if link.acts_on == old["place"]), None)
        if now is not None:
            changes.append(f"{old['transform']} is now {now.transform!r}")
            _drop(gone, old)
            _drop(new, now)
    changes += [f"{old['transform']} on {old['place']} is gone" for old in gone]
    changes += [f"{link.transform!r} on {link.acts_on} is new" for link in new]
    return pairs, changes


def _drop(kept: list[Any], item: Any) -> None:
    kept[:] = [other for other in kept if other is not item]
