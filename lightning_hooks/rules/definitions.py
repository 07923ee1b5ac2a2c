"""What a user writes: rules as plain frozen dataclasses.

None, `null` in YAML, is accepted where it is the default, and means the default. Flags are True or False, nothing else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.rules.fields import check_flags, check_one_target, check_stages, check_types, normalise, short_repr
from lightning_hooks.rules.reading import as_callable, as_transform
from lightning_hooks.rules.schedule import every_n
from lightning_hooks.rules.specs import CallSpec, GroupSpec, ScheduleSpec, StatSpec, TransformSpec, TypeSpec

MODULE_TENSORS: Final = ("input", "output", "input_grad", "output_grad")
PARAM_TENSORS: Final = ("param", "grad", "final_grad", "update", "state")
FORWARD_TENSORS: Final = ("input", "output")
MODULE_KINDS: Final = (
    "forward_pre",
    "forward",
    "full_backward_pre",
    "full_backward",
    "input_grad",
    "output_grad",
    "node_pre",
    "node",
    "saved_tensors",
)
PARAM_KINDS: Final = ("param_grad", "post_accumulate_grad")
OPTIMIZER_KINDS: Final = ("optimizer_step_pre", "optimizer_step_post")
WHEN: Final = ("step", "backward")
_PATH = re.compile(r"(?P<tensor>[a-z_]+)(?P<path>(\[-?\d+\]|\.[A-Za-z_]\w*)*)")


@dataclass(frozen=True)
class Watch:
    """Which tensors to watch, and which statistics to compute.

    Args:
        modules: patterns of module names. Give exactly one of `modules` and `params`.
        params: patterns of parameter names.
        types: only modules (or parameters of modules) of these classes, by class name, import path or class; default: all.
        leaves: only modules without children; default False.
        tensors: of a module `input`, `output`, `input_grad`, `output_grad` (also one part: `output[0]`, `output.logits`);
            of a parameter `param`, `grad`, `final_grad`, `update`, `state.<key>` (of its optimizer's state:
            `state.exp_avg_sq`). Default: `output` and `output_grad`, or `param`, `grad` and `update`.
        stats: names of statistics, callables, import paths or `torchmetrics.Metric` classes. Default: `mean`, `std`, `norm`,
            `abs_max`, `zero_fraction`, `nonfinite`, and `ratio` for `update`. A callable is named by its `__name__`, an
            object by its class; different statistics of the same name become `name`, `name_2`, … in the order of the rules.
        group_by: merge rows of the rule exactly. A number merges by blocks of that depth of the module tree. A list of
            patterns makes one group per pattern; a mapping also names the groups. The first matching pattern counts, and a
            target without a match keeps its own row. Default: no groups.
        every_n_steps: the schedule of this rule; default: that of the monitor.
        strict: whether a rule that matches nothing, or an optimizer without the key of a `state.<key>`, is an error (default)
            or a warning.

    Raises:
        RuleError: an invalid value.

    Example:
        >>> Watch(params="*.weight", tensors=["grad"], stats="norm")
        Watch(params='*.weight', tensors=('grad',), stats=('norm',))
    """

    modules: str | Sequence[str] | None = None
    params: str | Sequence[str] | None = None
    types: TypeSpec | Sequence[TypeSpec] | None = None
    leaves: bool = False
    tensors: str | Sequence[str] | None = None
    stats: StatSpec | Sequence[StatSpec] | None = None
    group_by: GroupSpec | None = None
    every_n_steps: ScheduleSpec | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        """Check and normalise the fields."""
        check_one_target(self)
        check_flags(self)
        normalise(self, "modules", "params", "types", "tensors", "stats")
        check_types(self.types)
        if self.tensors is not None:
            if not self.tensors:
                raise RuleError("tensors is empty; name at least one tensor or leave it out")
            for tensor in self.tensors:
                _check_tensor(tensor, self.modules is not None, "tensors")
        if self.stats is not None and not self.stats:
            raise RuleError("stats is empty; name at least one statistic or leave it out")
        if self.leaves and self.modules is None:
            raise RuleError("leaves=True goes with modules, not with params")
        if self.group_by is not None:
            _check_groups(self)
        if self.every_n_steps is not None:
            every_n(self.every_n_steps, "every_n_steps")

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return short_repr(self)


@dataclass(frozen=True)
class Apply:
    """Which tensors to change, and how.

    Args:
        transform: a transform, a list of them, or mappings with `class_path` and `init_args`.
        params: patterns of parameter names. Give exactly one of `params` and `modules`.
        modules: patterns of module names, to change activations or gradients of activations.
        types: only modules (or parameters of modules) of these classes; default: all.
        tensor: with `modules`: `output_grad` or `input_grad` (gradients), `output` or `input` (activations; also one part:
            `output[0]`). Default: `output_grad`; in `ActivationTransforms`, `output`.
        when: with `params`: `step` (default: the gradient of the optimizer step) or `backward` (each gradient as backward
            computes it). Rules on gradients of modules act in backward, rules on activations in forward.
        stages: the stages in which activations change: any of `train`, `validate`, `test`, `predict`; default `train`.
        strict: whether a rule without a match is an error (default) or a warning.

    Raises:
        RuleError: an invalid value.

    Example:
        >>> from lightning_hooks.transforms import Scale
        >>> Apply(Scale(0.5), params="*.bias")
        Apply(transform=(Scale(factor=0.5),), params='*.bias')
    """

    transform: TransformSpec | Sequence[TransformSpec] | None = None
    params: str | Sequence[str] | None = None
    modules: str | Sequence[str] | None = None
    types: TypeSpec | Sequence[TypeSpec] | None = None
    tensor: str | None = None
    when: str | None = None
    stages: str | Sequence[str] | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        """Check and normalise the fields."""
        check_one_target(self)
        check_flags(self)
        normalise(self, "modules", "params", "types", "stages")
        check_types(self.types)
        given = self.transform
        if given is None:
            raise RuleError("transform is missing; give a transform or a list of them")
        given = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        if not given:
            raise RuleError("transform is an empty list; give a transform or a list of them")
        transforms = tuple(
            as_transform(item, "transform" if len(given) == 1 else f"transform[{i}]") for i, item in enumerate(given)
        )
        object.__setattr__(self, "transform", transforms)
        if self.stages is not None:
            check_stages(self.stages)
        if self.modules is not None:
            self._check_module_rule()
            return
        if self.tensor not in (None, "grad"):
            raise RuleError(f"tensor={self.tensor!r} goes with modules; a rule on params acts on the gradient")
        if self.when not in (None, *WHEN):
            raise RuleError(f"when must be 'step' or 'backward', got {self.when!r}{did_you_mean(str(self.when), WHEN, 1)}")
        if self.stages is not None:
            raise RuleError("stages goes with activations; gradients there are in training only")

    def _check_module_rule(self) -> None:
        if self.when not in (None, "backward"):
            raise RuleError(f"when={self.when!r} goes with params; a rule on modules acts in backward (omit when)")
        if self.tensor is None:
            return
        base, path = parse_tensor(str(self.tensor))
        if base not in MODULE_TENSORS or (path and base not in FORWARD_TENSORS):
            known = ", ".join(repr(name) for name in reversed(MODULE_TENSORS))
            raise RuleError(f"tensor must be one of {known}, got {self.tensor!r}{did_you_mean(base, MODULE_TENSORS, 2)}")
        if self.stages is not None and base not in FORWARD_TENSORS:
            raise RuleError("stages goes with activations; gradients there are in training only")
        if self.when is not None and base in FORWARD_TENSORS:
            raise RuleError(f"when={self.when!r} goes with gradients; a rule on activations acts in forward (omit when)")

    def acts_on(self, default: str = "output_grad") -> str:
        """The tensor that the rule changes: `grad` of a parameter, or `tensor` of a module.

        Args:
            default: the tensor of a rule on modules without `tensor`.
        """
        return "grad" if self.params is not None else self.tensor or default

    def acts_at(self, default: str = "output_grad") -> str:
        """When the rule acts: `step`, `backward`, or `forward` for activations."""
        if self.params is not None:
            return self.when or "step"
        return "forward" if parse_tensor(self.acts_on(default))[0] in FORWARD_TENSORS else "backward"

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return short_repr(self)


@dataclass(frozen=True)
class Hook:
    """A custom hook on every matched module, parameter or optimizer.

    Args:
        call: a callable with torch's signature for the kind, its import path, or a mapping with `class_path` and
            `init_args`; for `saved_tensors` a pair of these, to pack and to unpack.
        kind: the kind of torch hook: `forward_pre`, `forward`, `full_backward_pre`, `full_backward`, `output_grad` (on
            every output tensor), `input_grad` (the module's own contribution), `node_pre` and `node` (on the output's
            `grad_fn`), `saved_tensors` (around the forward), with `params` `param_grad` and `post_accumulate_grad`, with
            neither `optimizer_step_pre` and `optimizer_step_post`.
        modules: patterns of module names.
        params: patterns of parameter names.
        types: only modules (or parameters of modules) of these classes; default: all.
        leaves: only modules without children; default False.
        named: whether the dotted name of the target is passed as the first argument; default False.
        with_kwargs: with `forward_pre` and `forward`: whether keyword arguments follow the positional ones; default False.
        prepend: whether the hook runs before hooks that are already registered; default False.
        every_n_steps: a schedule, as for `Watch`; in stages other than `train` it counts batches. Default: every one.
        once: whether the hook runs at most once per target; default False.
        stages: any of `train`, `validate`, `test`, `predict`; default `train`.
        checked: whether to check that the result has the shape, dtype, device and layout of the argument it replaces, and
            that no argument is changed in place; default True.
        strict: whether a rule without a match is an error (default) or a warning.

    Raises:
        RuleError: an invalid value.

    Example:
        >>> Hook("lightning_hooks.print_shapes", kind="forward", modules="*", types="Linear", once=True)
        Hook(call='lightning_hooks.print_shapes', kind='forward', modules='*', types=('Linear',), once=True)
    """

    call: CallSpec | tuple[CallSpec, CallSpec]
    kind: str
    modules: str | Sequence[str] | None = None
    params: str | Sequence[str] | None = None
    types: TypeSpec | Sequence[TypeSpec] | None = None
    leaves: bool = False
    named: bool = False
    with_kwargs: bool = False
    prepend: bool = False
    every_n_steps: ScheduleSpec | None = None
    once: bool = False
    stages: str | Sequence[str] = ("train",)
    checked: bool = True
    strict: bool = True
    calls: tuple[Any, ...] = dataclasses.field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        """Check and normalise the fields; find what is to be called."""
        check_flags(self)
        every = (*MODULE_KINDS, *PARAM_KINDS, *OPTIMIZER_KINDS)
        if self.kind not in every:
            raise RuleError(
                f"kind: unknown kind {self.kind!r}{did_you_mean(str(self.kind), every)}; there are {', '.join(every)}"
            )
        wanted = "modules" if self.kind in MODULE_KINDS else "params" if self.kind in PARAM_KINDS else ""
        for field in ("modules", "params"):
            if (getattr(self, field) is not None) != (field == wanted):
                needs = f"needs {wanted}" if wanted else "takes neither modules nor params"
                raise RuleError(f"{field}: a hook of kind {self.kind!r} {needs}")
        if self.leaves and self.modules is None:
            raise RuleError("leaves=True goes with modules")
        if self.with_kwargs and self.kind not in ("forward_pre", "forward"):
            raise RuleError(f"with_kwargs goes with forward_pre and forward, not with {self.kind!r}")
        normalise(self, "modules", "params", "types", "stages")
        check_types(self.types)
        check_stages(self.stages)
        if self.every_n_steps is not None:
            every_n(self.every_n_steps, "every_n_steps")
        object.__setattr__(self, "calls", self._resolved())

    def _resolved(self) -> tuple[Any, ...]:
        if self.kind != "saved_tensors":
            return (as_callable(self.call, "call"),)
        pair = self.call
        if isinstance(pair, (str, Mapping)) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise RuleError(f"call: a hook of kind 'saved_tensors' needs a pair (pack, unpack), got {pair!r}")
        object.__setattr__(self, "call", tuple(pair))
        return tuple(as_callable(item, f"call[{i}]") for i, item in enumerate(pair))

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return short_repr(self)


def parse_tensor(tensor: str) -> tuple[str, str]:
    """Split a tensor's name into the tensor and the path to a part of it.

    Example:
        >>> parse_tensor("output.hidden[0]")
        ('output', '.hidden[0]')
    """
    found = _PATH.fullmatch(tensor)
    return (found["tensor"], found["path"]) if found else (tensor, "")


def _check_tensor(tensor: Any, of_module: bool, where: str) -> None:
    known: tuple[str, ...]
    others: tuple[str, ...]
    known, others = (MODULE_TENSORS, PARAM_TENSORS) if of_module else (PARAM_TENSORS, MODULE_TENSORS)
    base, path = parse_tensor(str(tensor))
    owner, other = ("modules", "params") if of_module else ("params", "modules")
    if base in known and (of_module or bool(path) == (base == "state")):
        return
    if not of_module and base == "state":
        raise RuleError(f"{where}: 'state' needs a key of the optimizer's state, as in 'state.exp_avg_sq'; got {tensor!r}")
    known = tuple("state.<key>" if name == "state" else name for name in known)
    if base in others:
        raise RuleError(f"{where}: {tensor!r} is a tensor of {other}; a rule on {owner} has {', '.join(known)}")
    raise RuleError(
        f"{where}: unknown tensor {tensor!r}{did_you_mean(str(tensor), known, 2)}; a rule on {owner} has {', '.join(known)}"
    )


def _check_groups(rule: Watch) -> None:
    groups = rule.group_by
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 1:
            raise RuleError(
                f"group_by must be a depth of at least 1, patterns, or a mapping of names to patterns, got {groups}"
            )
        return
    if isinstance(groups, str):
        groups = (groups,)
    if isinstance(groups, Mapping):
        pairs = tuple((str(name), pattern) for name, pattern in groups.items())
    elif isinstance(groups, Sequence):
        pairs = tuple(item if isinstance(item, tuple) else (item, item) for item in groups)
    else:
        raise RuleError(f"group_by must be a depth of at least 1, patterns, or a mapping of names to patterns, got {groups!r}")
    for name, pattern in pairs:
        if not isinstance(name, str) or not isinstance(pattern, str):
            raise RuleError(f"group_by must hold patterns as strings, got {pattern!r}")
    if not pairs:
        raise RuleError("group_by is empty; give at least one pattern or leave it out")
    object.__setattr__(rule, "group_by", pairs)
