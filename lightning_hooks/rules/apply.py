"""`Apply`: the rule that selects tensors and the transforms that change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.rules.fields import (
    TransformSpec,
    TypeSpec,
    check_one_target,
    check_stages,
    normalise,
    short_repr,
)
from lightning_hooks.rules.reading import as_transform
from lightning_hooks.rules.tensors import CHANGED_TENSORS, FORWARD_TENSORS, INNER_TENSORS, parse_tensor

WHEN: Final = ("step", "backward")


@dataclass(frozen=True)
class Apply:
    """Which tensors to change, and how.

    Args:
        transform: a transform, a list of them, or mappings with `class_path` and `init_args`.
        params: patterns of parameter names. Give exactly one of `params` and `modules`.
        modules: patterns of module names, to change activations or gradients of activations.
        types: only modules (or parameters of modules) of these classes; default: all.
        tensor: with `modules`: `output_grad` or `input_grad` (gradients), `output` or `input` (activations; a path such as
            `output[0]` selects one tensor of several). Default: `output_grad`; in `ActivationTransforms`, `output`.
        when: with `params`: `step` (default: the gradient of the optimizer step) or `backward` (each gradient as backward
            computes it). Rules on gradients of modules act in backward, rules on activations in forward.
        stages: the stages in which activations change: any of `train`, `validate`, `test`, `predict`; default `train`.
        strict: whether a rule without a match is an error (default) or a warning.

    Raises:
        RuleError: a field has an invalid value.

    Example:
        >>> from lightning_hooks.transforms import Scale
        >>> Apply(Scale(0.5), params="*.bias")
        Apply(transform=(Scale(factor=0.5),), params='*.bias')
    """

    transform: TransformSpec | Sequence[TransformSpec] | None = None
    _: KW_ONLY
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
        normalise(self)
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
            raise RuleError(f"when must be 'step' or 'backward', got {shown(self.when)}{did_you_mean(self.when, WHEN, 1)}")
        if self.stages is not None:
            raise RuleError("stages goes with activations; gradients exist in training only")

    def _check_module_rule(self) -> None:
        if self.when not in (None, "backward"):
            raise RuleError(f"when={self.when!r} goes with params; a rule on modules acts in backward (omit when)")
        if self.tensor is None:
            return
        base, path = parse_tensor(str(self.tensor))
        if base in INNER_TENSORS:
            raise RuleError(
                f"tensor={self.tensor!r} can be watched and captured, not changed: it is a part of what the model computes; "
                f"{INNER_TENSORS[base]!r} changes the gradient of the loss"
            )
        if base not in CHANGED_TENSORS or (path and base not in FORWARD_TENSORS):
            known = ", ".join(repr(name) for name in reversed(CHANGED_TENSORS))
            raise RuleError(
                f"tensor must be one of {known}, got {shown(self.tensor)}{did_you_mean(self.tensor, CHANGED_TENSORS, 2)}"
            )
        if self.stages is not None and base not in FORWARD_TENSORS:
            raise RuleError("stages goes with activations; gradients exist in training only")
        if self.when is not None and base in FORWARD_TENSORS:
            raise RuleError(f"when={self.when!r} goes with gradients; a rule on activations acts in forward (omit when)")

    def acts_on(self, default: str = "output_grad") -> str:
        """The tensor that the rule changes: `grad` of a parameter, or `tensor` of a module.

        Args:
            default: the tensor if the rule is on modules and has no `tensor`; default `output_grad`.
        """
        return "grad" if self.params is not None else self.tensor or default

    def acts_at(self, default: str = "output_grad") -> str:
        """The moment at which the rule acts: `step`, `backward`, or `forward` for activations.

        Args:
            default: the tensor if the rule is on modules and has no `tensor`; default `output_grad`.
        """
        if self.params is not None:
            return self.when or "step"
        return "forward" if parse_tensor(self.acts_on(default))[0] in FORWARD_TENSORS else "backward"

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return short_repr(self)
