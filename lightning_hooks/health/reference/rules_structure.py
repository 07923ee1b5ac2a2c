"""What is compared of the modules and parameters of a model: names, classes, shapes, dtypes, ties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.reference.rule import Compared, GoodRuns
from lightning_hooks.health.rule import Symptom
from lightning_hooks.health.rules.base import no_structure
from lightning_hooks.records.facts import ModuleFacts, ParameterFacts, Structure

T = TypeVar("T", ParameterFacts, ModuleFacts)


def _obstacle(good: GoodRuns, evidence: Evidence) -> str | None:
    if good.reference.structure is None:
        return "the good run does not say what its model is"
    return no_structure(evidence)


def _structure_differs(good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
    before, now = good.reference.structure, evidence.structure
    if before is None or now is None or not len(evidence.new_steps):
        return
    step = int(evidence.new_steps[0])
    if not _share_names(before, now):
        # Otherwise every module and parameter of both models would be a symptom of its own.
        text = f"no parameter has the name of one {good.words}: that is a run of another model, or all names have changed"
        yield Symptom("", tensor="", step=step, measured=1.0, threshold=0.0, text=text)
        return
    for name, text in _differences(before, now, good.words):
        yield Symptom(name, tensor="", step=step, measured=1.0, threshold=0.0, text=text)


def _share_names(good: Structure, structure: Structure) -> bool:
    """Whether two models have a parameter in common, or none at all."""
    before, now = ({each.name for each in model.parameters} for model in (good, structure))
    return bool(before & now) or not before or not now


def _differences(good: Structure, structure: Structure, where: str) -> Iterator[tuple[str, str]]:
    yield from _compared(
        good.parameters,
        structure.parameters,
        lambda one, two: _parameter_differs(one, two, where),
        "parameter",
        where,
    )
    yield from _compared(
        good.modules,
        structure.modules,
        lambda one, two: _module_differs(one, two, where),
        "module",
        where,
    )


def _compared(
    listed_before: Iterable[T], listed_now: Iterable[T], differs: Callable[[T, T], str | None], kind: str, where: str
) -> Iterator[tuple[str, str]]:
    before, now = ({each.name: each for each in listed} for listed in (listed_before, listed_now))
    for name, each in now.items():
        if name not in before:
            yield name, f"this {kind} is new: the model {where} has none of this name"
        elif (text := differs(before[name], each)) is not None:
            yield name, text
    for name in before:
        if name not in now:
            yield name, f"the model has no {kind} of this name any more, as {where}"


def _parameter_differs(good: ParameterFacts, now: ParameterFacts, where: str) -> str | None:
    untied, tied = sorted({*good.others} - {*now.others}), sorted({*now.others} - {*good.others})
    if untied:
        return f"this parameter is not tied to {untied[0]} any more, as it was {where}"
    if tied:
        return f"this parameter is tied to {tied[0]}; {where} it was not"
    if good.shape != now.shape:
        return f"the shape of this parameter is {list(now.shape)}, {where} {list(good.shape)}"
    return None if good.dtype == now.dtype else f"the dtype of this parameter is {now.dtype}, {where} {good.dtype}"


def _module_differs(good: ModuleFacts, now: ModuleFacts, where: str) -> str | None:
    if good.type != now.type:
        return f"this module is a {now.type}, {where} a {good.type}"
    if good.drop_rate == now.drop_rate or good.drop_rate is None or now.drop_rate is None:
        return None
    return f"this module drops {100 * now.drop_rate:g} % of the elements, {where} {100 * good.drop_rate:g} %"


# A module or parameter is new, missing, or another: its class, shape, dtype, or ties.
STRUCTURE: Final = Compared("ReferenceStructure", (_structure_differs,), obstacle=_obstacle)
