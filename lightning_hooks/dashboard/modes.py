"""When modules began or ceased to be in evaluation mode during a training, from the facts in its event file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from lightning_hooks.dashboard.facts import json_object

_NAMED: Final = 3  # the most modules that the text of a change names
_MOST: Final = 20  # the most changes that are listed


def mode_changes(texts: Iterable[tuple[int, str]]) -> list[dict[str, Any]]:
    """The changes of modes after the first step, each with its `step` and a `text`; of many changes the first ones.

    Args:
        texts: what `records/saved_facts.py` writes. Damaged texts are ignored.

    Example:
        >>> mode_changes([(0, '{"evaluating": []}'), (9, '{"evaluating": ["policy.0"]}')])
        [{'step': 9, 'text': 'policy.0 went into evaluation mode'}]
    """
    found: list[dict[str, Any]] = []
    known: dict[str, None] | None = None
    for step, text in texts:
        # Parse only texts that hold modes. In most runs there is a text for every step, because the learning rate changes.
        names = json_object([text]).get("evaluating") if '"evaluating"' in text else None
        if not isinstance(names, list):
            continue
        now = dict.fromkeys(each for each in names if isinstance(each, str))
        if known is not None:
            began, ended = [each for each in now if each not in known], [each for each in known if each not in now]
            named = ((began, "evaluation"), (ended, "training"))
            parts = [f"{_listed(each)} went into {mode} mode" for each, mode in named if each]
            found += [{"step": step, "text": "; ".join(parts)}] if parts else []
        known = now
    more = len(found) - _MOST
    return found if more <= 0 else [*found[:_MOST], {"step": None, "text": f"and {more:,} more changes"}]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
