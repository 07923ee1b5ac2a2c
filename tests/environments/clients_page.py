"""docs/clients.md, from the results of `make clients`."""

from __future__ import annotations

from typing import Any

VARIANTS = ("default", "everything")
HEAD = (
    "package",
    "quick start",
    "weights and predictions",
    "what it saved, loaded without lightning_hooks",
    "hooks left",
    "written by default",
    "written by everything",
    "seconds: plain, default, everything",
)
INTRODUCTION = """\
# Packages built on Lightning

`make clients` writes this page. It installs each package into an environment of its own, trains its quick start on data made
by code, plain and watched, and compares weights and predictions bit by bit. Packages and scripts are unmodified: the
callbacks come from `LIGHTNING_HOOKS_CONFIG`. *Default* is `StatsMonitor()`. *Everything* watches all tensors of every module
and parameter with histograms, and clips gradients at a norm that is never reached. What each run saved is loaded in a process
in which lightning_hooks cannot be imported, and its weights and predictions are compared. Seconds are those of the whole
process, start-up included, on a shared machine.
"""


def page(results: dict[str, Any]) -> str:
    """The text of the page.

    Args:
        results: by the name of the package, as in clients.json.
    """
    ran = sorted({f"{result['environment']} ({result['date']})" for result in results.values() if "environment" in result})
    rows = [HEAD, ("---",) * len(HEAD), *(_row(name, result) for name, result in sorted(results.items()))]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"{INTRODUCTION}\nRun with {'; '.join(ran)}.\n\n{table}\n"


def _row(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    start = (f"{name} {result.get('version', '')}".strip(), result["what"])
    if "error" in result:
        return (*start, f"not run: {result['error']}", *[""] * (len(HEAD) - 3))
    facts = result["facts"]
    left = [message for variant in VARIANTS for message in facts[variant]["left"]]
    seconds = [facts["seconds"], *(facts[variant]["seconds"] for variant in VARIANTS)]
    return (
        *start,
        _identical(facts, "trained"),
        _identical(facts, "loaded"),
        "; ".join(left[:2]) or "none",
        *(_written(facts[variant]["written"]) for variant in VARIANTS),
        ", ".join(f"{each:.0f}" for each in seconds),
    )


def _identical(facts: dict[str, Any], part: str) -> str:
    if facts["again"].get(part):
        return f"two plain runs differ: {', '.join(facts['again'][part][:3])}"
    different = {variant: facts[variant][part] for variant in VARIANTS if facts[variant][part]}
    if different:
        words = (f"{', '.join(names[:3])} ({len(names)}) with {variant}" for variant, names in different.items())
        return f"**different:** {'; '.join(words)}"
    return "identical ({weights} and {predictions} arrays)".format(**facts["arrays"][part])


def _written(facts: dict[str, Any]) -> str:
    if not facts["runs"]:
        return "nothing"
    histograms = f", {facts['histograms']} histograms" if facts["histograms"] else ""
    files = f"{facts['runs']} event file{'s' if facts['runs'] > 1 else ''}"
    return f"{facts['scalars']} scalars{histograms}; {facts['bytes'] / 1e6:.1f} MB in {files}"
