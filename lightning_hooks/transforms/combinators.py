"""Transforms that apply other transforms: several in order, or one on a condition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.rules.reading import as_transform
from lightning_hooks.saved_state import DamagedState, read_state, refuse_other_keys
from lightning_hooks.transforms._contract import explain_invalid, without_aliases
from lightning_hooks.transforms.base import Context, Transform
from lightning_hooks.transforms.conditions import as_condition

_ANY_FLAGS = ("needs_all", "repairs_nonfinite", "random", "needs_params", "needs_step")


@dataclass(frozen=True)
class Chain(Transform):
    """Apply several transforms in order, each to the result of the previous one.

    The chain needs what any of its transforms needs. It may act on activations if all of them may, and is
    elementwise if all of them are. Each has its own state; all draw from one random generator, in order.

    Source: `optax.chain`.

    Args:
        transforms: transforms, class paths or mappings with `class_path` and `init_args`, in order; at least one.

    Raises:
        RuleError: no transform, or an invalid one.
        TransformError: a transform returned something that cannot replace the tensors.

    Example:
        >>> from lightning_hooks.transforms import ClipByValue, Scale
        >>> Chain([Scale(10.0), ClipByValue(max=4.0)])([torch.tensor([0.1, 0.5])], Context())
        [tensor([1., 4.])]
    """

    transforms: Sequence[Any]

    def __post_init__(self) -> None:
        given = self.transforms
        if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence) or not given:
            raise RuleError(f"Chain.transforms must be a list of at least one transform, got {given!r}")
        members = tuple(as_transform(item, f"Chain.transforms[{i}]") for i, item in enumerate(given))
        # Setting an attribute of a frozen dataclass raises, so call the method of `object`.
        object.__setattr__(self, "transforms", members)
        _combine_flags(self, members)
        object.__setattr__(self, "elementwise", all(getattr(member, "elementwise", False) for member in members))

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """The results of the last transform."""
        for index, transform in enumerate(self.transforms):
            results = _call(transform, tensors, context, f"Chain.transforms[{index}]", str(index))
            if context.owned:
                # Copy the results into the given tensors: a member may return tensors that it does not own, which the next
                # member must not overwrite.
                for tensor, result in zip(tensors, without_aliases(results, tensors), strict=True):
                    if result is not tensor:
                        tensor.copy_(result)
            else:
                tensors = results
        return tensors

    def initial_state(self) -> dict[str, Any]:
        """The state of each transform, under its index."""
        return {str(index): _initial_state(transform) for index, transform in enumerate(self.transforms)}

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """Check the state of each transform with its own `check_state`."""
        refuse_other_keys(state, *self.initial_state())
        for index, transform in enumerate(self.transforms):
            _check_member(transform, state, str(index), params)


@dataclass(frozen=True)
class When(Transform):
    """Apply a transform only when a condition holds; otherwise the tensors stay unchanged bit for bit.

    A condition that returns a bool (`FirstSteps`, `EverySteps`) decides whether the transform is called at all, and so
    whether its state advances. A condition that returns a boolean tensor (`NormAbove`) does not make the host wait: the
    transform is always called, its state always advances, and the device selects between its result and the original,
    which takes memory for both. The host waits where the device cannot select: for a transform that skips steps, and for
    sparse tensors. Each rank evaluates the condition on its own tensors; if one rank skips a step, all ranks skip it.

    Source: `optax.conditionally_transform`; `optax.conditionally_mask` sets the tensors to zero otherwise.

    Args:
        condition: a callable of (tensors, context) that returns a bool or a boolean scalar tensor, its import path, or a
            mapping with `class_path` and `init_args`, in which `FirstSteps`, `EverySteps` and `NormAbove` need no path. A
            condition must not change the tensors.
        transform: a transform, a class path or a mapping with `class_path` and `init_args`.

    Raises:
        RuleError: an invalid condition or transform.
        TransformError: the condition returned anything else.

    Example:
        >>> from lightning_hooks.transforms import FirstSteps, Scale
        >>> half_at_first = When(FirstSteps(100), transform=Scale(0.5))
        >>> [half_at_first([torch.tensor([8.0])], Context(step=step))[0].item() for step in (99, 100)]
        [4.0, 8.0]
    """

    condition: Any
    _: KW_ONLY
    transform: Any
    _decide: Callable[[list[Tensor], Context], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Setting an attribute of a frozen dataclass raises, so call the method of `object`.
        object.__setattr__(self, "transform", as_transform(self.transform, "When.transform"))
        object.__setattr__(self, "_decide", as_condition(self.condition, "When.condition"))
        if isinstance(self.condition, Mapping):
            object.__setattr__(self, "condition", self._decide)
        if isinstance(self.condition, Transform):
            raise RuleError(f"When.condition must answer with a bool, and {self.condition!r} is a transform")
        _combine_flags(self, (self.transform,))
        for flag in ("needs_all", "needs_params"):
            object.__setattr__(self, flag, getattr(self, flag) or getattr(self.condition, flag, False))

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """The results of the transform, or the tensors unchanged."""
        if not tensors:
            return tensors if context.owned else []
        answer = self._answer(tensors, context)
        if self.needs_step or any(tensor.is_sparse for tensor in tensors):
            # Read the answer on the host: the device can select between dense tensors, but not between sparse tensors, nor
            # whether a step is skipped.
            answer = bool(answer)
        if isinstance(answer, bool):
            return _call(self.transform, tensors, context, "When.transform", "transform") if answer else list(tensors)
        results = _call(self.transform, tensors, dataclasses.replace(context, owned=False), "When.transform", "transform")
        chosen = [torch.where(answer.to(new.device), new, old) for new, old in zip(results, tensors, strict=True)]
        if not context.owned:
            return chosen
        for tensor, new in zip(tensors, chosen, strict=True):
            tensor.copy_(new)
        return tensors

    def initial_state(self) -> dict[str, Any]:
        """The state of the transform, under `transform`."""
        return {"transform": _initial_state(self.transform)}

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """Check the state of the transform with its own `check_state`."""
        refuse_other_keys(state, "transform")
        _check_member(self.transform, state, "transform", params)

    def _answer(self, tensors: list[Tensor], context: Context) -> bool | Tensor:
        answer = self._decide(tensors, context)
        if isinstance(answer, bool):
            return answer
        if isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.numel() == 1:
            return answer.detach().reshape(())
        shown = f"a tensor of {answer.dtype} and shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else repr(answer)
        raise TransformError(f"When.condition {self.condition!r} must answer with a bool or a boolean scalar, got {shown}")


def _combine_flags(owner: Transform, members: Sequence[Any]) -> None:
    # Set the flags on the instance, where they hide the flags of the class. Do not define properties: read from the class, a
    # property returns itself instead of a bool.
    for flag in _ANY_FLAGS:
        object.__setattr__(owner, flag, any(getattr(member, flag, False) for member in members))
    object.__setattr__(owner, "on_activations", all(getattr(member, "on_activations", True) for member in members))


def _initial_state(transform: Any) -> dict[str, Any]:
    return transform.initial_state() if isinstance(transform, Transform) else {}


def _check_member(transform: Any, state: dict[str, Any], key: str, params: Mapping[str, Tensor]) -> None:
    where = f"state[{key!r}]"
    kept = read_state(state.get(key), where)
    if isinstance(transform, Transform):
        try:
            transform.check_state(kept, params)
        except ValueError as error:
            raise DamagedState(f"in {where}: {error}") from error


def _call(transform: Any, tensors: list[Tensor], context: Context, where: str, key: str) -> list[Tensor]:
    """Call a member with its own state, `context.state[key]`, and check its results; messages name the member `where`."""
    state = context.state.setdefault(key, _initial_state(transform))
    inner = dataclasses.replace(context, state=state)
    # Pass a copy of the list: the member may replace its items.
    results = transform([*tensors], inner)
    context.state[key] = inner.state
    if inner.skip_reason is not None:
        context.skip_step(inner.skip_reason)
    wrong = explain_invalid(results, tensors, lambda index: f"'{context.name_of(index)}'")
    if wrong is not None:
        raise TransformError(f"{where} ({type(transform).__name__}) {wrong}")
    return list(results)
