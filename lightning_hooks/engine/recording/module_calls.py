"""Which call of which module runs, by global forward hooks that no module keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Call(NamedTuple):
    """One call of a module.

    Args:
        module: the dotted name; empty for the model itself, and outside all modules.
        type: the class of the module; empty outside all modules.
        number: of the call of this module, from 0.
    """

    module: str = ""
    type: str = ""
    number: int = 0


OUTSIDE = Call()
"""Code outside the forward pass of all modules."""


class ModuleCalls:
    """The calls of the modules of a model that run at present, the innermost last.

    Modules that are not part of the model, such as a loss in a variable, are not named: their operations belong to the caller.

    Args:
        model: its modules are named.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._numbers: Counter[nn.Module] = Counter()
        self._running: list[tuple[nn.Module, Call]] = []

    @property
    def current(self) -> Call:
        """The innermost call; `OUTSIDE` if no module runs."""
        return self._running[-1][1] if self._running else OUTSIDE

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow calls until the block ends. The hooks are global: no module of the model is changed."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            # An exception inside the module must end the call, too.
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._running.clear()

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(module)
        if name is not None:
            self._running.append((module, Call(name, type(module).__name__, self._numbers[module])))
            self._numbers[module] += 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if any(running is module for running, _ in self._running):
            while self._running.pop()[0] is not module:
                pass
