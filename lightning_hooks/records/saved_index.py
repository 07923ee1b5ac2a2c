"""A row index as JSON, as the event file of a run keeps it: what is needed to read its step views again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.row_index import Alike, RowIndex
from lightning_hooks.plan.rows import Requests
from lightning_hooks.records.step_view import STAGE_PREFIX
from lightning_hooks.rules.schedule import EveryN, every_n
from lightning_hooks.stats.accumulators import BUILT_IN, Accumulator, Kept
from lightning_hooks.stats.accumulators.function import FunctionMean, key_of

_FORMAT = 1


@dataclass(frozen=True)
class SavedIndex:
    """The row index of one stage of a monitor.

    Args:
        index: of its step views.
        stage: `train`, `validate`, `test` or `predict`.
        prefix: of the monitor's tags.
        ranks: how many processes the run had.
    """

    index: RowIndex
    stage: str = "train"
    prefix: str = ""
    ranks: int = 1

    @property
    def tag_prefix(self) -> str:
        """What goes before every tag."""
        return f"{self.prefix}{STAGE_PREFIX[self.stage]}"

    def to_json(self) -> str:
        """As an event file keeps it. Readers that know no step views find the requested statistics in `asked`."""
        index = self.index
        requests: dict[Requests, int] = {}
        alike = [[each.tensor, requests.setdefault(each.requests, len(requests)), each.rows.tolist()] for each in index.alike]
        groups = [[each.tensor, requests.setdefault(each.requests, len(requests)), each.rows.tolist()] for each in index.groups]
        asked: dict[str, dict[str, None]] = {}
        for group in (*index.alike, *index.groups):
            stats = (stat for _, stats in group.requests for stat in stats if stat != "histogram")
            if found := dict.fromkeys(stats):
                asked.setdefault(f"{self.tag_prefix}{group.tensor}", {}).update(found)
        return json.dumps(
            {
                "format": _FORMAT,
                "stage": self.stage,
                "prefix": self.prefix,
                "ranks": self.ranks,
                "asked": {tensor: [*stats] for tensor, stats in asked.items()},
                "names": index.names,
                "tensors": index.tensors,
                "module_types": index.module_types,
                "members": {str(group): rows for group, rows in index.members.items()},
                "order": index.order,
                "param_row_of": {str(row): below for row, below in index.param_row_of.items()},
                "requests": [[[_schedule(schedule), stats] for schedule, stats in each] for each in requests],
                "alike": alike,
                "groups": groups,
                "kept": {name: kept.rows for name, kept in index.kept.items() if _known(name) is not None},
                "magnitudes": index.magnitudes,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> SavedIndex:
        """Read it again.

        Raises:
            RuleError: it is damaged, or was written by another version.
        """
        try:
            found: Mapping[str, Any] = json.loads(text)
            if found["format"] != _FORMAT:
                raise RuleError(f"the step views were written in format {found['format']!r}; this version reads {_FORMAT}")
            return cls(_index(found), str(found["stage"]), str(found["prefix"]), int(found["ranks"]))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, RuleError):
                raise
            raise RuleError(
                f"what the event file says of its step views is damaged: {type(error).__name__}: {error}"
            ) from error


def _index(found: Mapping[str, Any]) -> RowIndex:
    requests: list[Requests] = [
        tuple((_read_schedule(schedule), tuple(map(str, stats))) for schedule, stats in each) for each in found["requests"]
    ]

    def groups_of(listed: Sequence[Any]) -> list[Alike]:
        return [Alike(str(tensor), requests[number], np.array(rows, dtype=np.intp)) for tensor, number, rows in listed]

    kept = [Kept(accumulator, tuple(map(int, rows))) for name, rows in found["kept"].items() if (accumulator := _known(name))]
    count = len(found["names"])
    if not count == len(found["tensors"]) == len(found["module_types"]):
        raise ValueError(f"{count} names, {len(found['tensors'])} tensors and {len(found['module_types'])} types")
    return RowIndex(
        map(str, found["names"]),  # type: ignore[arg-type]
        map(str, found["tensors"]),  # type: ignore[arg-type]
        map(str, found["module_types"]),  # type: ignore[arg-type]
        {int(group): tuple(map(int, rows)) for group, rows in found["members"].items()},
        [*map(int, found["order"])],
        {int(row): int(below) for row, below in found["param_row_of"].items()},
        groups_of(found["alike"]),
        groups_of(found["groups"]),
        kept,
        magnitudes=bool(found["magnitudes"]),
    )


def _known(name: str) -> Accumulator | None:
    """The accumulator of a name; None for the user's own, whose statistics are stored as numbers."""
    built_in = next((each for each in BUILT_IN if each.name == name), None)
    stat = name.removeprefix(key_of(""))
    return built_in or (FunctionMean(stat) if stat != name else None)


def _schedule(schedule: EveryN) -> Any:
    if schedule.steps is not None:
        return list(schedule.steps)
    return {"every": schedule.every, "first": schedule.first, "last": schedule.last}


def _read_schedule(found: Any) -> EveryN:
    return every_n({k: v for k, v in found.items() if v is not None} if isinstance(found, Mapping) else found, "schedule")
