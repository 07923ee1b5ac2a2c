"""Calls a user's hook for one target as its rule says, and checks what it returns and does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.errors import HookError
from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.rules import Hook
from lightning_hooks.rules.patterns import Target
from lightning_hooks.tensor_kinds import TRANSFORMED, is_transformed, version_of

_SAME: Final = ("shape", "dtype", "device", "layout")
# Torch ignores the result of hooks of these kinds.
_RETURNS_NOTHING: Final = ("post_accumulate_grad", "optimizer_step_post")


class HookRunner:
    """One hook of a user at one target.

    Args:
        rule: the rule of the hook.
        where: how a message names the rule: `hooks[0]`.
        target: the module or parameter; None for a hook of optimizers, whose name is that of the rule.
    """

    def __init__(self, rule: Hook, where: str, target: Target[Any] | None) -> None:
        self.rule = rule
        self.where = where
        self.target = target
        self.name = where if target is None else target.name
        self._ran = False
        self._calls = [call.for_kind(rule.kind) if hasattr(call, "for_kind") else call for call in rule.calls]
        self._named = [rule.named or bool(getattr(call, "named", False)) for call in rule.calls]

    def __call__(self, *args: Any, like: Any = None) -> Any:
        """Call the hook and check what it returns and what it did.

        Args:
            args: the arguments in torch's order for the kind.
            like: the object that the result replaces; None if the result replaces nothing.

        Raises:
            HookError: the result cannot replace `like`, an argument was changed in place, or the hook raised StopIteration.
        """
        if not self.starts():
            return None
        before = [(tensor, version_of(tensor)) for tensor in tensors_in(args)] if self._checks_in_place() else []
        result = self._call(0, args)
        for tensor, version in before:
            if version_of(tensor) != version:
                raise HookError(
                    f"{self._here} changed a tensor of shape {tuple(tensor.shape)} in place. Others may share its memory and "
                    "would silently see the change; return a new tensor instead, or set checked=False if this is intended"
                )
        if result is None:
            return None
        if self.rule.kind in _RETURNS_NOTHING:
            raise HookError(f"{self._here} returned {type(result).__name__}; what a hook of this kind returns is not used")
        if self.rule.checked and like is not None:
            if any(map(is_transformed, tensors_in(args))):
                raise HookError(
                    f"{self._here} returned something instead of a {TRANSFORMED}. Exclude {self.name} from the rule, "
                    "or set checked=False if this is intended"
                )
            self._check(result, like)
        return result

    @property
    def value(self) -> Any:
        """The module or parameter, which a fit may replace."""
        return None if self.target is None else self.target.value

    def starts(self) -> bool:
        """Whether the hook runs now: with `once` only the first time."""
        first, self._ran = not self._ran, True
        return first or not self.rule.once

    def of(self, which: int) -> Callable[[Any], Any]:
        """One of the two calls of a pair, checked for StopIteration only."""
        return lambda value: self._call(which, (value,))

    def _call(self, which: int, args: tuple[Any, ...]) -> Any:
        call = self._calls[which]
        try:
            return call(self.name, *args) if self._named[which] else call(*args)
        # A StopIteration that reaches the training loop would end the epoch without a message.
        except StopIteration as error:
            raise HookError(f"{self._here} raised StopIteration: {error}") from error
        except Exception as error:
            error.add_note(f"raised in {self._here}")
            raise

    def _checks_in_place(self) -> bool:
        # Post-accumulate hooks exist to change the gradient of their parameter in place, and hooks of optimizers to change
        # parameters and gradients.
        return self.rule.checked and self.rule.kind not in (*_RETURNS_NOTHING, "optimizer_step_pre")

    def _check(self, result: Any, like: Any) -> None:
        if self.rule.with_kwargs and self.rule.kind == "forward_pre":
            both = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
            if not both or not isinstance(result[0], tuple):
                raise HookError(f"{self._here} must return the arguments and the keyword arguments, (args, kwargs)")
        new, old = _parts(result), _parts(like)
        if len(new) != len(old):
            raise HookError(f"{self._here} returned {len(new)} tensors instead of {len(old)}{self._unchecked_hint()}")
        for i, (one, other) in enumerate(zip(new, old, strict=True)):
            if one is None or other is None:
                continue  # the gradient is absent, so there is nothing to compare
            for attribute in _SAME:
                actual, expected = getattr(one, attribute), getattr(other, attribute)
                if actual != expected:
                    of = f"tensor {i}" if len(new) > 1 else "a tensor"
                    shown = (tuple(actual), tuple(expected)) if attribute == "shape" else (actual, expected)
                    raise HookError(
                        f"{self._here} returned {of} of {attribute} {shown[0]} instead of {shown[1]}{self._unchecked_hint()}"
                    )

    def _unchecked_hint(self) -> str:
        return "; set checked=False if this is intended" if self.rule.kind in ("forward_pre", "forward") else ""

    @property
    def _here(self) -> str:
        return f"{self.where} ({self.rule.shown}, {self.rule.kind}) at {self.name}"


def _parts(tree: Any) -> list[Tensor | None]:
    """The tensors of a result. A flat tuple of gradients is returned as it is, with None for absent gradients."""
    if isinstance(tree, tuple) and all(item is None or isinstance(item, torch.Tensor) for item in tree):
        return list(tree)
    return list(tensors_in(tree))
