"""Refresh of targets: find the modules and parameters that a fit has replaced by others of the same name."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from typing import Any

from torch import nn

from lightning_hooks.errors import listed
from lightning_hooks.rules.patterns import Target, named_modules, named_parameters


class Refresh:
    """Looks up the targets of rules again when modules or parameters of the model may have been replaced.

    A search of a large model would slow a step down. It therefore runs when an epoch begins, because callbacks change models
    then, and after a step that did not call a module that the previous step called.

    Attributes:
        requested: whether to look up targets when the next step begins.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.requested = False
        self._called: dict[Hashable, set[int]] = {}
        self._idle: set[int] = set()
        self._gone: set[str] = set()

    def request(self) -> None:
        self.requested = True
        self._idle.clear()

    def forget(self) -> None:
        """Forget which modules were called, because the set of modules with hooks changes."""
        self._called.clear()
        self._idle.clear()

    def note(self, key: Hashable, called: set[int]) -> None:
        """Record which modules with hooks a step called, and request a lookup if a module of the previous step is missing.

        Args:
            key: equal for steps with the same hooks.
            called: the ids of the modules. The modules are targets of rules, so they stay alive until `forget`.
        """
        before = self._called.get(key, set())
        if called == before:
            return
        self._called[key] = set(called)
        missing = before - called - self._idle
        # A module that was called before and not now may have been replaced. Search for it only once: with stochastic depth,
        # modules are skipped at random.
        if missing:
            self._idle |= missing
            self.requested = True

    def run(self, targets: Iterable[Target[Any]]) -> bool:
        """Look up targets by name and update those whose object was replaced; returns whether there were any.

        One warning lists the targets that are no longer in the model.
        """
        self.requested = False
        current: dict[tuple[bool, str], Target[Any]] = {}
        for module in named_modules(self._model):
            current.update({(False, alias): module for alias in module.aliases})
        for parameter in named_parameters(self._model):
            current.update({(True, alias): parameter for alias in parameter.aliases})
        objects = {id(target.value) for target in current.values()}
        changed = False
        gone: dict[str, None] = {}
        for target in {id(target): target for target in targets}.values():
            now = current.get((not isinstance(target.value, nn.Module), target.name))
            if now is None:
                # Do not report a parameter that is in the model under another name: pruning renames parameters. Its rows keep
                # the old name, which the rule matched.
                if id(target.value) not in objects:
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
