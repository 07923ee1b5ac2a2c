"""The facts about rows that an event file holds for the page of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lightning_hooks.plan.plan import LOSS_SCALED, Plan
from lightning_hooks.plan.rows import BATCH, GRADIENT


def about_rows(plan: Plan, shapes: Mapping[int, tuple[int, ...]], uncalled: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Facts about each row for the page of a run: the class of its module, the shape, and the position in execution order."""
    index, about = plan.index, dict[str, dict[str, Any]]()
    for row in plan.rows:
        if row.tensor in (GRADIENT, BATCH):
            continue
        facts = about.setdefault(row.name, {"type": index.module_types[row.index]})
        shape = shapes.get(row.index) if row.target.owner is row.target.value else tuple(row.target.value.shape)
        if shape is not None and (row.kind == "output" or "shape" not in facts):
            facts["shape"] = list(shape)
    # Gradients are computed from the last module to the first, so reverse their order.
    forward = [i for i in index.order if not index.tensors[i].startswith(LOSS_SCALED)]
    backward = [i for i in reversed(index.order) if index.tensors[i].startswith(LOSS_SCALED)]
    for turn, name in enumerate(dict.fromkeys(index.names[i] for i in [*forward, *backward])):
        about[name]["order"] = turn
    for name in uncalled:
        if name in about:
            about[name]["called"] = False
    return about
