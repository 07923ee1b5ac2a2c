"""The match report: what rules matched, as a table for a terminal or in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.engine.plan.rows import Row
from lightning_hooks.rules import OPTIMIZER_KINDS
from lightning_hooks.rules.patterns import Target

if TYPE_CHECKING:  # plans know neither transforms nor hooks of users
    from lightning_hooks.engine.change.bound import BoundTransform
    from lightning_hooks.engine.user_hooks.participant import BoundHook

# Measured on event files of this package: a scalar's tag and value, and its part of the table.
_BYTES_PER_TABLE_VALUE = 4
_BYTES_PER_SCALAR = 14  # besides the tag
_BYTES_PER_HISTOGRAM = 80  # besides the tag and the buckets
_BYTES_PER_BUCKET = 16
_USUAL_ELEMENTS = 4096  # of a tensor whose size is not known before it is seen


@dataclass(frozen=True)
class MatchLine:
    """One target of one rule.

    Args:
        rule: `watch[0]` or `apply[1]`.
        name: dotted name of the target.
        type: class of the module, or `Parameter`.
        shape: of a parameter, else empty.
        tensors: what is seen or changed of it.
        statistics: what is computed, or the transform.
        tags: how many tags it makes.
        bytes_per_1000_steps: what 1,000 logged steps of it take on disk.
        note: why a row may stay empty.
    """

    rule: str
    name: str
    type: str
    shape: str
    tensors: str
    statistics: str
    tags: int
    bytes_per_1000_steps: int
    note: str = ""


@dataclass(frozen=True)
class Match:
    """Everything that rules match; `print` it for a table."""

    lines: Sequence[MatchLine]

    @property
    def names(self) -> list[str]:
        """The distinct names of the targets, in order."""
        return list(dict.fromkeys(line.name for line in self.lines))

    @property
    def tags(self) -> int:
        """The number of tags."""
        return sum(line.tags for line in self.lines)

    @property
    def bytes_per_1000_steps(self) -> int:
        """The approximate size of 1,000 logged steps on disk, in bytes."""
        return sum(line.bytes_per_1000_steps for line in self.lines)

    def markdown(self) -> str:
        """A Markdown table."""
        head = "| rule | name | type | shape | tensors | statistics | tags | note |\n|---|---|---|---|---|---|---|---|"
        rows = [
            f"| {n.rule} | {n.name} | {n.type} | {n.shape} | {n.tensors} | {n.statistics} | {n.tags} | {n.note} |"
            for n in self.lines
        ]
        return "\n".join([head, *rows])

    def __str__(self) -> str:
        """A table for a terminal, with the totals below."""
        head = ("rule", "name", "type", "shape", "tensors", "statistics", "tags", "bytes/1k steps", "note")
        cells = [head] + [
            (
                n.rule,
                n.name,
                n.type,
                n.shape,
                n.tensors,
                n.statistics,
                str(n.tags),
                f"{n.bytes_per_1000_steps:,}",
                n.note,
            )
            for n in self.lines
        ]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        table = "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
        return (
            f"{table}\n{len(self.lines)} matches, {self.tags} tags, about {self.bytes_per_1000_steps / 1e6:.1f} MB "
            "on disk per 1,000 logged steps"
        )


def plan_report(plan: Plan) -> list[MatchLine]:
    """One line for each target of each watch rule.

    Args:
        plan: from `resolve`.
    """
    lines = []
    for position, found in enumerate(plan.rules):
        rule = f"watch[{position}]"
        in_group = {i: group.name for group in found.groups for i in group.members}
        by_target: dict[int, list[Row]] = {}
        for row in map(plan.rows.__getitem__, found.members):
            by_target.setdefault(id(row.target.value), []).append(row)
        for kept in by_target.values():
            target = kept[0].target
            alone = [row for row in kept if row.index not in in_group]
            groups = dict.fromkeys(in_group[row.index] for row in kept if row.index in in_group)
            notes = [_note(target, kept), *(f"merged into {name}" for name in groups)]
            line = _line(rule, target.name, _type_of(target), _shape_of(target), alone, target)
            shown = replace(line, tensors=", ".join(row.tensor for row in kept), note="; ".join(filter(None, notes)))
            lines.append(shown if alone else replace(shown, statistics=""))
        for group in found.groups:
            name = f"group of {len(group.members)}"
            lines.append(_line(rule, group.name, name, "", [group], None))
    return lines


def _line(rule: str, name: str, kind: str, shape: str, written: Sequence[Row], target: Target[Any] | None) -> MatchLine:
    """The line of something that is written."""
    tags = [(stat, f"{row.tensor}_{stat}/{row.name}") for row in written for stat in row.stats]
    size = sum(len(tag) + _bytes_beside_tag(stat, target) for stat, tag in tags)
    statistics = ", ".join(dict.fromkeys(stat for stat, _ in tags))
    tensors = ", ".join(row.tensor for row in written)
    return MatchLine(rule, name, kind, shape, tensors, statistics, len(tags), 1000 * size)


def transforms_report(transforms: Sequence[BoundTransform]) -> list[MatchLine]:
    """One line for each target of each transform.

    Args:
        transforms: from `resolve_applies`.
    """
    lines = []
    for bound in transforms:
        tags = [f"transform_{what}/{bound.index}_{bound.name}" for what in ("norm_before", "norm_after", "acted", "cosine")]
        for position, target in enumerate(bound.targets):
            first = position == 0  # the report is one for the whole transform
            lines.append(
                MatchLine(
                    rule=bound.where.removesuffix(".transform"),
                    name=target.name,
                    type=_type_of(target),
                    shape=_shape_of(target),
                    tensors=f"{bound.tensor} ({bound.when})",
                    statistics=repr(bound.transform),
                    tags=len(tags) if first else 0,
                    bytes_per_1000_steps=1000 * sum(_BYTES_PER_SCALAR + len(tag) for tag in tags) if first else 0,
                    note=_note(target, ()),
                )
            )
    return lines


def hooks_report(hooks: Sequence[BoundHook]) -> list[MatchLine]:
    """One line for each target of each hook; one for the hook of an optimizer.

    Args:
        hooks: from `resolve_hooks`.
    """
    lines = []
    for hook in hooks:
        call = hook.rule.call
        shown = call if isinstance(call, str) else getattr(call, "__qualname__", None) or repr(call)
        for target in hook.targets:
            lines.append(
                MatchLine(
                    hook.where, target.name, _type_of(target), _shape_of(target), hook.rule.kind, shown, 0, 0, _note(target, ())
                )
            )
        if not hook.targets and hook.rule.kind in OPTIMIZER_KINDS:
            lines.append(MatchLine(hook.where, "(every optimizer)", "Optimizer", "", hook.rule.kind, shown, 0, 0))
    return lines


def capture_report(targets: Sequence[Target[nn.Module]], tensor: str, kept: str) -> list[MatchLine]:
    """One line for each module that is captured; its files grow with the batches, not with the steps that are logged.

    Args:
        targets: the modules.
        tensor: what is captured of them.
        kept: what is kept of it.
    """
    return [MatchLine("capture", t.name, _type_of(t), "", tensor, kept, 0, 0, _note(t, ())) for t in targets]


def _bytes_beside_tag(stat: str, target: Target[Any] | None) -> int:
    if stat != "histogram":
        return _BYTES_PER_TABLE_VALUE + _BYTES_PER_SCALAR
    value = None if target is None else target.value
    elements = _USUAL_ELEMENTS
    if isinstance(value, nn.Parameter) and not isinstance(value, UninitializedParameter):
        elements = max(1, value.numel())
    # The least of n ordinary magnitudes is about 1/n of the greatest: log2(n) buckets for each sign. A few elements
    # fill a bucket each, and have an empty one before it.
    return _BYTES_PER_HISTOGRAM + _BYTES_PER_BUCKET * min(2 * elements, round(2 * (math.log2(elements) + 3)))


def _type_of(target: Target[nn.Module] | Target[nn.Parameter]) -> str:
    return type(target.value).__name__


def _shape_of(target: Target[nn.Module] | Target[nn.Parameter]) -> str:
    value = target.value
    if isinstance(value, nn.Module):
        return ""
    return "not yet known" if isinstance(value, UninitializedParameter) else "×".join(map(str, value.shape)) or "scalar"


def _note(target: Target[nn.Module] | Target[nn.Parameter], rows: Sequence[Row]) -> str:
    if isinstance(target.value, nn.Parameter):
        return "" if target.value.requires_grad else "frozen: rows stay empty until it is trained"
    if any(row.kind == "input_grad" for row in rows):
        if isinstance(target.value, (nn.Embedding, nn.EmbeddingBag)):
            return "input_grad stays empty: the input is integer"
        return "input_grad stays empty where the input needs no gradient, as the data does not"
    return ""
