"""`Hook`: the rule that registers a user's function as a torch hook."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.rules.calling import check_takes
from lightning_hooks.rules.fields import (
    CallSpec,
    ScheduleSpec,
    TypeSpec,
    check_select,
    check_stages,
    normalise,
    short_repr,
)
from lightning_hooks.rules.reading import as_callable
from lightning_hooks.rules.schedule import every_n
from lightning_hooks.rules.tensors import MODULE_KINDS, OPTIMIZER_KINDS, PARAM_KINDS

_IN_ORDER: Final = ("saved_tensors", "post_accumulate_grad", *OPTIMIZER_KINDS)
"""The kinds of hooks that torch always runs in the order of registration."""
_ARGUMENTS: Final = {
    "forward_pre": ("module", "args"),
    "forward": ("module", "args", "output"),
    "full_backward_pre": ("module", "grad_output"),
    "full_backward": ("module", "grad_input", "grad_output"),
    "input_grad": ("grad",),
    "output_grad": ("grad",),
    "node_pre": ("grad_outputs",),
    "node": ("grad_inputs", "grad_outputs"),
    "saved_tensors": ("tensor",),
    "param_grad": ("grad",),
    "post_accumulate_grad": ("param",),
    "optimizer_step_pre": ("optimizer", "args", "kwargs"),
    "optimizer_step_post": ("optimizer", "args", "kwargs"),
}
"""The arguments with which torch calls a hook of each kind; with `with_kwargs`, `kwargs` follows `args`."""


@dataclass(frozen=True)
class Hook:
    """A custom hook on every matched module, parameter or optimizer.

    Args:
        call: a callable with torch's signature for the kind, its import path, or a mapping with `class_path` and
            `init_args`; for `saved_tensors` a pair of these, to pack and to unpack.
        kind: the kind of torch hook: `forward_pre`, `forward`, `full_backward_pre`, `full_backward`, `output_grad` (on
            every output tensor), `input_grad` (the module's own contribution), `node_pre` and `node` (on the output's
            `grad_fn`), `saved_tensors` (around the forward), with `params` `param_grad` and `post_accumulate_grad`, with
            neither of `modules` and `params` `optimizer_step_pre` and `optimizer_step_post`.
        modules: patterns of module names.
        params: patterns of parameter names.
        types: only modules (or parameters of modules) of these classes; default: all.
        select: as for `Watch`: `all` (default), `leaves` or `layers`.
        named: whether the dotted name of the target is passed as the first argument; default False.
        with_kwargs: with `forward_pre` and `forward`: whether keyword arguments follow the positional ones; default False.
        prepend: whether the hook runs before hooks that are already registered; default False. Not with `saved_tensors`,
            `post_accumulate_grad` and hooks of optimizers.
        every_n_steps: a schedule, as for `Watch`; in stages other than `train` it counts batches. Default: every one.
        once: whether the hook runs at most once per target; default False.
        stages: any of `train`, `validate`, `test`, `predict`; default `train`.
        checked: whether to check that the result has the shape, dtype, device and layout of the argument it replaces, and
            that no argument is changed in place; default True.
        strict: whether a rule without a match is an error (default) or a warning.

    Raises:
        RuleError: a field has an invalid value.

    Example:
        >>> Hook("lightning_hooks.hooks.print_shapes", kind="forward", modules="*", types="Linear", once=True)
        Hook(call='lightning_hooks.hooks.print_shapes', kind='forward', modules='*', types=('Linear',), once=True)
    """

    call: CallSpec | tuple[CallSpec, CallSpec]
    _: KW_ONLY
    kind: str
    modules: str | Sequence[str] | None = None
    params: str | Sequence[str] | None = None
    types: TypeSpec | Sequence[TypeSpec] | None = None
    select: str = "all"
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
        """Check and normalise the fields, and import the callable."""
        normalise(self)
        kinds = (*MODULE_KINDS, *PARAM_KINDS, *OPTIMIZER_KINDS)
        if self.kind not in kinds:
            raise RuleError(f"kind: unknown kind {self.kind!r}{did_you_mean(self.kind, kinds)}; there are {', '.join(kinds)}")
        target = "modules" if self.kind in MODULE_KINDS else "params" if self.kind in PARAM_KINDS else ""
        for field in ("modules", "params"):
            if (getattr(self, field) is not None) != (field == target):
                needs = f"needs {target}" if target else "takes neither modules nor params"
                raise RuleError(f"{field}: a hook of kind {self.kind!r} {needs}")
        check_select(self)
        if self.with_kwargs and self.kind not in ("forward_pre", "forward"):
            raise RuleError(f"with_kwargs goes with forward_pre and forward, not with {self.kind!r}")
        if self.types is not None and not target:
            raise RuleError(f"types goes with modules and params, not with {self.kind!r}")
        if self.prepend and self.kind in _IN_ORDER:
            raise RuleError(f"prepend does not go with {self.kind!r}: torch runs these hooks in the order of registration")
        check_stages(self.stages)
        if self.every_n_steps is not None:
            every_n(self.every_n_steps, "every_n_steps")
        object.__setattr__(self, "calls", self._resolved())

    @property
    def shown(self) -> str:
        """The name of the callable in messages."""
        call = self.call
        return call if isinstance(call, str) else getattr(call, "__qualname__", None) or repr(call)

    def _resolved(self) -> tuple[Any, ...]:
        if self.kind != "saved_tensors":
            return (self._callable(self.call, "call"),)
        pair = self.call
        if isinstance(pair, (str, Mapping)) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise RuleError(f"call: a hook of kind 'saved_tensors' needs a pair (pack, unpack), got {shown(pair)}")
        object.__setattr__(self, "call", tuple(pair))
        return tuple(self._callable(item, f"call[{i}]") for i, item in enumerate(pair))

    def _callable(self, item: Any, where: str) -> Any:
        call = as_callable(item, where)
        # Check the arguments, except those of a ready-made hook: its method `for_kind` adapts it to every kind of hook.
        if not hasattr(call, "for_kind"):
            names = [*_ARGUMENTS[self.kind]]
            if self.with_kwargs:
                names.insert(2, "kwargs")
            if self.named or getattr(call, "named", False):
                names.insert(0, "name")
            check_takes(call, where, *names)
        return call

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return short_repr(self)
