"""Refresh of targets: a rule names modules and parameters, and a fit may replace what has the name."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from typing import Any

from torch import nn

from lightning_hooks.errors import listed
from lightning_hooks.rules.patterns import Target, named_modules, named_parameters


class Refresh:
    """Finds out when the targets of rules are no longer those of the model, and looks them up again.

    Looking through a large model costs more than a step may, so it is done when an epoch begins, which is when callbacks
    change models, and where a module that was called in the step before is not called any more.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.requested = False  # to be run when the next step begins
        self._called: dict[Hashable, set[int]] = {}
        self._idle: set[int] = set()
        self._gone: set[str] = set()

    def request(self) -> None:
        self.requested = True
        self._idle.clear()

    def forget(self) -> None:
        """Forget which modules were called: others are hooked from now on."""
        self._called.clear()
        self._idle.clear()

    def note(self, key: Hashable, called: set[int]) -> None:
        """Note which hooked modules a step called, and request a lookup where one is missing.

        Args:
            key: equal for steps with the same hooks.
            called: the ids of the modules, which stay alive until `forget`: they are targets of rules.
        """
        before = self._called.get(key, set())
        if called == before:
            return
        self._called[key] = set(called)
        missing = before - called - self._idle
        if missing:  # each is looked up once: a layer that is dropped at random is still in the model
            self._idle |= missing
            self.requested = True

    def run(self, targets: Iterable[Target[Any]]) -> bool:
        """Look up targets; returns whether any was replaced. Such a target holds the new object afterwards.

        Missing targets are named in one warning.
        """
        self.requested = False
        there: dict[tuple[bool, str], Target[Any]] = {}
        for module in named_modules(self._model):
            there.update({(False, alias): module for alias in module.aliases})
        for parameter in named_parameters(self._model):
            there.update({(True, alias): parameter for alias in parameter.aliases})
        objects = {id(target.value) for target in there.values()}
        changed = False
        gone: dict[str, None] = {}
        for target in {id(target): target for target in targets}.values():
            now = there.get((not isinstance(target.value, nn.Module), target.name))
            if now is None:
                if id(target.value) not in objects:  # pruning only renames it: its rows keep the name of the rule
                    gone[target.name] = None
            elif now.value is not target.value:
                target.value, target.owner, changed = now.value, now.owner, True
        self._warn_gone([name for name in gone if name not in self._gone])
        return changed

    def _warn_gone(self, names: list[str]) -> None:
        if names:
            self._gone.update(names)
            gone = f"matched names are no longer in the model, and rules have no effect on them: {listed(names)}"
            warnings.warn(gone, stacklevel=2)
