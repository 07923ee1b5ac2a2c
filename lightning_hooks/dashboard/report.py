"""The page as one file with the data of a run. It opens without a server: to send, to attach to a tracker, in a notebook."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard.api import Api, to_json
from lightning_hooks.dashboard.runs import LocalRuns, has_mark
from lightning_hooks.dashboard.site import PAGE
from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.dashboard.tiles import Tile, tile, unit_of
from lightning_hooks.errors import RuleError
from lightning_hooks.tensorboard.run_files import runs_below

LIMIT: Final = 5_000_000
"""Bytes of a report."""
MODULES: Final = (
    "vendor/uPlot.esm.js",
    "dom.js",
    "host.js",
    "controls.js",
    "colors.js",
    "patterns.js",
    "steps.js",
    "rows.js",
    "state.js",
    "source.js",
    "loaded.js",
    "segments.js",
    "series.js",
    "charts.js",
    "mapdraw.js",
    "mapinput.js",
    "heatmap.js",
    "legend.js",
    "export.js",
    "maptools.js",
    "mapview.js",
    "overview.js",
    "rowview.js",
    "stepview.js",
    "index.js",
    "inline.js",
)
"""Every module after those that it imports: they become one script, so their names at the top level differ."""
_WIDEST: Final = 1 << 61
"""Steps of a cell: the steps of twice as wide ones are the last that are numbers of 64 bits."""
_GAPS: Final = 16
"""Cells for each step of a table, at most."""
_STEPS_OF_HISTOGRAMS: Final = 60
_HISTOGRAMS: Final = 40
_POINTS: Final = 400


def write_report(run: Path, out: Path, limit: int = LIMIT) -> int:
    """Write the report of a run.

    Args:
        run: its folder, or one event file.
        out: the file to write.
        limit: the most bytes that it may have. Steps are joined, keeping extremes, until it fits.

    Returns:
        The size in bytes.

    Raises:
        RuleError: there is no run, or nothing to show of it, or the file cannot be written.
    """
    content = report(run, limit).encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content)
    except OSError as error:
        raise RuleError(f"out: {str(out)!r} cannot be written ({error.strerror}); choose another file with --out") from None
    return len(content)


def report(run: Path, limit: int = LIMIT) -> str:
    """The report of a run as HTML; see `write_report`."""
    runs = LocalRuns(run)
    names = [each["name"] for each in runs.names()] if run.exists() else []
    if "." not in names:
        raise RuleError(f"there is no event file in {str(run)!r}{runs_below(run)}")
    source = runs.open(".")
    if source is None or not (source.tables() or any(has_mark(tag.encode()) for tag in source.scalar_tags())):
        problems = "" if source is None else "; ".join(["", *source.problems()])
        raise RuleError(f"{str(run)!r} has no table of lightning_hooks and no scalar of a transform{problems}")
    api = Api(runs)
    page = _page().replace("__DATA__", _packed(to_json(_answers(api, source, run.resolve().name))))
    room = limit - len(page)
    if room < 0:
        raise RuleError(f"limit: {limit} bytes is less than the {len(page)} of the page and of the names of the rows")
    lines = max(sum(len(api.nodes(source, *table)[1]) for table in source.tables()), 1)
    tables = {
        f"{tensor}\n{stat}": _table(api, source, tensor, stat, max(16 * room // lines, 1)) for tensor, stat in source.tables()
    }
    while True:
        packed = {name: [table.level, table.first, table.last, _packed(_bytes(table.cells))] for name, table in tables.items()}
        content = to_json(packed).decode().replace("<", "\\u003c")  # a name of a tensor may be markup
        if len(content) <= room or all(table.last - table.first <= 1 for table in tables.values()):
            return page.replace("__TABLES__", content)
        widest = max(table.last - table.first for table in tables.values())
        tables = {name: _coarser(table) if table.last - table.first > widest / 2 else table for name, table in tables.items()}


class _Table(NamedTuple):
    """The cells of a table, from `first` to `last` of a level."""

    level: int
    first: int
    last: int
    cells: Tile


def _table(api: Api, source: RunSource, tensor: str, stat: str, cells: int) -> _Table:
    """A table with at most so many cells a row."""
    _, nodes = api.nodes(source, tensor, stat)
    steps, level = source.steps(tensor, stat), 0
    cells = min(cells, _GAPS * len(steps))  # steps that are far apart take memory for the cells between them
    unit = unit_of(steps)
    if not len(steps):
        return _Table(0, 0, 1, tile(source, tensor, stat, nodes, unit, 0, 1))
    while (int(steps[-1]) // (unit << level)) - int(steps[0]) // (unit << level) >= cells and unit << level < _WIDEST:
        level += 1
    width = unit << level
    first, last = int(steps[0]) // width, int(steps[-1]) // width + 1
    return _Table(level, first, last, tile(source, tensor, stat, nodes, width, first, last))


def _coarser(table: _Table) -> _Table:
    """Two cells as one."""
    before, after = table.first % 2, table.last % 2  # cells that are missing of a pair

    def pairs(cells: NDArray[Any], fill: float) -> NDArray[Any]:
        padded = np.pad(cells, ((0, 0), (before, after)), constant_values=fill)
        return padded.reshape(len(cells), -1, 2)

    least, greatest, nan, infinite = table.cells
    counts = (np.minimum(pairs(each, 0).sum(2, dtype=np.uint32), 65535).astype(np.uint16) for each in (nan, infinite))
    cells = Tile(np.fmin.reduce(pairs(least, np.nan), axis=2), np.fmax.reduce(pairs(greatest, np.nan), axis=2), *counts)
    return _Table(table.level + 1, table.first // 2, (table.last + after) // 2, cells)


def _bytes(cells: Tile) -> bytes:
    """As `Tile.bytes`, but of the greatest what differs from the least, which is nothing where a cell is one step."""
    differs = (cells.greatest.view(np.uint32) ^ cells.least.view(np.uint32)).view(np.float32)
    return cells._replace(greatest=differs).bytes()


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode()


def _answers(api: Api, source: RunSource, name: str) -> dict[str, Any]:
    """What the page asks of a server, answered beforehand, without cells."""

    def ask(route: str, **args: str) -> Any:
        return json.loads(api(route, {"run": ".", **args}).body)

    meta, overview = ask("run"), ask("overview")
    tags, drawn = [*overview["hooks"], *overview["transforms"]], meta["histograms"][:_HISTOGRAMS]
    return {
        "name": name,
        "runs": {"runs": [{"name": name, "shown": True, "modified": 0}]},
        # The version and the history are of this reading: the same run gives the same bytes.
        "run": meta
        | {"version": 0, "history": 0, "scalars": tags, "histograms": drawn, "left_out": len(meta["histograms"]) - len(drawn)},
        "overview": overview,
        "statistics": ask("statistics"),
        "scalars": {tag: ask("scalar", tag=tag, points=str(_POINTS)) for tag in tags},
        "histograms": {tag: ask("histogram", tag=tag, steps=str(_STEPS_OF_HISTOGRAMS)) for tag in drawn},
        "rows": {f"{tensor}\n{stat}": ask("rows", tensor=tensor, stat=stat) for tensor, stat in source.tables()},
    }


def _page() -> str:
    """The page without data, in one file."""
    styles = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "style.css"))
    script = "\n".join(_joined(PAGE / name) for name in MODULES)
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()  # no other script runs
    policy = f"default-src 'none'; script-src 'sha256-{known}'; style-src 'unsafe-inline'; img-src data: blob:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>lightning_hooks</title>'
        f'<link rel="icon" href="data:,"><style data-inlined>{styles}</style></head><body>'
        '<script id="data" type="application/octet-stream">__DATA__</script>'
        '<script id="tables" type="application/json">__TABLES__</script>'
        f'<script type="module">{script}</script></body></html>\n'
    )


_IMPORT = re.compile(r"^import\s[^;]*?;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:default )?(?=(?:async )?(?:function|class|const))", re.MULTILINE)
_EXPORTED = re.compile(r"^export \{[^}]*\};?\n?", re.MULTILINE)


def _joined(path: Path) -> str:
    """A module as a part of one script."""
    text = path.read_text(encoding="utf-8").replace("</script", "<\\/script")
    if path.parent.name == "vendor":  # its names stay inside
        name = path.name.partition(".")[0]
        return f"const {name} = (() => {{ {_EXPORTED.sub('', text)} return {name}; }})();"
    return _EXPORTED.sub("", _EXPORT.sub("", _IMPORT.sub("", text)))
