"""The facts of steps as JSON in the event file of a run.

Most steps change nothing but learning rates. A step therefore stores the facts that differ from those of the step before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning_hooks.codec import decode, encode
from lightning_hooks.errors import RuleError
from lightning_hooks.records.facts import StepFacts


def changes(before: StepFacts | None, after: StepFacts) -> str:
    """The facts of a step that differ from those of an earlier step, as JSON.

    Args:
        before: the facts that were stored last; None to store all facts.
        after: the facts of the step.

    Example:
        >>> changes(StepFacts(loss_scale=2.0), StepFacts(loss_scale=4.0))
        '{"loss_scale": 4.0}'
    """
    old, new = {} if before is None else _as_json(before), _as_json(after)
    return json.dumps({key: value for key, value in new.items() if key not in old or old[key] != value})


def facts_of(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, StepFacts]]:
    """The facts at each step at which they changed, from the texts of `changes` in the order of their steps.

    Raises:
        RuleError: a text is damaged.
    """
    known: dict[str, Any] = {}
    for step, text in texts:
        try:
            known.update(json.loads(text))
            yield step, _from_json(known)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RuleError(
                f"the facts of step {step} in the event file are damaged: {type(error).__name__}: {error}"
            ) from error


def _as_json(facts: StepFacts) -> dict[str, Any]:
    """The facts as JSON values, with the rates of optimizers apart from their parameters, which rarely change."""
    plain = encode(facts)
    del plain["optimizers"]
    return {
        "members": [[each.type, [[list(group.params), group.strangers] for group in each.groups]] for each in facts.optimizers],
        "rates": [[[group.lr, group.weight_decay] for group in each.groups] for each in facts.optimizers],
        **plain,
        # As the rates, an infinite factor is the `Infinity` of Python's JSON.
        "loss_scale": facts.loss_scale,
    }


def _from_json(known: Mapping[str, Any]) -> StepFacts:
    optimizers = [
        {
            "type": kind,
            "groups": [
                {"lr": lr, "weight_decay": weight_decay, "params": params, "strangers": strangers}
                for (params, strangers), (lr, weight_decay) in zip(groups, rates, strict=True)
            ],
        }
        for (kind, groups), rates in zip(known["members"], known["rates"], strict=True)
    ]
    return decode(StepFacts, {**known, "optimizers": optimizers}, "facts")
