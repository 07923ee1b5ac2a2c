"""The names of the modules and parameters of one model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import nn

from lightning_hooks.rules.patterns import Target, named_modules, named_parameters

ROOT_NAME: Final = "the model"


class Names:
    """The modules and parameters of a model by their clean names.

    Args:
        model: the root module, whose name is `the model`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules: list[Target[nn.Module]] = list(named_modules(model))
        self.parameters: list[Target[nn.Parameter]] = named_parameters(model)
        self._by_id = {id(target.value): target.name for target in self.modules} | {id(model): ROOT_NAME}
        self.owner_of = {target.name: self._by_id.get(id(target.owner), "") for target in self.parameters}

    def hidden(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules in lists, tuples and dictionaries of modules, which torch does not know as a part of the model."""
        for name, module in [("", self.model), *((each.name, each.value) for each in self.modules)]:
            for attribute, value in vars(module).items():
                if attribute.startswith("_"):
                    continue
                entries = (
                    value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
                )
                for key, entry in entries:
                    if isinstance(entry, nn.Module) and not self.has(entry):
                        yield f"{name}.{attribute}[{key!r}]".removeprefix("."), entry

    def chain(self, name: str) -> list[tuple[str, nn.Module]]:
        """A module and the modules that it is within, outwards, with their names; that of the root is empty."""
        known = {target.name: target.value for target in self.modules}
        parts = [] if name == ROOT_NAME else name.split(".")
        names = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
        return [*((each, known[each]) for each in names if each in known), ("", self.model)]

    def has(self, module: nn.Module) -> bool:
        """Whether the model holds a module."""
        return id(module) in self._by_id

    def of(self, module: nn.Module) -> str:
        """The name of a module; the name of its class if the model does not hold it."""
        return self._by_id.get(id(module), type(module).__name__)
