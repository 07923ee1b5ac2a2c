"""Joins the modules of the page into one script.

A report needs one script because it is one file. A server offers one script because a browser that loads the modules one by one
learns of a module only from the modules that import it, and so waits for files five times in a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parent / "page"
MODULES: Final = (
    "vendor/uPlot.esm.js",
    "dom.js",
    "disclosure.js",
    "host.js",
    "marks.js",
    "worst.js",
    "titles.js",
    "clipboard.js",
    "controls.js",
    "colors.js",
    "ticks.js",
    "fuzzy.js",
    "picker.js",
    "keys.js",
    "patterns.js",
    "steps.js",
    "rows.js",
    "levels.js",
    "state.js",
    "source.js",
    "gaps.js",
    "loaded.js",
    "textures.js",
    "segments.js",
    "series.js",
    "maplabels.js",
    "usual.js",
    "charts.js",
    "severity.js",
    "skeleton.js",
    "sparkline.js",
    "runlist.js",
    "curve.js",
    "curvefield.js",
    "smoothing.js",
    "strip.js",
    "growth.js",
    "records.js",
    "cardactions.js",
    "findingcurve.js",
    "findings.js",
    "mapdraw.js",
    "crosshair.js",
    "mapinput.js",
    "heatmap.js",
    "usualmap.js",
    "coloring.js",
    "legend.js",
    "export.js",
    "maptools.js",
    "mapmodels.js",
    "mapview.js",
    "bins.js",
    "sheetdraw.js",
    "player.js",
    "sheetlayers.js",
    "sheet.js",
    "ridges.js",
    "modes.js",
    "overviewcharts.js",
    "runhead.js",
    "vitals.js",
    "overview.js",
    "rowview.js",
    "stepbars.js",
    "stepview.js",
    "trail.js",
    "recordview.js",
    "index.js",
    "inline.js",  # the entry point of a report, which reads the data from the document
)
"""The modules of the page, each after the modules that it imports.

They are joined into one script, so no two modules may use the same name at the top level.
"""
SERVED: Final = "page.js"
"""The name of the joined modules on a server."""


@cache
def served() -> bytes:
    """The modules of the page, except the entry point of a report, as one module that exports `render`."""
    return f"{joined(MODULES[:-1])}\nexport {{ render }};\n".encode()


def joined(modules: Sequence[str] = MODULES) -> str:
    """Modules of the page as one script, without imports and exports."""
    return "\n".join(_without_imports(PAGE / name) for name in modules)


_IMPORT = re.compile(r"^import\s[^;]*?;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:default )?(?=(?:async )?(?:function|class|const))", re.MULTILINE)
_EXPORTED = re.compile(r"^export \{[^}]*\};?\n?", re.MULTILINE)


def _without_imports(path: Path) -> str:
    """A module of the page without its imports and exports, to be joined with the other modules into one script."""
    text = path.read_text(encoding="utf-8").replace("</script", "<\\/script")
    # Put a vendored module into a function, so that its names do not clash with those of the page.
    if path.parent.name == "vendor":
        name = path.name.partition(".")[0]
        return f"const {name} = (() => {{ {_EXPORTED.sub('', text)} return {name}; }})();"
    return _EXPORTED.sub("", _EXPORT.sub("", _IMPORT.sub("", text)))
