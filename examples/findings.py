"""Print a summary of a finished run: `python examples/findings.py runs/digits`."""

import shlex
import sys
from pathlib import Path

import numpy as np

from lightning_hooks import read_run

# Charts that are not about one row: the global summaries, and what the model and Lightning log themselves.
TENSORS = ("input", "output", "input_grad", "output_grad", "param", "grad", "final_grad", "update")


def rows_of(tags: list[str]) -> set[tuple[str, str]]:
    """The (tensor, target) pairs behind tags such as `grad_norm/head.fc1.weight`."""
    rows = set()
    for tag in tags:
        chart, _, target = tag.partition("/")
        tensor = max((t for t in TENSORS if chart.startswith(t + "_")), key=len, default=None)
        if tensor is not None and target:
            rows.add((tensor, target))
    return rows


def safe(name: str) -> str:
    """A name from a file for a terminal, which would obey an escape sequence in it."""
    return name if name.isprintable() else ascii(name)


def findings(path: str) -> list[str]:
    """The lines to print about the run in the directory `path`."""
    scalars = {tag.removeprefix("watch/"): points for tag, points in read_run(path).scalars.items()}
    rows = rows_of(list(scalars))
    targets = {target for _, target in rows}
    lines = [f"tensors logged         {len(rows)} (of {len(targets)} modules and parameters)"]
    if "run/grad_norm" in scalars:
        steps, norms = (np.asarray(column) for column in scalars["run/grad_norm"])
        lines[0] += f", {len(steps)} steps"
        peak = int(np.nanargmax(norms)) if np.isfinite(norms).any() else 0
        ends = f"first {norms[0]:.4g}, last {norms[-1]:.4g}"
        lines.append(f"global gradient norm   {ends}, max {norms[peak]:.4g} at step {steps[peak]}")
    ratios = {
        tag.removeprefix("update_ratio/"): float(np.median(values))
        for tag, (_, values) in scalars.items()
        if tag.startswith("update_ratio/") and len(values)
    }
    if ratios:
        for word, name in (("smallest", min(ratios, key=ratios.get)), ("largest", max(ratios, key=ratios.get))):
            lines.append(f"{word + ' update ratio':<22} {ratios[name]:.3g} ({safe(name)}; median over the run)")
    if "run/nonfinite" in scalars:
        total = int(np.nansum(scalars["run/nonfinite"][1]))
        lines.append(f"non-finite values      {total if total else 'none'}")
    lines.append(f"show all curves        {Path(sys.executable).parent}/tensorboard --logdir {shlex.quote(str(path))}")
    return lines


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/findings.py RUN_DIRECTORY")
    if not Path(sys.argv[1]).is_dir():
        sys.exit(f"{sys.argv[1]} is not a directory; 'make demo' makes runs/digits")
    print("\n".join(findings(sys.argv[1])))


if __name__ == "__main__":
    main()
