"""`Watch`: the rule that selects tensors and the statistics to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.rules.fields import (
    GroupSpec,
    ScheduleSpec,
    StatSpec,
    TypeSpec,
    as_count,
    check_expressions,
    check_one_target,
    check_select,
    normalise,
    short_repr,
)
from lightning_hooks.rules.schedule import every_n
from lightning_hooks.rules.statistics import UNIT_STATS, check_statistic
from lightning_hooks.rules.tensors import check_tensor
from lightning_hooks.rules.units import Units, as_units


@dataclass(frozen=True)
class Watch:
    """Which tensors to watch, and which statistics to compute.

    Args:
        modules: patterns of module names. Give exactly one of `modules` and `params`.
        params: patterns of parameter names.
        types: only modules (or parameters of modules) of these classes, by class name, import path or class; default: all.
        select: `all` (default); `leaves`, modules without children; or `layers`, the layers of the network, as the default
            rules do: modules that have no children or own parameters, without metrics, losses and modules that torch never
            calls.
        tensors: of a module `input`, `output`, `input_grad`, `output_grad` (or one part: `output[0]`, `output.logits`), and
            `inner_input_grad`, `inner_output_grad`: the same gradients in every backward pass except that of the loss;
            of a parameter `param`, `grad`, `final_grad`, `update`, `state.<key>` (an entry of the optimizer's state:
            `state.exp_avg_sq`). Default: `output` and `output_grad`, or `param`, `grad` and `update`.
        stats: names of statistics, callables, accumulators, import paths or `torchmetrics.Metric` classes. Default: `mean`,
            `std`, `norm`, `abs_max`, `zero_fraction`, `nonfinite`, and `ratio` for `update`; a StatsMonitor then also
            measures histograms, at its `histogram_every_n_steps`. A function is named by its `__name__`, an object by its
            class; different statistics of the same name become `name`, `name_2`, … in the order of the rules.
        group_by: merge rows of the rule exactly. A number merges by blocks of that depth of the module tree. A list of
            patterns makes one group per pattern; a mapping also names the groups. The first matching pattern counts, and a
            target without a match keeps its own row. Default: no groups.
        every_n_steps: the schedule of this rule; default: the schedule of the monitor.
        units: measure each unit (channel, feature, head, expert) of modules' tensors: `auto`, or `Units` (a mapping of its
            fields in YAML). The statistics of units are then added to `stats`. A statistic of units in `stats` implies `auto`.
            A rule without `every_n_steps` measures units at every tenth step. Default: no units.
        strict: whether a rule that matches nothing, or an optimizer without the key of a `state.<key>`, is an error (default)
            or a warning.

    Raises:
        RuleError: a field has an invalid value.

    Example:
        >>> Watch(params="*.weight", tensors=["grad"], stats="norm")
        Watch(params='*.weight', tensors=('grad',), stats=('norm',))
    """

    modules: str | Sequence[str] | None = None
    _: KW_ONLY
    params: str | Sequence[str] | None = None
    types: TypeSpec | Sequence[TypeSpec] | None = None
    select: str = "all"
    tensors: str | Sequence[str] | None = None
    stats: StatSpec | Sequence[StatSpec] | None = None
    group_by: GroupSpec | None = None
    every_n_steps: ScheduleSpec | None = None
    strict: bool = True
    units: str | Units | Mapping[str, Any] | None = None
    is_written: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check and normalise the fields."""
        check_one_target(self)
        normalise(self)
        for tensor in self.tensors or ():
            check_tensor(tensor, self.modules is not None, "tensors")
        for i, stat in enumerate(self.stats if isinstance(self.stats, tuple) else ()):
            check_statistic(stat, self.watched, f"stats[{i}]")
        check_select(self)
        object.__setattr__(self, "units", as_units(self.units))
        if self.group_by is not None:
            _check_groups(self)
        if self.every_n_steps is not None:
            every_n(self.every_n_steps, "every_n_steps")
        _check_units(self)

    @property
    def has_units(self) -> bool:
        """Whether the rule has `units`, or a statistic of units in `stats`."""
        named = self.stats if isinstance(self.stats, tuple) else ()
        return self.units is not None or any(isinstance(stat, str) and stat in UNIT_STATS for stat in named)

    @property
    def watched(self) -> Sequence[str]:
        """The tensors that the rule watches: `tensors`, or the default."""
        default = ("output", "output_grad") if self.modules is not None else ("param", "grad", "update")
        return (self.tensors,) if isinstance(self.tensors, str) else self.tensors or default

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return short_repr(self)


@dataclass(frozen=True, repr=False)
class UnwrittenWatch(Watch):
    """A rule that no user wrote: a default rule, or what health rules need.

    Nothing warns that it matches nothing, that a module which it matches is not called, or that units have no one width.
    """

    is_written: ClassVar[bool] = False


def _check_units(rule: Watch) -> None:
    if not rule.has_units:
        return
    if rule.modules is None:
        raise RuleError("units goes with modules, not with params")
    if rule.group_by is not None:
        raise RuleError("group_by: units of different rows cannot be merged; ask for them in a rule without group_by")


def _check_groups(rule: Watch) -> None:
    groups = rule.group_by
    if type(groups) is int and groups >= 1:
        as_count("group_by", groups, 1)
        return
    if isinstance(groups, Mapping):
        pairs = tuple((str(name), pattern) for name, pattern in groups.items())
    elif isinstance(groups, Sequence):
        items = (groups,) if isinstance(groups, str) else groups
        pairs = tuple(item if isinstance(item, tuple) else (item, item) for item in items)
    else:
        raise RuleError(
            f"group_by must be a depth of at least 1, patterns, or a mapping of names to patterns, got {shown(groups)}"
        )
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            raise RuleError(f"group_by must hold patterns as strings, got {shown(pair[-1] if len(pair) == 2 else pair)}")
    check_expressions("group_by", (pattern for _, pattern in pairs))
    if not pairs:
        raise RuleError("group_by is empty; give at least one pattern or omit it")
    object.__setattr__(rule, "group_by", pairs)
