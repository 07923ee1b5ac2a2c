"""The pictures, as SVG written by hand: no plotting library is needed, and the text stays text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.output import RESULTS, read

_COLOURS = {"lightning_hooks": "#2563eb", "naive": "#f59e0b", "wandb.watch": "#9ca3af"}
_WORDS = {
    "lightning_hooks": "lightning_hooks: everything",
    "naive": "naive callback: .item() and add_scalar",
    "wandb.watch": 'wandb.watch(log="all", log_freq=1)',
}
_STYLE = "font-family:-apple-system,Segoe UI,Helvetica,Arial,sans-serif"


def overhead(rows: Sequence[dict[str, Any]]) -> str:
    """Bars of the step time over that of the unwatched step, by workload.

    Args:
        rows: of `peers.json`.
    """
    rows = [row for row in rows if "skipped" not in row]
    letters = list(dict.fromkeys(row["workload"] for row in rows))
    who = [name for name in _COLOURS if any(row["who"] == name for row in rows)]
    top, bar, gap, left, width = 64, 20, 34, 250, 760
    most = max([2.0, *(row["median"] for row in rows)])
    scale = (width - left - 70) / most
    parts = [_text(16, 24, "Step time when watched at every step, over the unwatched step", 15, weight=600)]
    for index, name in enumerate(who):
        x = 16 + index * 250
        parts += [_box(x, 36, 12, 12, _COLOURS[name]), _text(x + 18, 46, _WORDS[name], 11)]
    y = top
    for letter in letters:
        here = {row["who"]: row for row in rows if row["workload"] == letter}
        first = next(iter(here.values()))
        middle = y + len(here) * bar / 2
        parts += [_text(16, middle, f"{letter}  ({first['step_ms']:.0f} ms)", 13, weight=600)]
        parts += [_text(16, middle + 15, str(first["title"]), 10, fill="#57606a")]
        for name in who:
            if name in here:
                value = here[name]["median"]
                parts += [_box(left, y + 2, value * scale, bar - 4, _COLOURS[name])]
                parts += [_text(left + value * scale + 6, y + bar - 6, f"{value:.2f}×", 12)]
                y += bar
        y += gap
    line = left + scale  # where nothing is added
    parts.append(
        f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{top - 4}" y2="{y - gap + 4}" stroke="#1f2328" stroke-dasharray="3 3"/>'
    )
    return _svg(width, y, parts)


def scaling(rows: Sequence[dict[str, Any]]) -> str:
    """Microseconds a row over the number of rows, on a logarithmic axis.

    Args:
        rows: of `scaling.json`.
    """
    width, height, left, bottom = 560, 300, 60, 250
    most = max([1e-9, *(row["us_per_row"] for row in rows)]) * 1.15
    logs = [math.log10(row["rows"]) for row in rows]
    low, span = min(logs), max(max(logs) - min(logs), 1e-9)
    points = [
        (left + 20 + (log - low) / span * (width - left - 60), bottom - max(row["us_per_row"], 0.0) / most * (bottom - 50))
        for row, log in zip(rows, logs, strict=True)
    ]
    parts = [_text(16, 24, "Cost of a row and step, by the number of rows (µs)", 15, weight=600)]
    parts.append(f'<path d="M{left} 45V{bottom}H{width - 20}" fill="none" stroke="#57606a"/>')
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline points="{drawn}" fill="none" stroke="{_COLOURS["lightning_hooks"]}" stroke-width="2"/>')
    for (x, y), row in zip(points, rows, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_COLOURS["lightning_hooks"]}"/>')
        parts.append(_text(x, y - 9, f"{row['us_per_row']:.1f}", 11, anchor="middle"))
        parts.append(_text(x, bottom + 18, f"{row['rows']:,}", 11, anchor="middle"))
    parts.append(_text((left + width) / 2, bottom + 38, "rows", 11, anchor="middle", fill="#57606a"))
    return _svg(width, height, parts)


def draw(folder: Path = RESULTS, docs: Path = RESULTS.parent.parent / "docs") -> list[Path]:
    """Write the pictures of the files that are there.

    Args:
        folder: of the JSON files.
        docs: where the pictures go.
    """
    written = []
    for name, source, picture in (("overhead", "peers", overhead), ("scaling", "scaling", scaling)):
        found = read(source, folder)
        if found is not None:
            docs.mkdir(parents=True, exist_ok=True)
            written.append(docs / f"{name}.svg")
            written[-1].write_text(picture(found["rows"]))
    return written


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    # A white ground, so that the dark theme of a page does not swallow the text.
    inside = "\n".join([f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>', *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{_STYLE}">\n{inside}\n</svg>\n'


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" rx="2" fill="{fill}"/>'


def _text(x: float, y: float, words: str, size: int, weight: int = 400, anchor: str = "start", fill: str = "#1f2328") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}"'
    return f"<text {attributes}>{escape(words)}</text>"
