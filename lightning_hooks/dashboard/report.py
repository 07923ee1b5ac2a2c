"""Writes the page with the data of a run as one HTML file that opens without a server.

A report can be sent, attached to an experiment tracker, or shown in a notebook.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard.api import Api, to_json
from lightning_hooks.dashboard.bundle import PAGE, joined
from lightning_hooks.dashboard.runs import LocalRuns, has_mark
from lightning_hooks.dashboard.sheets import packed_histograms
from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.dashboard.tiles import Tile, tile, unit_of
from lightning_hooks.errors import RuleError
from lightning_hooks.tensorboard.run_files import runs_below
from lightning_hooks.whole_files import write_whole

LIMIT: Final = 5_000_000
"""The default limit for the size of a report in bytes."""
_WIDEST: Final = 1 << 61
"""The most steps of a cell before its width is doubled: the bounds of a cell must fit into 64 bits."""
_GAPS: Final = 16
"""The most cells for each step of a table."""
_STEPS_OF_HISTOGRAMS: Final = 60  # the most steps of each histogram in a report
_HISTOGRAMS_AT_ONCE: Final = 200  # rows that are read together
_SHARE_OF_HISTOGRAMS: Final = 0.2
"""The share of the limit that the histograms of a report may take."""
_CURVES: Final = 40  # the most curves of the strip, besides our global numbers
_POINTS: Final = 400  # the most points that a scalar keeps in a report


def write_report(
    run: Path, out: Path, limit: int = LIMIT, progress: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Write the report of a run.

    Args:
        run: the folder of the run, or one event file.
        out: the file to write.
        limit: the most bytes of the file; 5,000,000 by default. Neighbouring steps are joined, keeping extremes, until the
            file fits.
        progress: called before each table with the number of tables that are done, and of all tables.

    Returns:
        The size in bytes.

    Raises:
        RuleError: there is no run, the page can show nothing of it, the limit is too low, or the file cannot be written.
    """
    content = report(run, limit, progress).encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, content)
    except OSError as error:
        raise RuleError(f"out: {str(out)!r} cannot be written ({error.strerror}); choose another file with --out") from None
    return len(content)


def report(run: Path, limit: int = LIMIT, progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """The report of a run as HTML; see `write_report`."""
    runs = LocalRuns(run)
    names = [each["name"] for each in runs.names()] if run.exists() else []
    if "." not in names:
        below = runs_below(run)
        how = "; without a TensorBoard logger, StatsMonitor(logdir='…') or instrument(…, logdir='…') writes one"
        raise RuleError(f"there is no event file in {str(run)!r}{below or how}")
    source = runs.open(".")
    if source is None or not _has_content(source):
        problems = "" if source is None else "; ".join(["", *source.problems()])
        raise RuleError(f"{str(run)!r} has no table of lightning_hooks and no scalar of a transform{problems}")
    api = Api(runs)
    page = _page().replace(
        "__DATA__", _packed(to_json(_answers(api, source, run.resolve().name, int(_SHARE_OF_HISTOGRAMS * limit))))
    )
    room = limit - len(page)  # bytes for the cells of all tables
    if room < 0:
        raise RuleError(f"limit: {limit} bytes is less than the {len(page)} of the page and of the names of the rows")
    lines = max(sum(len(api.nodes(source, *table)[1]) for table in source.tables()), 1)
    # Begin with more cells than fit, since it is not known how well they compress, and halve their number until they fit.
    tables = {}
    for done, (tensor, stat) in enumerate(source.tables()):
        progress(done, len(source.tables()))
        tables[f"{tensor}\n{stat}"] = _table(api, source, tensor, stat, max(16 * room // lines, 1))
    while True:
        packed = {name: [table.level, table.first, table.last, _packed(_bytes(table.cells))] for name, table in tables.items()}
        # Escape `<`: the name of a row could contain `</script`, which would end the script.
        content = to_json(packed).decode().replace("<", "\\u003c")
        if len(content) <= room or all(table.last - table.first <= 1 for table in tables.values()):
            return page.replace("__TABLES__", content)
        widest = max(table.last - table.first for table in tables.values())
        tables = {name: _coarser(table) if table.last - table.first > widest / 2 else table for name, table in tables.items()}


def _has_content(source: RunSource) -> bool:
    """Whether the page can show something of a run."""
    return bool(source.tables() or source.records()) or any(has_mark(tag.encode()) for tag in source.scalar_tags())


class _Table(NamedTuple):
    """The cells `first` to `last - 1` of a table at a level: a cell has `unit << level` steps."""

    level: int
    first: int
    last: int
    cells: Tile


def _table(api: Api, source: RunSource, tensor: str, stat: str, cells: int) -> _Table:
    """The cells of a table, no more than `cells` for each row."""
    _, nodes = api.nodes(source, tensor, stat)
    steps, level = source.steps(tensor, stat), 0
    # If steps are far apart, most cells between them are empty. Limit their number, because each takes memory.
    cells = min(cells, _GAPS * len(steps))
    unit = unit_of(steps)
    if not len(steps):
        return _Table(0, 0, 1, tile(source, tensor, stat, nodes, unit, 0, 1))
    while (int(steps[-1]) // (unit << level)) - int(steps[0]) // (unit << level) >= cells and unit << level < _WIDEST:
        level += 1
    width = unit << level
    first, last = int(steps[0]) // width, int(steps[-1]) // width + 1
    return _Table(level, first, last, tile(source, tensor, stat, nodes, width, first, last))


def _coarser(table: _Table) -> _Table:
    """The table with pairs of neighbouring cells joined into one cell."""
    # At the next level cell i joins the cells 2i and 2i + 1. Pad with empty cells where one of a pair is missing.
    before, after = table.first % 2, table.last % 2

    def pairs(cells: NDArray[Any], fill: float) -> NDArray[Any]:
        padded = np.pad(cells, ((0, 0), (before, after)), constant_values=fill)
        return padded.reshape(len(cells), -1, 2)

    least, greatest, *counted = table.cells
    counts = (np.minimum(pairs(each, 0).sum(2, dtype=np.uint32), 65535).astype(np.uint16) for each in counted)
    cells = Tile(np.fmin.reduce(pairs(least, np.nan), axis=2), np.fmax.reduce(pairs(greatest, np.nan), axis=2), *counts)
    return _Table(table.level + 1, table.first // 2, (table.last + after) // 2, cells)


def _bytes(cells: Tile) -> bytes:
    """As `Tile.bytes`, but with `greatest` XOR `least`: if cells hold one step each, all bits are zero, and compress well."""
    differs = (cells.greatest.view(np.uint32) ^ cells.least.view(np.uint32)).view(np.float32)
    return cells._replace(greatest=differs).bytes()


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode()


def _answers(api: Api, source: RunSource, name: str, room: int) -> dict[str, Any]:
    """The answers to all requests that the page makes, except those for cells.

    Args:
        api: answers the requests.
        source: the run.
        name: of the run.
        room: bytes for histograms.
    """

    def ask(route: str, **args: str) -> Any:
        return json.loads(api(route, {"run": ".", **args}).body)

    meta, overview = ask("run"), ask("overview")
    strip, drawn = meta["strip"][:_CURVES], _histograms_that_fit(source, meta["histograms"], room)
    tags = [*dict.fromkeys([*overview["run"], *overview["transforms"], *strip])]
    return {
        "name": name,
        "runs": {"runs": [{"name": name, "shown": True, "modified": 0}]},
        # Drop the version and the history, which differ at every reading, so that the same run gives the same report.
        "run": meta
        | {
            "version": 0,
            "history": 0,
            "scalars": tags,
            "strip": [tag for tag in meta["strip"] if tag in tags],
            "histograms": [*drawn],
            "left_out": len(meta["histograms"]) - len(drawn),
        },
        "overview": overview,
        "vitals": ask("vitals"),
        "records": {each["name"]: ask("record", record=each["name"]) for each in meta["records"]},
        "statistics": ask("statistics"),
        "ranges": ask("ranges"),
        "scalars": {tag: ask("scalar", tag=tag, points=str(_POINTS)) for tag in tags},
        "histograms": drawn,
        "gaps": {f"{tensor}\n{stat}": ask("gaps", tensor=tensor, stat=stat) for tensor, stat in source.tables()},
        "rows": {f"{tensor}\n{stat}": ask("rows", tensor=tensor, stat=stat) for tensor, stat in source.tables()},
    }


def _histograms_that_fit(source: RunSource, tags: Sequence[str], room: int) -> dict[str, dict[str, Any]]:
    """The first histograms, as `packed_histograms` returns them, that take no more than `room` bytes when compressed."""
    found: dict[str, dict[str, Any]] = {}
    for first in range(0, len(tags), _HISTOGRAMS_AT_ONCE):
        for tag, points in source.histograms(tags[first : first + _HISTOGRAMS_AT_ONCE], _STEPS_OF_HISTOGRAMS).items():
            packed = packed_histograms(tag, points)
            room -= len(_packed(to_json(packed)))
            if room < 0:
                return found
            found[tag] = packed
    return found


def _page() -> str:
    """The page without data, in one file."""
    styles = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "style.css"))
    script = joined()
    # The policy lets the browser run only the script with this hash.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>lightning_hooks</title>'
        f'<link rel="icon" href="data:,"><style data-inlined>{styles}</style></head><body>'
        '<script id="data" type="application/octet-stream">__DATA__</script>'
        '<script id="tables" type="application/json">__TABLES__</script>'
        f'<script type="module">{script}</script></body></html>\n'
    )
