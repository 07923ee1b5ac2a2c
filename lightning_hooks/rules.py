"""What a user writes: rules as plain frozen dataclasses."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.reading import as_transform
from lightning_hooks.schedule import every_n

MODULE_TENSORS: Final = ("input", "output", "input_grad", "output_grad")
PARAM_TENSORS: Final = ("param", "grad", "final_grad", "update")
_PATH = re.compile(r"(?P<tensor>[a-z_]+)(?P<path>(\[-?\d+\]|\.[A-Za-z_]\w*)*)")


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
            as_transform(item, "transform" if len(given) == 1 else f"transform[{i}]") for i, item in enumerate(given)
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
