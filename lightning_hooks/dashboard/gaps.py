"""Explains why rows of a table were not measured: by the optimizers, the schedules of the rules, and the calls of the modules.

A reason is given only if the event file states it. Otherwise the page says what a missing value of the tensor means in general.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from lightning_hooks.dashboard.source import CHUNK, RunSource
from lightning_hooks.dashboard.tiles import unit_of
from lightning_hooks.dashboard.training import Schedule, TrainingFacts, parameters_of, row_schedules, training_facts

Kind = Literal["frozen", "forgotten", "uncalled", "schedule", "failed", "gap"]

_TRAINED: Final = re.compile(r"grad|final_grad|update|state\..+")
"""The tensors of parameters that exist only if an optimizer trains the parameter."""
_FROZEN: Final = "frozen: requires_grad is off"
_FORGOTTEN: Final = "in no optimizer, so it gets no update"
_UNCALLED: Final = "not called"
_OTHERWISE: Final[Mapping[str, tuple[Kind, str]]] = {
    "input": ("uncalled", "its module was not called"),
    "output": ("uncalled", "its module was not called"),
    "output_grad": ("gap", "no gradient reached it"),
    "input_grad": ("gap", "no gradient reached it, or its input needs none"),
    "grad": ("gap", "no gradient reached it"),
    "final_grad": ("gap", "no gradient reached it"),
    "update": ("gap", "no gradient reached it, or the step of the optimizer was skipped"),
}
"""What a missing value of a tensor means if nothing more is known."""


class Reason(NamedTuple):
    """Why a row was not measured from a step on.

    Args:
        since: the first step for which the reason holds.
        kind: `frozen`, `forgotten` (in no optimizer), `uncalled`, or `gap` for no known reason.
        text: in words.
    """

    since: int
    kind: Kind
    text: str


@dataclass(frozen=True)
class Known:
    """What the event file of a run states about its parameters and modules.

    Args:
        facts: the facts of the optimizers, in the order of their steps.
        parameters: the parameters of the model, each with the module that holds it.
        called: the modules of which is known whether they ran at any step that was looked at.
        schedules: the schedules of the rows of the table, by name; rows without an entry have no known schedule.
    """

    facts: Sequence[TrainingFacts] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    called: Mapping[str, bool] = field(default_factory=dict)
    schedules: Mapping[str, Sequence[Schedule]] = field(default_factory=dict)


def reasons_of(name: str, tensor: str, known: Known) -> list[Reason]:
    """Why a row has no value, over the steps of a run; empty if nothing is known beyond the general meaning of a gap.

    Args:
        name: the name of the row.
        tensor: without the prefix of the monitor.
        known: what the event file states.

    Example:
        >>> from lightning_hooks.dashboard.training import TrainingFacts
        >>> facts = [TrainingFacts(0, frozenset({"a"}), frozenset({"b"})), TrainingFacts(9, frozenset(), frozenset({"b"}))]
        >>> known = Known(facts, {"a": "", "b": ""})
        >>> [(each.since, each.kind) for each in reasons_of("a", "grad", known)], reasons_of("b", "grad", known)
        ([(0, 'frozen'), (9, 'forgotten')], [])
    """
    if _TRAINED.fullmatch(tensor) and name in known.parameters:
        states = [(each.step, _state_of(name, each)) for each in known.facts]
        module = known.parameters[name]
    elif tensor in ("output_grad", "input_grad"):
        held = [parameter for parameter, module in known.parameters.items() if module == name]
        states = [(each.step, _frozen_module(held, each)) for each in known.facts]
        module = name
    else:
        return []
    if known.called.get(module) is False:
        states = [(step, state or ("uncalled", _UNCALLED)) for step, state in states or [(0, None)]]
    reasons: list[Reason] = []
    for step, state in states:
        kind, text = state or ("gap", "")
        if not reasons or reasons[-1].kind != kind:
            reasons.append(Reason(step, kind, text))
    return [] if all(each.kind == "gap" for each in reasons) else reasons


def _state_of(parameter: str, facts: TrainingFacts) -> tuple[Kind, str] | None:
    if parameter in facts.frozen:
        return "frozen", _FROZEN
    return None if facts.held is None or parameter in facts.held else ("forgotten", _FORGOTTEN)


def _frozen_module(parameters: Sequence[str], facts: TrainingFacts) -> tuple[Kind, str] | None:
    is_frozen = parameters and facts.frozen.issuperset(parameters)
    return ("frozen", "frozen: no gradient is needed here") if is_frozen else None


def forgotten(known: Known) -> list[str]:
    """The parameters that are neither frozen nor in an optimizer at the end of the run."""
    return [name for name in known.parameters if known.facts and _state_of(name, known.facts[-1]) == ("forgotten", _FORGOTTEN)]


def answer(
    names: Sequence[str], tensor: str, known: Known, last: int | None, run_last: int | None, unit: int
) -> dict[str, Any]:
    """The answer to `gaps` (see `api.py`): `reasons`, and what refers to them by their indices.

    `otherwise` is the reason of rows without an entry in `rows`, `between` that of cells in which the table has no step, and
    `ended` that of steps after the last one of the table; it is None if the table ends with the run. An entry of `rows` has
    `reasons`, each with the step since which it holds, and `schedules`. `forgotten` lists parameters that are in no optimizer.

    Args:
        names: the rows of the table.
        tensor: without the prefix of the monitor.
        known: what the event file states.
        last: the last step of the table; None if it has none.
        run_last: the last step of any table of the run.
        unit: the usual distance of steps of the table.
    """
    listed: dict[tuple[Kind, str, Schedule | None], int] = {}

    def index_of(kind: Kind, text: str, schedule: Schedule | None = None) -> int:
        return listed.setdefault((kind, text, schedule), len(listed))

    kind, text = _OTHERWISE.get(tensor, ("gap", ""))
    otherwise = index_of(kind, text)
    rows: dict[str, Any] = {}
    for row, name in enumerate(names):
        reasons = [[each.since, index_of(each.kind, each.text or text)] for each in reasons_of(name, tensor, known)]
        schedules = known.schedules.get(name, ())
        # A row that one of its schedules measures at every step is always due.
        has_pauses = not any(each.is_every_step for each in schedules)
        planned = [index_of("schedule", f"not due: {each.text}", each) for each in schedules] if has_pauses else []
        if reasons or planned:
            rows[str(row)] = {"reasons": reasons, "schedules": planned}
    between = index_of("schedule", "no step was written here")
    ended = None
    if last is not None and run_last is not None and run_last - last > 2 * unit:
        over = f"nothing was written after step {last:,}, while the run went on: the monitor failed or was stopped"
        ended = {"after": last, "reason": index_of("failed", over)}
    return {
        "reasons": [
            {"kind": kind, "text": text, "schedule": None if schedule is None else schedule._asdict()}
            for kind, text, schedule in listed
        ],
        "otherwise": otherwise,
        "between": between,
        "rows": rows,
        "ended": ended,
        "forgotten": forgotten(known),
    }


def gaps(run: RunSource, tensor: str, stat: str) -> dict[str, Any]:
    """Why rows of a table were not measured; see `answer`."""
    steps = run.steps(tensor, stat)
    ends = [int(each[-1]) for each in (run.steps(*table) for table in run.tables()) if len(each)]
    last = int(steps[-1]) if len(steps) else None
    bare = tensor.rpartition("/")[2]
    return answer(run.rows(tensor, stat), bare, known_of(run, tensor), last, max(ends, default=None), unit_of(steps))


def known_of(run: RunSource, tensor: str) -> Known:
    """What the event file of a run states about the rows of a tensor.

    Args:
        run: the run.
        tensor: with the prefix of the monitor.
    """
    indices, prefix = run.row_indices(), tensor.rpartition("/")[0]
    prefix = f"{prefix}/" if prefix else ""
    # Every monitor notes the facts of the same model. Take those of the monitor that wrote the table, if it is known.
    prefixes = dict.fromkeys([prefix, *(str(each.get("prefix", "")) for each in indices)])
    facts = next(filter(None, (training_facts(run.saved_facts(each)) for each in prefixes)), [])
    parameters = parameters_of(indices)
    return Known(facts, parameters, _called(run, prefix, {*parameters.values()}), row_schedules(indices, tensor))


def _called(run: RunSource, prefix: str, modules: Collection[str]) -> dict[str, bool]:
    """Whether modules ran at any step, for those of which a row of the outputs or inputs tells."""
    tables = run.tables()
    tensor = next((f"{prefix}{each}" for each in ("output", "input") if (f"{prefix}{each}", "count") in tables), None)
    if tensor is None:
        return {}
    names, steps = run.rows(tensor, "count"), len(run.steps(tensor, "count"))
    rows_of = {module: [i for i, name in enumerate(names) if name == module] for module in modules}
    called = {module: False for module, rows in rows_of.items() if rows}
    for at in range(0, steps, CHUNK):
        counts = run.read(tensor, "count", at, min(at + CHUNK, steps))
        for module in [module for module, is_called in called.items() if not is_called]:
            called[module] = bool((counts[:, rows_of[module]] > 0).any())
        if all(called.values()):
            break
    return called
