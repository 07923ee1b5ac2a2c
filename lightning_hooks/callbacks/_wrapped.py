"""A bound method of the LightningModule, wrapped for a batch and put back: the last moment before the update."""

from __future__ import annotations

import types
from operator import itemgetter
from typing import Any
from weakref import ref

from lightning.pytorch import LightningModule

from lightning_hooks.engine.hook_manager import HookManager


class WrappedHook:
    """Calls the method it stands for, then lets the final gradients be read.

    Copies and pickles of the module get the plain method bound to the copy.

    Args:
        module: whose method.
        name: `configure_gradient_clipping` or `on_before_optimizer_step`; the optimizer is its first argument.
        hook manager: told afterwards.
    """

    def __init__(self, module: LightningModule, name: str, hook_manager: HookManager) -> None:
        self._module = ref(module)
        self._name = name
        self._hook_manager = ref(hook_manager)
        self._had: Any = None
        self._method: Any = None

    @property
    def __code__(self) -> Any:
        """Lightning compares it to see whether a user overrode the method."""
        return (self._had or self._method).__code__

    def install(self) -> WrappedHook:
        """Put it in the method's place."""
        module = self._module()
        assert module is not None
        self._had = module.__dict__.get(self._name)  # a user's
        self._method = getattr(type(module), self._name)
        module.__dict__[self._name] = self
        return self

    def remove(self) -> None:
        """Put the method back; harmless the second time."""
        module = self._module()
        if module is not None and module.__dict__.get(self._name) is self:
            del module.__dict__[self._name]
            if self._had is not None:
                module.__dict__[self._name] = self._had

    def __call__(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method, then the moment."""
        if self._had is not None:
            result = self._had(optimizer, *args, **kwargs)
        else:
            result = self._method(self._module(), optimizer, *args, **kwargs)
        hook_manager = self._hook_manager()
        if hook_manager is not None:
            hook_manager.phase("final", optimizer)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The plain method, bound to the copy of the module that is being made."""
        if self._had is not None:
            return self._had
        module: Any = self._module()
        return types.MethodType(self._method, memo.get(id(module), module))

    def __reduce__(self) -> Any:
        """The plain method, bound to the module that is being pickled; nothing of this package."""
        if self._had is not None:
            return itemgetter(0), ((self._had,),)
        return getattr, (self._module(), self._name)
