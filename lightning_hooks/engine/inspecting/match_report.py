"""The match report: what rules matched, as a table for a terminal or in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.engine.inspecting.left_out import LeftOut
from lightning_hooks.engine.participants.actions import gradient_of
from lightning_hooks.engine.user_hooks.participant import BoundHook
from lightning_hooks.errors import printable
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import Row
from lightning_hooks.records.limits import Limits
from lightning_hooks.rules import OPTIMIZER_KINDS
from lightning_hooks.rules.patterns import Target
from lightning_hooks.stats.accumulators import MOMENTS
from lightning_hooks.stats.stored import stored_moments

# Sizes in event files, as measured on files of this package.
_BYTES_PER_TABLE_VALUE = 4
_BYTES_PER_SCALAR = 14  # without the tag
_BYTES_PER_HISTOGRAM = 80  # without the tag and the buckets
_BYTES_PER_ROW_OF_COUNTS = 8  # the lengths of its bytes and of its runs of buckets
_BYTES_PER_COUNT = 2
_BYTES_PER_BUCKET = 16
_USUAL_ELEMENTS = 4096  # assumed of a module's output, whose size is not known before a forward pass


@dataclass(frozen=True)
class MatchLine:
    """One target of one rule.

    Args:
        rule: `watch[0]` or `apply[1]`.
        name: dotted name of the target.
        type: class of the module, or `Parameter`.
        shape: shape of the parameter, or of the first watched tensor of the module if it is known.
        tensors: the tensors of the target that are watched or changed.
        statistics: the statistics, or the transform.
        tags: the number of tags that are written.
        bytes_per_1000_steps: the size of 1,000 logged steps on disk.
        note: why rows of the target may stay empty.
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
    """Everything that rules match; `print` it for a table.

    Args:
        lines: the targets.
        left_out: the modules that rules with `select` leave out, such as the default rules.
    """

    lines: Sequence[MatchLine]
    left_out: Sequence[LeftOut] = ()

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
        heads = ("rule", "name", "type", "shape", "tensors", "statistics", "tags", "note")
        rows = (heads, *([str(getattr(line, head)) for head in heads] for line in self.lines))
        head, *below = (f"| {' | '.join(row)} |" for row in rows)
        table = "\n".join([head, f"|{'---|' * len(heads)}", *below])
        return "\n".join([table, "", *(f"- {each}" for each in self.left_out)]) if self.left_out else table

    def __str__(self) -> str:
        """A table for a terminal, with the totals and what rules leave out below."""
        heads = ("rule", "name", "type", "shape", "tensors", "statistics", "tags", "bytes/1k steps", "note")
        lines = [(*astuple(line)[:-2], f"{line.bytes_per_1000_steps:,}", line.note) for line in self.lines]
        cells = [heads, *(tuple(printable(str(cell)) for cell in line) for line in lines)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        table = "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
        total = (
            f"{len(self.lines)} matches, {self.tags} tags, about {self.bytes_per_1000_steps / 1e6:.1f} MB "
            "on disk per 1,000 logged steps"
        )
        return "\n".join([table, total, *(printable(str(each)) for each in self.left_out)])


def plan_report(
    plan: Plan,
    shapes: Mapping[int, tuple[int, ...]] | None = None,
    limits: Limits | None = None,
    histogram_every_n_steps: int = 1,
    stage: str = "train",
) -> list[MatchLine]:
    """One line for each target of each watch rule, and one for each group.

    Args:
        plan: the resolved rules.
        shapes: the shapes of modules' tensors by row, as far as they are known.
        limits: the limits of the run, because of which rows may have no tags of their own; None for none.
        histogram_every_n_steps: the number of steps between two histograms of a row.
        stage: the stage of the plan.
    """

    def written(rows: Sequence[Row], target: Target[Any] | None) -> dict[str, Any]:
        """The fields of a line about what is written for rows; `target` is None for a group."""
        pairs = [(row, stat) for row in rows for stat in row.stats]
        tagged = [pair for pair in pairs if limits is None or limits.has_tag(stage, pair[0].tensor, pair[1], pair[0].name)]
        size = sum(1000 * _BYTES_PER_TABLE_VALUE * _stored(row, magnitudes=plan.index.magnitudes) for row in rows)
        size += sum(1000 * _bytes_of_counts(target) // histogram_every_n_steps for row, stat in pairs if stat == "histogram")
        for row, stat in tagged:
            each = 1000 * (len(f"{row.tensor}_{stat}/{row.name}") + _bytes_beside_tag(stat, target))
            size += each // histogram_every_n_steps if stat == "histogram" else each
        statistics = ", ".join(dict.fromkeys(stat for _, stat in pairs))
        return {"statistics": statistics, "tags": len(tagged), "bytes_per_1000_steps": size}

    shapes = shapes or {}
    lines = []
    for position, resolved in enumerate(plan.rules):
        rule = f"watch[{position}]"
        group_of = {i: group.name for group in resolved.groups for i in group.members}
        by_target: dict[int, list[Row]] = {}
        for row in map(plan.rows.__getitem__, resolved.members):
            by_target.setdefault(id(row.target.value), []).append(row)
        for rows in by_target.values():
            target = rows[0].target
            alone = [row for row in rows if row.index not in group_of]
            groups = dict.fromkeys(group_of[row.index] for row in rows if row.index in group_of)
            note = "; ".join(filter(None, [_note(target, rows), *(f"merged into {name}" for name in groups)]))
            line = _target_line(rule, target, ", ".join(row.tensor for row in rows), "")
            known = next((shapes[row.index] for row in rows if row.index in shapes), None)
            shape = line.shape if known is None else _shown(known)
            lines.append(replace(line, shape=shape, note=note, **written(alone, target)))
        for group in resolved.groups:
            line = MatchLine(rule, group.name, f"group of {len(group.members)}", "", group.tensor, "", 0, 0)
            lines.append(replace(line, **written([group], None)))
    return lines


def transforms_report(transforms: Sequence[BoundTransform]) -> list[MatchLine]:
    """One line for each target of each transform; the tags of its report are counted at the first."""
    lines = []
    for bound in transforms:
        rule, tensors = _rule(bound.where).removesuffix(".transform"), f"{bound.tensor} ({bound.when})"
        of_targets = [_target_line(rule, target, tensors, repr(bound.transform)) for target in bound.targets]
        tags = [f"transform_{what}/{bound.index}_{bound.name}" for what in ("norm_before", "norm_after", "acted", "cosine")]
        size = 1000 * sum(_BYTES_PER_SCALAR + len(tag) for tag in tags)
        lines += [replace(line, tags=len(tags), bytes_per_1000_steps=size) for line in of_targets[:1]] + of_targets[1:]
    return lines


def hooks_report(hooks: Sequence[BoundHook]) -> list[MatchLine]:
    """One line for each target of each hook; the hook of an optimizer has one line."""
    lines = []
    for hook in hooks:
        rule, kind, shown = _rule(hook.where), hook.rule.kind, hook.rule.shown
        lines += [_target_line(rule, target, kind, shown) for target in hook.targets]
        if kind in OPTIMIZER_KINDS:
            lines.append(MatchLine(rule, "(every optimizer)", "Optimizer", "", kind, shown, 0, 0))
    return lines


def capture_report(targets: Sequence[Target[nn.Module]], tensor: str, kept: str) -> list[MatchLine]:
    """One line for each captured module. No size is given: files grow with the batches, not with the logged steps."""
    return [_target_line("capture", target, tensor, kept) for target in targets]


def _target_line(rule: str, target: Target[Any], tensors: str, statistics: str) -> MatchLine:
    """A line for a target, without tags and bytes."""
    value = target.value
    shape = ""
    if isinstance(value, UninitializedParameter):
        shape = "not yet known"
    elif isinstance(value, Tensor):
        shape = _shown(value.shape)
    return MatchLine(rule, target.name, type(value).__name__, shape, tensors, statistics, 0, 0, _note(target, ()))


def _stored(row: Row, *, magnitudes: bool) -> int:
    """How many numbers of a row are in the table of an event: its moments, and statistics that do not follow from moments."""
    others = [stat for stat in row.stats if stat not in ("ratio", "histogram") and not MOMENTS.serves(stat)]
    return len(stored_moments(magnitudes=magnitudes)) + len(others) if row.stats else 0


def _bytes_beside_tag(stat: str, target: Target[Any] | None) -> int:
    return _BYTES_PER_HISTOGRAM + _BYTES_PER_BUCKET * _buckets(target) if stat == "histogram" else _BYTES_PER_SCALAR


def _bytes_of_counts(target: Target[Any] | None) -> int:
    """The bytes of the histogram of a row in the table of an event."""
    return _BYTES_PER_ROW_OF_COUNTS + _BYTES_PER_COUNT * _buckets(target)


def _buckets(target: Target[Any] | None) -> int:
    """How many buckets of the histogram of a target are usually occupied."""
    value = None if target is None else target.value
    elements = _USUAL_ELEMENTS
    if isinstance(value, Tensor) and not isinstance(value, UninitializedParameter):
        elements = max(1, value.numel())
    # The smallest of n typical magnitudes is about 1/n of the largest, so each sign has about log2(n) buckets. But n elements
    # fill at most n buckets, each with an empty bucket before it.
    return min(2 * elements, round(2 * (math.log2(elements) + 3)))


def _rule(where: str) -> str:
    """The name of a rule without its file."""
    return where.rpartition(": ")[2]


def _shown(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _note(target: Target[nn.Module] | Target[nn.Parameter], rows: Sequence[Row]) -> str:
    if isinstance(target.value, Tensor):
        return "" if target.value.requires_grad else "frozen: rows stay empty until it is trained"
    kind = next((row.kind for row in rows if gradient_of(row.kind)[0] == "input_grad"), None)
    if kind is not None:
        if isinstance(target.value, (nn.Embedding, nn.EmbeddingBag)):
            return f"{kind} stays empty: the input is integer"
        return f"{kind} stays empty where the input needs no gradient, as the data does not"
    return ""
