"""The row index as JSON in the event file of a run, from which the step views of the run can be read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_hooks.codec import decode, encode
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.row_index import RequestedRows, RowIndex
from lightning_hooks.plan.rows import BATCH, EVERY_STEP, GRADIENT, LOSS, Requests
from lightning_hooks.records.facts import Structure
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
        index = _without_between(self.index)
        requests: dict[Requests, int] = {}

        def entries(listed: Sequence[RequestedRows]) -> list[tuple[str, int, list[int]]]:
            return [(each.tensor, requests.setdefault(each.requests, len(requests)), each.rows.tolist()) for each in listed]

        requested_rows, groups = entries(index.requested_rows), entries(index.groups)
        asked: dict[str, dict[str, None]] = {}
        for each in (*index.requested_rows, *index.groups):
            names = (stat for _, stats in each.requests for stat in stats if stat != "histogram")
            if stats := dict.fromkeys(names):
                asked.setdefault(f"{self.tag_prefix}{each.tensor}", {}).update(stats)
        if LOSS in index.tensors:
            asked[f"{self.tag_prefix}{LOSS}"] = {"mean": None}
        plain = _PlainIndex(
            stage=self.stage,
            prefix=self.prefix,
            scalars=self.scalars,
            ranks=self.ranks,
            asked={tensor: tuple(stats) for tensor, stats in asked.items()},
            names=index.names,
            tensors=index.tensors,
            module_types=index.module_types,
            members=index.members,
            order=index.order,
            param_row_of=index.param_row_of,
            requests=[[(_schedule(schedule), stats) for schedule, stats in each] for each in requests],
            alike=requested_rows,
            groups=groups,
            kept={name: kept.rows for name, kept in index.kept.items() if _accumulator(name) is not None},
            magnitudes=index.magnitudes,
            structure=self.structure,
        )
        return json.dumps(encode(plain))

    @classmethod
    def from_json(cls, text: str) -> SavedIndex:
        """Read the text of `to_json`.

        Raises:
            RuleError: the text is damaged, or another version of the package wrote it.
        """
        try:
            saved = json.loads(text)
            if saved["format"] == _FORMAT:
                plain = decode(_PlainIndex, saved, "index")
                return cls(_index(plain), plain.stage, plain.prefix, plain.ranks, plain.structure, plain.scalars)
        except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            raise RuleError(f"the index of step views in the event file is damaged: {type(error).__name__}: {error}") from error
        raise RuleError(f"the step views were written in format {saved['format']!r}; this version reads {_FORMAT}")


@dataclass(frozen=True, kw_only=True)
class _PlainIndex:
    """The values of a saved index in their order in the file. Files of format 1 call the requested rows `alike`."""

    format: int = _FORMAT
    stage: str
    prefix: str
    scalars: str | None = None
    ranks: int
    asked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Sequence[str]
    tensors: Sequence[str]
    module_types: Sequence[str]
    members: Mapping[int, Sequence[int]]
    order: Sequence[int]
    param_row_of: Mapping[int, int]
    requests: Sequence[Sequence[tuple[Any, tuple[str, ...]]]]
    alike: Sequence[tuple[str, int, list[int]]]
    groups: Sequence[tuple[str, int, list[int]]]
    kept: Mapping[str, tuple[int, ...]]
    magnitudes: bool
    structure: Structure | None = None


def _without_between(index: RowIndex) -> RowIndex:
    """The index without what is measured between the steps of rows, of which files hold nothing.

    These rows are the last ones. A plan that has them consists of rules that no user wrote, so it has no groups.
    """
    if GRADIENT not in index.tensors:
        return index
    kept = index.tensors.index(GRADIENT)
    requested = [
        RequestedRows(each.tensor, tuple(asked for asked in each.requests if asked[0] != EVERY_STEP), each.rows)
        for each in index.requested_rows
        if each.tensor not in (GRADIENT, BATCH)
    ]
    named = index.names[:kept], index.tensors[:kept], index.module_types[:kept]
    accumulators = [AccumulatorRows(each.accumulator, each.rows) for each in index.kept.values()]
    return RowIndex(
        *named,
        order=index.order,
        param_row_of=index.param_row_of,
        requested_rows=requested,
        kept=accumulators,
        magnitudes=index.magnitudes,
    )


def _index(plain: _PlainIndex) -> RowIndex:
    requests: list[Requests] = [
        tuple((every_n(_read_schedule(schedule), "schedule"), stats) for schedule, stats in each) for each in plain.requests
    ]

    def entries(listed: Sequence[tuple[str, int, list[int]]]) -> list[RequestedRows]:
        return [RequestedRows(tensor, requests[number], np.array(rows, dtype=np.intp)) for tensor, number, rows in listed]

    kept = [AccumulatorRows(found, rows) for name, rows in plain.kept.items() if (found := _accumulator(name))]
    count = len(plain.names)
    if not count == len(plain.tensors) == len(plain.module_types):
        raise ValueError(f"{count} names, {len(plain.tensors)} tensors and {len(plain.module_types)} types")
    return RowIndex(
        plain.names,
        plain.tensors,
        plain.module_types,
        {group: tuple(rows) for group, rows in plain.members.items()},
        [*plain.order],
        plain.param_row_of,
        entries(plain.alike),
        entries(plain.groups),
        kept,
        magnitudes=plain.magnitudes,
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


def _read_schedule(saved: Any) -> Any:
    """The schedule as `every_n` takes it: without the keys whose value is null."""
    return {key: value for key, value in saved.items() if value is not None} if isinstance(saved, Mapping) else saved
