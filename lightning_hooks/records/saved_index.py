"""The row index as JSON in the event file of a run, from which the step views of the run can be read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.row_index import RequestedRows, RowIndex
from lightning_hooks.plan.rows import LOSS, Requests
from lightning_hooks.records.facts import Structure
from lightning_hooks.records.saved_facts import structure_from_json, structure_to_json
from lightning_hooks.records.step_view import STAGE_PREFIX
from lightning_hooks.rules.schedule import EveryN, every_n
from lightning_hooks.stats.accumulators import BUILT_IN, Accumulator, AccumulatorRows
from lightning_hooks.stats.accumulators.function import FunctionMean, key_of

_FORMAT = 1


@dataclass(frozen=True)
class SavedIndex:
    """The row index of one stage of a monitor.

    Args:
        index: the row index of the step views.
        stage: `train`, `validate`, `test` or `predict`.
        prefix: by which tables know the monitor.
        ranks: the number of processes of the run.
        structure: of the model; None in files of older versions.
        scalars: the prefix of the monitor's scalars; None if it is `prefix`, as in files of older versions.
    """

    index: RowIndex
    stage: str = "train"
    prefix: str = ""
    ranks: int = 1
    structure: Structure | None = None
    scalars: str | None = None

    @property
    def tag_prefix(self) -> str:
        """The text before the tensor of a table: the prefix of the monitor, then that of the stage."""
        return f"{self.prefix}{STAGE_PREFIX[self.stage]}"

    @property
    def scalar_prefix(self) -> str:
        """The text before the tag of a scalar."""
        return f"{self.prefix if self.scalars is None else self.scalars}{STAGE_PREFIX[self.stage]}"

    def to_json(self) -> str:
        """The JSON text in an event file. Readers that do not read step views find the requested statistics in `asked`."""
        index = self.index
        requests: dict[Requests, int] = {}

        def entries(listed: Sequence[RequestedRows]) -> list[Any]:
            return [[each.tensor, requests.setdefault(each.requests, len(requests)), each.rows.tolist()] for each in listed]

        requested_rows, groups = entries(index.requested_rows), entries(index.groups)
        asked: dict[str, dict[str, None]] = {}
        for each in (*index.requested_rows, *index.groups):
            names = (stat for _, stats in each.requests for stat in stats if stat != "histogram")
            if stats := dict.fromkeys(names):
                asked.setdefault(f"{self.tag_prefix}{each.tensor}", {}).update(stats)
        if LOSS in index.tensors:
            asked[f"{self.tag_prefix}{LOSS}"] = {"mean": None}
        return json.dumps(
            {
                "format": _FORMAT,
                "stage": self.stage,
                "prefix": self.prefix,
                "scalars": self.scalars,
                "ranks": self.ranks,
                "asked": {tensor: [*stats] for tensor, stats in asked.items()},
                "names": index.names,
                "tensors": index.tensors,
                "module_types": index.module_types,
                "members": {str(group): rows for group, rows in index.members.items()},
                "order": index.order,
                "param_row_of": {str(row): param_row for row, param_row in index.param_row_of.items()},
                "requests": [[[_schedule(schedule), stats] for schedule, stats in each] for each in requests],
                # Files of format 1 call the requested rows "alike".
                "alike": requested_rows,
                "groups": groups,
                "kept": {name: kept.rows for name, kept in index.kept.items() if _accumulator(name) is not None},
                "magnitudes": index.magnitudes,
                "structure": structure_to_json(self.structure),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> SavedIndex:
        """Read the text of `to_json`.

        Raises:
            RuleError: the text is damaged, or another version of the package wrote it.
        """
        try:
            saved: Mapping[str, Any] = json.loads(text)
            if saved["format"] != _FORMAT:
                raise RuleError(f"the step views were written in format {saved['format']!r}; this version reads {_FORMAT}")
            structure = structure_from_json(saved.get("structure"))
            scalars = None if saved.get("scalars") is None else str(saved["scalars"])
            return cls(_index(saved), str(saved["stage"]), str(saved["prefix"]), int(saved["ranks"]), structure, scalars)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, RuleError):
                raise
            raise RuleError(f"the index of step views in the event file is damaged: {type(error).__name__}: {error}") from error


def _index(saved: Mapping[str, Any]) -> RowIndex:
    requests: list[Requests] = [
        tuple((_read_schedule(schedule), tuple(map(str, stats))) for schedule, stats in each) for each in saved["requests"]
    ]

    def entries(listed: Sequence[Any]) -> list[RequestedRows]:
        return [RequestedRows(str(tensor), requests[number], np.array(rows, dtype=np.intp)) for tensor, number, rows in listed]

    kept = [
        AccumulatorRows(accumulator, tuple(map(int, rows)))
        for name, rows in saved["kept"].items()
        if (accumulator := _accumulator(name))
    ]
    count = len(saved["names"])
    if not count == len(saved["tensors"]) == len(saved["module_types"]):
        raise ValueError(f"{count} names, {len(saved['tensors'])} tensors and {len(saved['module_types'])} types")
    return RowIndex(
        map(str, saved["names"]),  # type: ignore[arg-type]
        map(str, saved["tensors"]),  # type: ignore[arg-type]
        map(str, saved["module_types"]),  # type: ignore[arg-type]
        {int(group): tuple(map(int, rows)) for group, rows in saved["members"].items()},
        [*map(int, saved["order"])],
        {int(row): int(param_row) for row, param_row in saved["param_row_of"].items()},
        entries(saved["alike"]),
        entries(saved["groups"]),
        kept,
        magnitudes=bool(saved["magnitudes"]),
    )


def _accumulator(name: str) -> Accumulator | None:
    """The accumulator of this name; None for the user's own accumulators, whose statistics are stored as numbers."""
    built_in = next((each for each in BUILT_IN if each.name == name), None)
    stat = name.removeprefix(key_of(""))
    return built_in or (FunctionMean(stat) if stat != name else None)


def _schedule(schedule: EveryN) -> Any:
    if schedule.steps is not None:
        return list(schedule.steps)
    return {"every": schedule.every, "first": schedule.first, "last": schedule.last}


def _read_schedule(saved: Any) -> EveryN:
    return every_n({k: v for k, v in saved.items() if v is not None} if isinstance(saved, Mapping) else saved, "schedule")
