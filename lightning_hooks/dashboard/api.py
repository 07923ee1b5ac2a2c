"""Answers the requests of the page from runs. This module knows no server: a host passes the route and its arguments.

| route | arguments | answer |
|---|---|---|
| `runs` | | the runs, as `Runs.names` returns them |
| `health` | | how healthy each run is, by its name, as `Runs.health` returns it |
| `glimpse` | run | a small curve of its loss, its last step and its rate, as `RunList.glimpse` returns them |
| `run` | run | tensors and statistics of the run, steps, scalars, histograms, findings, problems, … (see `_run`) |
| `rows` | run, tensor, stat | `nodes`, their `key`, `steps`, `windows`, `unit`, `exact` (merged), `positive` (has ratios) |
| `tile` | run, tensor, stat, key, unit, level, first, last, nodes | cells, as `Tile.bytes` returns them |
| `tile` | the same, `other` (a run), `other_key` (the key of its rows) | cells of the first run minus the other run |
| `gaps` | run, tensor, stat | why rows were not measured, see `gaps.answer` |
| `tile` | the same, `as` (`ratio`) | cells of the logarithm to base 2 of the ratio instead of the difference |
| `comparison` | run, other, tensor, stat | a sentence that says how the runs differ, see `comparing.py` |
| `scalar` | run, tag, points | least, greatest and mean of a scalar in at most `points` pieces, and its last value |
| `scalar` | the same, `first`, `last` | the same, of the steps from `first` to `last` and their neighbours |
| `histograms` | run, tags (ranges of indices into the run's `histograms`), steps | one `packed_histograms` for each tag |
| `overview` | run | the global scalars, and the rows that are not finite |
| `vitals` | run | the numbers and the rows to look at in a healthy run, see `vitals.py` |
| `record` | run, record (the name of its folder) | a flight record, as `records.whole` returns it |
| `statistics` | | the explanation of each statistic |
| `ranges` | | the usual ranges of statistics, with their sources |
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from lightning_hooks.codec import encode
from lightning_hooks.dashboard.cancelled import cancelled_biases
from lightning_hooks.dashboard.curves import strip_tags, with_curves
from lightning_hooks.dashboard.details import details
from lightning_hooks.dashboard.explanations import EXPLANATIONS
from lightning_hooks.dashboard.gaps import gaps
from lightning_hooks.dashboard.merging import merges_exactly
from lightning_hooks.dashboard.overview import overview
from lightning_hooks.dashboard.ranges import USUAL_RANGES
from lightning_hooks.dashboard.records import listed, whole
from lightning_hooks.dashboard.runs import Runs
from lightning_hooks.dashboard.sentence import POSITIVE, comparison
from lightning_hooks.dashboard.sheets import packed_histograms
from lightning_hooks.dashboard.source import RunSource, windows_of
from lightning_hooks.dashboard.tiles import difference, progressions, tile, unit_of
from lightning_hooks.dashboard.tree import Node, tree
from lightning_hooks.dashboard.vitals import vitals

MAX_CELLS: Final = 1 << 22
"""The most cells of one answer, 14 bytes each."""
MAX_HISTOGRAMS: Final = 20_000
"""The most histograms of one answer."""
MAX_LEVEL: Final = 40  # a cell of this level joins 2**40 cells of level 0
MAX_POINTS: Final = 10_000  # points of one scalar
_MAX_STEP: Final = 1 << 53  # the largest step that JavaScript represents exactly

JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"


class Answer(NamedTuple):
    """The answer to a request: HTTP status, content type and content."""

    status: int
    kind: str
    body: bytes


class BadRequest(ValueError):
    """An argument is missing or invalid. The message is sent to the page with status 400."""


class NotFound(LookupError):
    """The run, table or route does not exist. The message is sent to the page with status 404."""


class Api:
    """Answers requests about runs."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        # Trees by run, then by (tensor, statistic): the version of the run at which the tree was built, its key, its nodes.
        self._trees: WeakKeyDictionary[RunSource, dict[tuple[str, str], tuple[int, str, list[Node]]]] = WeakKeyDictionary()
        self._routes: dict[str, Callable[[Mapping[str, str]], Any]] = {
            "runs": lambda _: {"runs": self._runs.names()},
            "health": lambda _: self._runs.health(),
            "glimpse": self._glimpse,
            "run": self._run,
            "rows": self._rows,
            "tile": self._tile,
            "comparison": self._comparison,
            "gaps": lambda args: gaps(*self._table(args)),
            "scalar": self._scalar,
            "histograms": self._histograms,
            "overview": lambda args: overview(self._open(args)),
            "vitals": lambda args: vitals(self._open(args)),
            "record": self._record,
            "statistics": lambda _: EXPLANATIONS,
            "ranges": lambda _: encode(USUAL_RANGES),
        }

    def prepare(self) -> None:
        """Read what the page shows if its address names nothing: the only run, or of several runs how healthy each is."""
        shown = [run for run in self._runs.names() if run["shown"]]
        if len(shown) == 1:
            self._runs.open(shown[0]["name"])
        elif shown:
            self._runs.health()

    def __call__(self, route: str, args: Mapping[str, str]) -> Answer:
        """Answer a request. An invalid request gets a status of 4xx and a message."""
        try:
            if route not in self._routes:
                raise NotFound(f"there is no {route!r}; there are {', '.join(self._routes)}")
            answer = self._routes[route](args)
        except BadRequest as error:
            return Answer(400, JSON, to_json({"error": str(error)}))
        except NotFound as error:
            return Answer(404, JSON, to_json({"error": str(error)}))
        # A file of the run was deleted or became unreadable. The next request refreshes the index.
        except OSError as error:
            return Answer(503, JSON, to_json({"error": f"{error.filename}: {error.strerror or error}"}))
        return Answer(200, BINARY, answer) if isinstance(answer, bytes) else Answer(200, JSON, to_json(answer))

    def _open(self, args: Mapping[str, str]) -> RunSource:
        name = _text(args, "run")
        run = self._runs.open(name)
        if run is None:
            raise NotFound(f"there is no run {name!r}")
        return run

    def _table(self, args: Mapping[str, str]) -> tuple[RunSource, str, str]:
        run, tensor, stat = self._open(args), _text(args, "tensor"), _text(args, "stat")
        if (tensor, stat) not in run.tables():
            raise NotFound(f"there is no table of {tensor!r} {stat!r} in run {args['run']!r}")
        return run, tensor, stat

    def _run(self, args: Mapping[str, str]) -> Any:
        """What the page must know of a run at first.

        `checks` says which health rules looked, `earlier_fit` is the command that shows the findings of the fit before,
        `records` lists the flight records, `strip` lists the scalars of the strip, its default first, and `doctor` is the
        command that examines the run.
        """
        run = self._open(args)
        tensors: dict[str, list[str]] = {}
        ends: list[int] = []
        for tensor, stat in run.tables():
            tensors.setdefault(tensor, []).append(stat)
            steps = run.steps(tensor, stat)
            ends += [*steps[:1].tolist(), *steps[-1:].tolist()]
        findings = run.findings()
        return {
            "version": run.version,
            "history": run.history,
            "steps": [min(ends), max(ends)] if ends else None,
            "tensors": [{"tensor": tensor, "stats": stats} for tensor, stats in tensors.items()],
            "scalars": run.scalar_tags(),
            "histograms": run.histogram_tags(),
            "findings": None if findings is None else with_curves(run, findings),
            "checks": run.checks(),
            "earlier_fit": _command_for_earlier_fit(run),
            "records": listed(run.records()),
            "strip": strip_tags(run),
            "doctor": None if run.place is None else f"lightning-hooks doctor {shlex.quote(run.place)}",
            "problems": run.problems(),
        }

    def _glimpse(self, args: Mapping[str, str]) -> Any:
        found = self._runs.glimpse(_text(args, "run"))
        if found is None:
            raise NotFound(f"there is no run {args['run']!r}")
        return found

    def _record(self, args: Mapping[str, str]) -> Any:
        run, name = self._open(args), _text(args, "record")
        record = run.records().get(name)
        if record is None:
            raise NotFound(f"there is no flight record {name!r} in run {args['run']!r}")
        return whole(name, record, run.place)

    def nodes(self, run: RunSource, tensor: str, stat: str) -> tuple[str, list[Node]]:
        """The tree of the rows of a table, and a key that changes with it."""
        trees = self._trees.setdefault(run, {})
        version, key, nodes = trees.get((tensor, stat), (None, "", []))
        if version != run.version:
            names, about = run.rows(tensor, stat), run.about()
            content = json.dumps([names, {name: about[name].get("order") for name in names if name in about}])
            key, nodes = hashlib.blake2b(content.encode(), digest_size=8).hexdigest(), tree(names, about)
            trees[tensor, stat] = run.version, key, nodes
        return key, nodes

    def _rows(self, args: Mapping[str, str]) -> Any:
        run, tensor, stat = self._table(args)
        key, nodes = self.nodes(run, tensor, stat)
        about = run.about()
        steps = run.steps(tensor, stat)
        facts = {"steps": progressions(steps), "unit": unit_of(steps), "exact": merges_exactly(run, tensor, stat)}
        facts["positive"] = stat in POSITIVE
        facts["windows"] = windows_of(run, tensor, stat)
        structures = [each.get("structure") for each in run.row_indices()]
        described = details(structures, about)
        cancelled = cancelled_biases((node.name for node in nodes if node.row is not None), about, structures)
        return {"key": key, **facts, "nodes": [node.as_json(about, described, cancelled) for node in nodes]}

    def _current(self, args: Mapping[str, str], name: str) -> tuple[RunSource, list[Node]]:
        """The run and the nodes of the requested table.

        Raises:
            BadRequest: the argument `name` is not the current key of the nodes, so the page has outdated rows.
        """
        run, tensor, stat = self._table(args)
        key, nodes = self.nodes(run, tensor, stat)
        if _text(args, name) != key:
            raise BadRequest(f"{name}: the rows of this table have changed; ask for them again")
        return run, nodes

    def _tile(self, args: Mapping[str, str]) -> bytes:
        (run, nodes), tensor, stat = self._current(args, "key"), args["tensor"], args["stat"]
        width = _whole(args, "unit", 1, _MAX_STEP) << _whole(args, "level", 0, MAX_LEVEL)
        first, last = _whole(args, "first", 0, _MAX_STEP), _whole(args, "last", 0, _MAX_STEP)
        chosen = _chosen(_text(args, "nodes"), len(nodes))
        if not first < last or (last - first) * len(chosen) > MAX_CELLS:
            raise BadRequest(f"first, last: {first} to {last} of {len(chosen)} nodes is not from 1 to {MAX_CELLS} cells")
        if last * width > 1 << 62:
            raise BadRequest("level: the steps of these cells are beyond any run")
        if "other" not in args:
            return tile(run, tensor, stat, [nodes[i] for i in chosen], width, first, last).bytes()
        other, other_nodes = self._current({**args, "run": args["other"]}, "other_key")
        # A module can be a row and a group of rows under one name, so match nodes by name and by being a row.
        counterparts = {(node.name, node.row is None): node for node in other_nodes}
        pairs = [(nodes[i], counterparts.get((nodes[i].name, nodes[i].row is None))) for i in chosen]
        return difference(run, other, tensor, stat, pairs, width, first, last, args.get("as") == "ratio").bytes()

    def _comparison(self, args: Mapping[str, str]) -> Any:
        run, tensor, stat = self._table(args)
        names = args["run"], _text(args, "other")
        other, *_ = self._table({**args, "run": names[1]})
        return comparison(run, other, tensor, stat, names)

    def _scalar(self, args: Mapping[str, str]) -> Any:
        run, tag = self._open(args), _text(args, "tag")
        if tag not in run.scalar_tags():
            raise NotFound(f"there is no scalar {tag!r} in run {args['run']!r}")
        steps, values = run.scalar(tag)
        last = float(values[-1]) if len(values) else None
        if "first" in args:
            bounds = _whole(args, "first", 0, _MAX_STEP), _whole(args, "last", 0, _MAX_STEP)
            # Add one point before the range and one behind it, so that the curve can be drawn up to both ends of the range.
            begin, end = max(np.searchsorted(steps, bounds[0]) - 1, 0), np.searchsorted(steps, bounds[1], side="right") + 1
            steps, values = steps[begin:end], values[begin:end]
        pieces = min(_whole(args, "points", 1, MAX_POINTS, default=1000), len(steps))
        starts = np.unique(np.linspace(0, len(steps), pieces, endpoint=False).astype(np.intp))
        if not len(starts):
            return {"steps": [], "ends": [], "least": [], "greatest": [], "mean": [], "nan": [], "last": last}
        least, greatest = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        finite = np.isfinite(values)
        counts, sums = np.add.reduceat(finite, starts, dtype=np.int64), np.add.reduceat(np.where(finite, values, 0.0), starts)
        mean = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
        nan = np.logical_or.reduceat(np.isnan(values), starts)
        return {
            "steps": steps[starts].tolist(),
            "ends": steps[np.append(starts[1:], len(steps)) - 1].tolist(),
            "least": least.tolist(),
            "greatest": greatest.tolist(),
            "mean": mean.tolist(),
            "nan": np.flatnonzero(nan).tolist(),
            "last": last,
        }

    def _histograms(self, args: Mapping[str, str]) -> Any:
        run = self._open(args)
        tags = run.histogram_tags()
        if not tags:
            raise NotFound(f"there are no histograms in run {args['run']!r}")
        chosen = [tags[i] for i in _chosen(_text(args, "tags"), len(tags), "tags")]
        steps = _whole(args, "steps", 1, 1000, default=60)
        if len(chosen) * steps > MAX_HISTOGRAMS:
            raise BadRequest(f"tags: {len(chosen)} tags at {steps} steps are more than {MAX_HISTOGRAMS} histograms")
        found = run.histograms(chosen, steps)
        return [packed_histograms(tag, found[tag]) for tag in chosen]


def to_json(value: Any) -> bytes:
    """A value as JSON. NaN and infinite numbers, which JSON does not have, become `{"float": "nan"}` and so on."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _command_for_earlier_fit(run: RunSource) -> str | None:
    fits = run.fits()
    return f"lightning-hooks doctor {shlex.quote(run.place)} --fit {fits - 1}" if run.place and fits > 1 else None


def _text(args: Mapping[str, str], name: str) -> str:
    if name not in args:
        raise BadRequest(f"{name}: missing")
    return args[name]


def _whole(args: Mapping[str, str], name: str, least: int, most: int, default: int | None = None) -> int:
    if default is not None and name not in args:
        return default
    text = _text(args, name)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not least <= number <= most:
        raise BadRequest(f"{name}: {text[:40]!r} is not a whole number from {least} to {most}")
    return number


def _chosen(text: str, count: int, argument: str = "nodes") -> list[int]:
    """The indices from ascending ranges such as `0-11,15`, each below `count`."""
    chosen: list[int] = []
    for interval in text.split(","):
        first, _, last = interval.partition("-")
        a, b = (_whole({argument: each}, argument, 0, count - 1) for each in (first, last or first))
        if b < a or (chosen and a <= chosen[-1]):
            raise BadRequest(f"{argument}: {interval[:40]!r} is not a range after the one before")
        chosen += range(a, b + 1)
    return chosen
