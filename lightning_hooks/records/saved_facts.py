"""The facts of steps and the structure of a model as JSON in the event file of a run.

Most steps change nothing but learning rates. A step therefore stores the facts that differ from those of the step before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning_hooks.errors import RuleError
from lightning_hooks.records.facts import GroupFacts, ModuleFacts, OptimizerFacts, ParameterFacts, StepFacts, Structure

_PLAIN = (
    *("loss_scale", "frozen", "evaluating", "precision", "accumulate", "last_step", "apart", "written"),
    *("validating", "follows_metric"),
)


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


def structure_to_json(structure: Structure | None) -> Any:
    """A structure as lists of plain values; None for None."""
    if structure is None:
        return None
    modules = [[each.name, each.type, each.role, each.drop_rate] for each in structure.modules]
    return {
        "modules": modules,
        "parameters": [[each.name, each.module, each.shape, each.dtype, each.others] for each in structure.parameters],
    }


def structure_from_json(saved: Any) -> Structure | None:
    """The structure from `structure_to_json`.

    Raises:
        ValueError, TypeError, KeyError: it is damaged.
    """
    if saved is None:
        return None
    return Structure(
        tuple(_module(*each) for each in saved["modules"]),
        tuple(
            ParameterFacts(str(name), str(module), tuple(map(int, shape)), str(dtype), tuple(map(str, others)))
            for name, module, shape, dtype, others in saved["parameters"]
        ),
    )


def _as_json(facts: StepFacts) -> dict[str, Any]:
    """The facts as JSON values, with the rates of optimizers apart from their parameters, which rarely change."""
    members = [[each.type, [[list(group.params), group.strangers] for group in each.groups]] for each in facts.optimizers]
    rates = [[[group.lr, group.weight_decay] for group in each.groups] for each in facts.optimizers]
    plain = {name: getattr(facts, name) for name in _PLAIN}
    return {"members": members, "rates": rates, **{k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}}


def _from_json(known: Mapping[str, Any]) -> StepFacts:
    optimizers = tuple(
        OptimizerFacts(
            str(kind),
            tuple(
                GroupFacts(_number(lr), _number(weight_decay), tuple(map(str, params)), int(strangers))
                for (params, strangers), (lr, weight_decay) in zip(groups, rates, strict=True)
            ),
        )
        for (kind, groups), rates in zip(known["members"], known["rates"], strict=True)
    )
    return StepFacts(
        optimizers,
        _number(known["loss_scale"]),
        tuple(map(str, known["frozen"])),
        tuple(map(str, known["evaluating"])),
        None if known["precision"] is None else str(known["precision"]),
        None if known["accumulate"] is None else int(known["accumulate"]),
        None if known["last_step"] is None else int(known["last_step"]),
        tuple(map(str, known["apart"])),
        tuple(map(str, known.get("written", ()))),
        None if known.get("validating") is None else tuple(map(str, known["validating"])),
        bool(known.get("follows_metric", False)),
    )


def _module(name: Any, kind: Any, role: Any, drop_rate: Any = None) -> ModuleFacts:
    return ModuleFacts(str(name), str(kind), str(role), _number(drop_rate))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
