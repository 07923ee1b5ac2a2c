"""Finds copies of a model, or of a part of it, that no optimizer of the run trains: averages, teachers, target networks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from weakref import ref

from torch import Tensor, nn

from lightning_hooks.engine.lookouts.surroundings import Surroundings

_DEPTH: Final = 2
"""How deep a part of the model of which there may be a copy lies in the model."""
_MOST: Final = 200
"""The number of modules of one class that are compared."""


class Copy(NamedTuple):
    """A module that has the parameters of another one, by names and shapes, in tensors of its own.

    Args:
        copy: the copy, known weakly.
        source: what it is a copy of, known weakly.
        name: of the copy in the model; empty if it is outside.
        source_name: of its source in the model; empty for the model itself.
        variable: the attribute or global variable that holds a copy outside of the model; empty if that is not known.
    """

    copy: ref[nn.Module]
    source: ref[nn.Module]
    name: str
    source_name: str
    variable: str = ""

    def __repr__(self) -> str:
        return f"the copy `{self.name}`" if self.name else "a copy outside of the model"

    def parameters(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The name of each parameter within source and copy, with that of the copy and that of the source."""
        yield from _pairs(self, "named_parameters")

    def buffers(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """As `parameters`, of buffers."""
        yield from _pairs(self, "named_buffers")


def copies_of(around: Surroundings) -> list[Copy]:
    """The copies, inside and outside of the model, of each part of it that is trained.

    Python's garbage collector is asked for the objects of the classes of these parts, which takes about a tenth of a second.
    """
    model = around.model()
    if model is None:
        return []
    groups = [group for each in around.optimizers() for group in getattr(each, "param_groups", ())]
    held = {id(each) for group in groups for each in group["params"] if each.requires_grad}
    sources = [(name, each, _shapes(each)) for name, each in _parts(model) if _is_held(each, held)]
    names = {id(module): name for name, module in model.named_modules()}
    found: list[Copy] = []
    inner: set[int] = set()
    for candidate in _objects_of({type(each) for _, each, _ in sources}):
        if id(candidate) in inner or any(id(each) in held for each in candidate.parameters()):
            continue
        shapes = _shapes(candidate)
        for name, source, wanted in sources:
            if type(source) is type(candidate) and shapes == wanted:
                own = names.get(id(candidate), "")
                found.append(Copy(ref(candidate), ref(source), own, name, "" if own else _variable(candidate)))
                inner.update(id(each) for each in candidate.modules())
                break
    return found


def references_to_parts(around: Surroundings) -> tuple[int, ...]:
    """How many references Python counts to the class of each part of the model that `copies_of` compares.

    An object holds a reference to its class, so that a number stands still as long as no copy is made. Counting takes
    microseconds, where a search takes some hundredths of a second.
    """
    model = around.model()
    return () if model is None else tuple(sys.getrefcount(type(each)) for _, each in _parts(model))


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The model and the larger parts of it, each with its name."""
    for name, module in model.named_modules():
        if name.count(".") < _DEPTH and (not name or any(True for _ in module.children())):
            yield name, module


def _objects_of(kinds: set[type]) -> list[nn.Module]:
    """The modules of classes, those that hold the others first."""
    found = [each for each in gc.get_referrers(*kinds) if type(each) in kinds and "_parameters" in vars(each)]
    return sorted(found[:_MOST], key=lambda each: -sum(1 for _ in each.modules()))


def _variable(module: nn.Module) -> str:
    """The name under which a module of Python, or an object that is no part of a model, holds a module; empty if none does."""
    for each in gc.get_referrers(module):
        held = each if type(each) is dict else getattr(each, "__dict__", None)
        if type(held) is dict and held is not vars(module):
            for key, value in list(held.items()):
                if value is module and isinstance(key, str) and key.isidentifier():
                    return key
    return ""


def _shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(each.shape)) for name, each in module.named_parameters() if type(each) is nn.Parameter]


def _is_held(module: nn.Module, held: set[int]) -> bool:
    return any(id(each) in held for each in module.parameters())


def _pairs(found: Copy, kind: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    copy, source = found.copy(), found.source()
    if copy is None or source is None:
        return
    named: Iterable[tuple[str, Tensor]] = getattr(source, kind)()
    sources = dict(named)
    for name, tensor in getattr(copy, kind)():
        if name in sources and sources[name].shape == tensor.shape:
            yield name, tensor, sources[name]
