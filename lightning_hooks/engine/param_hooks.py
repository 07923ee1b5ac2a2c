"""The hooks on parameters that see each gradient as backward makes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

from lightning_hooks.engine.participant import Part
from lightning_hooks.engine.sites import visitor_of
from lightning_hooks.hooks import Gate, GradHook, Handles, OurHook


class ParameterHooks:
    """One chain for each parameter, and the hook that runs it as soon as the parameter can carry one.

    Args:
        model: the root.
        gate: of the model.
        handles: takes over the hooks on parameters.
        step_handles: takes over those on modules whose parameters have no shape yet.
    """

    def __init__(self, model: nn.Module, gate: Gate, handles: Handles, step_handles: Handles) -> None:
        self._model = model
        self._gate = gate
        self._handles = handles
        self._step_handles = step_handles
        self.chains: dict[int, tuple[nn.Parameter, list[Part]]] = {}  # without any there is nothing to register

    def build(self, parts: Iterable[tuple[nn.Parameter, Part]]) -> None:
        """Put the parts together, in their order; what must see the gradient as it is accumulated comes last."""
        self.chains = {}
        for parameter, part in parts:
            self.chains.setdefault(id(parameter), (parameter, []))[1].append(part)
        for _, chain in self.chains.values():
            chain.sort(key=lambda part: getattr(part, "last", False))

    def register(self) -> None:
        """Hook the parameters that have none yet. A frozen one refuses a hook, so it gets its own when it is unfrozen."""
        lazy = False
        for key, (parameter, parts) in self.chains.items():
            if isinstance(parameter, UninitializedParameter):
                lazy = True
            elif parameter.requires_grad and ("param", key) not in self._handles:
                self._handles.keep(parameter.register_hook(GradHook([visitor_of(parts)], self._gate)), key=("param", key))
        if lazy:  # it gets its shape in the forward pass, when its module is called
            for module in self._model.modules():
                if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
                    self._step_handles.keep(module.register_forward_hook(_Materialized(self)))


class _Materialized(OurHook):
    def __init__(self, hooks: ParameterHooks) -> None:
        self.hooks = ref(hooks)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        hooks = self.hooks()
        if hooks is not None and hooks._gate.open:
            hooks.register()
