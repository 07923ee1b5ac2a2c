"""What a user writes: rules as plain frozen dataclasses, and how they are read from YAML or Hydra mappings."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lightning_hooks.errors import RuleError, did_you_mean

MODULE_TENSORS: Final = ("input", "output", "input_grad", "output_grad")
PARAM_TENSORS: Final = ("param", "grad", "final_grad", "update")
_PATH = re.compile(r"(?P<tensor>[a-z_]+)(?P<path>(\[-?\d+\]|\.[A-Za-z_]\w*)*)")

R = TypeVar("R", bound="Watch | Apply")


@dataclass(frozen=True)
class EveryN:
    """Steps at which something happens, counted as Lightning counts: (step + 1) % n == 0.

    Args:
        every: every how many steps; 1 is each.
        first: the first step that counts, default 0.
        last: the last step that counts, default none.
        steps: an explicit list of steps instead.

    Example:
        >>> EveryN(every=10).due(9), EveryN(every=10).due(10), EveryN(steps=(3, 5)).due(5)
        (True, False, True)
    """

    every: int = 1
    first: int = 0
    last: int | None = None
    steps: tuple[int, ...] | None = None

    def due(self, step: int) -> bool:
        """Whether a step is one of them."""
        if self.steps is not None:
            return step in self.steps
        return (step + 1) % self.every == 0 and step >= self.first and (self.last is None or step <= self.last)


def every_n(value: Any, where: str) -> EveryN:
    """Read a schedule: a number, a list of steps, or a mapping of `first`, `every`, `last`.

    Raises:
        RuleError: it is none of these.

    Example:
        >>> every_n({"first": 10, "every": 5}, "every_n_steps")
        EveryN(every=5, first=10, last=None, steps=None)
    """
    wanted = "an integer of at least 1, a list of steps, or a mapping with first, every, last"
    if isinstance(value, EveryN):
        return value
    if isinstance(value, Mapping):
        unknown = set(value) - {"first", "every", "last"}
        if unknown:
            raise RuleError(f"{where}: unknown key {sorted(unknown)[0]!r}; give {wanted}")
        numbers = dict(value)
        schedule = EveryN(
            every=_whole(numbers.get("every", 1), 1, f"{where}.every"),
            first=_whole(numbers.get("first", 0), 0, f"{where}.first"),
            last=None if numbers.get("last") is None else _whole(numbers["last"], 0, f"{where}.last"),
        )
        if schedule.last is not None and schedule.last < schedule.first:
            raise RuleError(f"{where}: last={schedule.last} is before first={schedule.first}")
        return schedule
    if isinstance(value, Sequence) and not isinstance(value, str):
        return EveryN(steps=tuple(_whole(step, 0, f"{where}[{i}]") for i, step in enumerate(value)))
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RuleError(f"{where} must be {wanted}, got {value!r}")
    return EveryN(every=value)


def _whole(value: Any, least: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RuleError(f"{where} must be an integer of at least {least}, got {value!r}")
    return value


@dataclass(frozen=True)
class Watch:
    """Which tensors to look at, and what to compute of them.

    Args:
        modules: patterns of module names; or
        params: patterns of parameter names.
        types: only modules (or parameters of modules) of these classes, by class name, import path or class; default all.
        leaves: only modules without children, default False.
        tensors: of a module `input`, `output`, `input_grad`, `output_grad` (also one part: `output[0]`, `output.logits`);
            of a parameter `param`, `grad`, `final_grad`, `update`. Default: `output` and `output_grad`, or `param`, `grad`
            and `update`.
        stats: names of statistics, callables, import paths or `torchmetrics.Metric` classes. Default: `mean`, `std`, `norm`,
            `abs_max`, `zero_fraction`, `nonfinite`, and `ratio` of an `update`.
        every_n_steps: a schedule of the rule's own; default that of the monitor.
        strict: whether a rule that matches nothing is an error (default) or a warning.

    Raises:
        RuleError: a value that cannot be meant.

    Example:
        >>> Watch(params="*.weight", tensors=["grad"], stats="norm")
        Watch(params='*.weight', tensors=('grad',), stats=('norm',))
    """

    modules: str | Sequence[str] | None = None
    params: str | Sequence[str] | None = None
    types: Any = None
    leaves: bool = False
    tensors: str | Sequence[str] | None = None
    stats: Any = None
    every_n_steps: Any = None
    strict: bool = True

    def __post_init__(self) -> None:
        """Check and normalise the fields."""
        _one_target(self, "Watch")
        _normalise(self, "modules", "params", "types", "tensors", "stats")
        if self.tensors is not None:
            if not self.tensors:
                raise RuleError("tensors is empty; name at least one tensor or leave it out")
            for tensor in self.tensors:
                _check_tensor(tensor, self.modules is not None, "tensors")
        if self.stats is not None and not self.stats:
            raise RuleError("stats is empty; name at least one statistic or leave it out")
        if self.leaves and self.modules is None:
            raise RuleError("leaves=True goes with modules, not with params")
        if self.every_n_steps is not None:
            every_n(self.every_n_steps, "every_n_steps")

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return _short_repr(self)


@dataclass(frozen=True)
class Apply:
    """Which tensors to change, and how.

    Args:
        transform: a transform, a list of them, or mappings with `class_path` and `init_args`.
        params: patterns of parameter names; or
        modules: patterns of module names, for the gradient that flows through the module.
        types: only modules (or parameters of modules) of these classes; default all.
        tensor: with `modules`: `output_grad` (default) or `input_grad`.
        stage: with `params`: `step` (default, the gradient of the optimizer step) or `backward` (each gradient as backward
            makes it). Rules on modules always act in backward.
        strict: whether a rule that matches nothing is an error (default) or a warning.

    Raises:
        RuleError: a value that cannot be meant.

    Example:
        >>> from lightning_hooks.transforms import Scale
        >>> Apply(Scale(0.5), params="*.bias")
        Apply(transform=(Scale(factor=0.5),), params='*.bias')
    """

    transform: Any = None
    params: str | Sequence[str] | None = None
    modules: str | Sequence[str] | None = None
    types: Any = None
    tensor: str | None = None
    stage: str | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        """Check and normalise the fields."""
        _one_target(self, "Apply")
        _normalise(self, "modules", "params", "types")
        given = self.transform
        given = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        if not given or given[0] is None:
            raise RuleError("transform is missing; give a transform or a list of them")
        transforms = tuple(
            _transform(item, "transform" if len(given) == 1 else f"transform[{i}]") for i, item in enumerate(given)
        )
        object.__setattr__(self, "transform", transforms)
        if self.modules is not None:
            if self.stage not in (None, "backward"):
                raise RuleError(f"stage={self.stage!r} goes with params; a rule on modules acts in backward (leave stage out)")
            object.__setattr__(self, "stage", "backward")
            tensor = self.tensor or "output_grad"
            if tensor not in ("output_grad", "input_grad"):
                raise RuleError(f"tensor must be 'output_grad' or 'input_grad', got {tensor!r}{_activation_hint(tensor)}")
            object.__setattr__(self, "tensor", tensor)
            return
        if self.tensor not in (None, "grad"):
            raise RuleError(f"tensor={self.tensor!r} goes with modules; a rule on params acts on the gradient")
        if self.stage not in (None, "step", "backward"):
            hint = did_you_mean(str(self.stage), ["step", "backward"], 1)
            raise RuleError(f"stage must be 'step' or 'backward', got {self.stage!r}{hint}")
        object.__setattr__(self, "stage", self.stage or "step")

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return _short_repr(self)


def as_rules(kind: type[R], rules: Any, where: str) -> list[R]:
    """Read a list of rules from instances and mappings (plain, or Hydra's containers).

    Args:
        kind: `Watch` or `Apply`.
        rules: one rule or a sequence of them.
        where: the option that holds them, for messages: `watch`.

    Raises:
        RuleError: with the place of the wrong value (`watch[2].stats`) and what would be right.
    """
    if isinstance(rules, (kind, Mapping)):
        rules = [rules]
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        raise RuleError(f"{where} must be a list of {kind.__name__} rules or mappings, got {rules!r}")
    return [_as_rule(kind, rule, f"{where}[{i}]") for i, rule in enumerate(rules)]


def _as_rule(kind: type[R], rule: Any, where: str) -> R:
    if isinstance(rule, kind):
        return rule
    if not isinstance(rule, Mapping):
        raise RuleError(f"{where} must be a {kind.__name__} or a mapping, got {rule!r}")
    known = [field.name for field in dataclasses.fields(kind)]
    fields = {str(key): value for key, value in rule.items() if key != "_target_"}
    for key in fields:
        if key not in known:
            raise RuleError(f"{where}: unknown key {key!r}{did_you_mean(key, known)}; {kind.__name__} has {', '.join(known)}")
    try:
        return kind(**fields)
    except RuleError as error:
        raise RuleError(f"{where}.{error}") from error


def parse_tensor(tensor: str) -> tuple[str, str]:
    """Split a tensor's name into the tensor and the path to a part of it.

    Example:
        >>> parse_tensor("output.hidden[0]")
        ('output', '.hidden[0]')
    """
    found = _PATH.fullmatch(tensor)
    return (found["tensor"], found["path"]) if found else (tensor, "")


def _check_tensor(tensor: Any, of_module: bool, where: str) -> None:
    known, others = (MODULE_TENSORS, PARAM_TENSORS) if of_module else (PARAM_TENSORS, MODULE_TENSORS)
    base, path = parse_tensor(str(tensor))
    owner, other = ("modules", "params") if of_module else ("params", "modules")
    if base in known and (of_module or not path):
        return
    if base in others:
        raise RuleError(f"{where}: {tensor!r} is a tensor of {other}; a rule on {owner} has {', '.join(known)}")
    raise RuleError(
        f"{where}: unknown tensor {tensor!r}{did_you_mean(str(tensor), known, 2)}; a rule on {owner} has {', '.join(known)}"
    )


def _activation_hint(tensor: str) -> str:
    return "; GradientTransforms changes gradients, not activations" if tensor in ("input", "output") else ""


def _one_target(rule: Watch | Apply, kind: str) -> None:
    if (rule.modules is None) == (rule.params is None):
        have = "both" if rule.modules is not None else "neither"
        raise RuleError(f"modules: {kind} needs exactly one of modules and params, got {have}")


def _normalise(rule: Watch | Apply, *fields: str) -> None:
    """Lists become tuples, so that equal rules compare equal and cannot change later; one pattern stays a string."""
    for field in fields:
        value = getattr(rule, field)
        if value is None or (isinstance(value, str) and field in ("modules", "params")):
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = tuple(value)
        else:
            value = (value,)
        if field in ("modules", "params", "tensors"):
            for i, item in enumerate(value):
                if not isinstance(item, str):
                    raise RuleError(f"{field}[{i}] must be a string, got {item!r}")
            if field != "tensors" and not value:
                raise RuleError(f"{field} is an empty list; give at least one pattern")
        object.__setattr__(rule, field, value)


def _short_repr(rule: Watch | Apply) -> str:
    shown = []
    for field in dataclasses.fields(rule):
        value = getattr(rule, field.name)
        implied = isinstance(rule, Apply) and (
            (field.name == "stage" and value == ("backward" if rule.modules is not None else "step"))
            or (field.name == "tensor" and value == "output_grad")
        )
        if value != field.default and not implied:
            shown.append(f"{field.name}={value!r}")
    return f"{type(rule).__name__}({', '.join(shown)})"


def _transform(item: Any, where: str) -> Any:
    """A transform from an instance, a class path, or a mapping as jsonargparse or Hydra write it."""
    if callable(item) and not isinstance(item, (type, Mapping)):
        return item
    if isinstance(item, Mapping):
        fields = {str(key): value for key, value in item.items()}
        path = fields.pop("class_path", None) or fields.pop("_target_", None)
        if path is None:
            raise RuleError(f"{where}: a mapping needs class_path (and init_args), got keys {sorted(fields)}")
        arguments = dict(fields.pop("init_args", {})) if "init_args" in fields else fields
        if arguments is not fields and fields:
            raise RuleError(f"{where}: unknown key {sorted(fields)[0]!r} beside class_path and init_args")
    else:
        path, arguments = item, {}
    if not isinstance(path, str) and not isinstance(path, type):
        raise RuleError(f"{where} must be a transform, a class path or a mapping with class_path, got {item!r}")
    kind = _transform_class(path, where) if isinstance(path, str) else path
    try:
        return kind(**arguments)
    except TypeError as error:
        known = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        raise RuleError(f"{where}: {error}; {kind.__name__} takes {', '.join(known) or 'no arguments'}") from error
    except RuleError as error:
        raise RuleError(f"{where}: {error}") from error


def _transform_class(path: str, where: str) -> Any:
    from lightning_hooks import transforms as room  # here, so that a rule that names no transform does not load torch

    if "." not in path or path.startswith("lightning_hooks."):
        name = path.rpartition(".")[2]
        if name not in room.__all__ or name in ("Transform", "Context"):
            known = [known for known in room.__all__ if known not in ("Transform", "Context")]
            raise RuleError(f"{where}: unknown transform {path!r}{did_you_mean(name, known)}")
        return getattr(room, name)
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RuleError(f"{where}: cannot import {path!r} ({error})") from error
