"""Ties of parameters that the code of a model declares, in its `__init__` or as transformers does."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import nn

_OTHERS: Final = frozenset({"torch", "lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics", "lightning_hooks"})
"""The packages whose modules declare nothing of a user's model."""
_Path = tuple[str | int, ...]


class Declared(NamedTuple):
    """Two parameters that the code says are one.

    Args:
        first: the parameter that is set.
        second: the parameter that it is set to.
        by: who says so, in words.
        line: the line of the user's code; empty if none says so.
    """

    first: nn.Parameter
    second: nn.Parameter
    by: str
    line: str = ""


class _Tie(NamedTuple):
    """An assignment of a parameter: where both are, as seen from the module, its line, and what must be true for it to run."""

    target: _Path
    value: _Path
    line: int
    conditions: tuple[_Path, ...]


def declared_ties(model: nn.Module) -> Iterator[Declared]:
    """The ties that the code of a model declares, whether or not they are still there.

    Only an assignment that has surely run counts: one of `__init__`, outside of loops, under conditions that the module shows.
    """
    known: dict[int, tuple[str, tuple[_Tie, ...], str]] = {}  # by the id of a class
    for module in model.modules():
        if type(module).__module__.partition(".")[0] in _OTHERS:
            continue
        yield from _of_library(module)
        if id(type(module)) not in known:
            known[id(type(module))] = _ties_of(type(module))
        initialise, ties, where = known[id(type(module))]
        for tie in ties:
            first, second = _parameter(module, tie.target), _parameter(module, tie.value)
            if first is not None and second is not None and all(_is_true(module, each) for each in tie.conditions):
                yield Declared(first, second, f"`{initialise}`", f"{where}:{tie.line} in __init__")


def _of_library(module: nn.Module) -> Iterator[Declared]:
    """The tie of the head of a model of transformers to its embedding."""
    if not getattr(type(module), "_tied_weights_keys", None) or not _asks_for_tie(getattr(module, "config", None)):
        return
    try:
        embedding, head = module.get_input_embeddings(), module.get_output_embeddings()  # type: ignore[operator]
    except Exception:
        # A model of another shape may define one of the two only.
        return
    if isinstance(embedding, nn.Module) and isinstance(head, nn.Module):
        first, second = _own_parameter(head, "weight"), _own_parameter(embedding, "weight")
        if first is not None and second is not None:
            yield Declared(first, second, f"`config.tie_word_embeddings` of {type(module).__name__}")


def _asks_for_tie(config: object) -> bool:
    return getattr(config, "tie_word_embeddings", False) is True


def _ties_of(kind: type[nn.Module]) -> tuple[str, tuple[_Tie, ...], str]:
    """How a class calls its `__init__`, the ties in it, and its file."""
    name = f"{kind.__name__}.__init__"
    owner = next((each for each in kind.__mro__ if "__init__" in vars(each)), kind)
    initialise = vars(owner).get("__init__")
    code = getattr(initialise, "__code__", None)
    if code is None or owner.__module__.partition(".")[0] in _OTHERS:
        return name, (), ""
    try:
        # `inspect.getsourcelines` asks each module of the process for its file before, which takes a quarter of a second.
        lines = linecache.getlines(code.co_filename, getattr(initialise, "__globals__", None))[code.co_firstlineno - 1 :]
        (definition,) = ast.parse(textwrap.dedent("".join(inspect.getblock(lines)))).body
    # The file may have been edited since the class was made, so that the line begins anywhere.
    except (TypeError, ValueError, SyntaxError, tokenize.TokenError):
        return name, (), ""
    if not isinstance(definition, ast.FunctionDef) or not definition.args.args:
        return name, (), ""
    myself = definition.args.args[0].arg
    ties = tuple(tie for tie in _ties_in(definition.body, myself, ()))
    return name, tuple(each._replace(line=each.line + code.co_firstlineno - 1) for each in ties), _shown(code.co_filename)


def _ties_in(body: Sequence[ast.stmt], myself: str, conditions: tuple[_Path, ...]) -> Iterator[_Tie]:
    for statement in body:
        if isinstance(statement, ast.If):
            condition = _path(statement.test, None)
            if condition is not None:
                yield from _ties_in(statement.body, myself, (*conditions, condition))
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = _path(statement.targets[0], myself), _path(statement.value, myself)
            # `self.a = self.b` gives a module another name; a tie sets a parameter of a child.
            if target is not None and value is not None and len(target) > 1 and isinstance(target[-1], str):
                yield _Tie(target, value, statement.lineno, conditions)


def _path(node: ast.expr, myself: str | None) -> _Path | None:
    """The attributes and indices from a name on; without the name itself if that must be `myself`."""
    steps: list[str | int] = []
    while True:
        match node:
            case ast.Attribute(value=value, attr=name):
                steps.append(name)
            case ast.Subscript(value=value, slice=ast.Constant(value=int() | str() as key)):
                steps.append(key)
            case ast.Subscript(value=value, slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as key))):
                steps.append(-key)
            case ast.Name(id=name):
                if myself is None:
                    return name, *reversed(steps)
                return tuple(reversed(steps)) if name == myself else None
            case _:
                return None
        node = value


def _parameter(module: nn.Module, path: _Path) -> nn.Parameter | None:
    """The parameter at the end of a path, as far as it leads through registered children."""
    *steps, last = path
    current: Any = module
    for step in steps:
        if not isinstance(current, nn.Module):
            return None
        if isinstance(step, int):
            children = list(current._modules.values())
            current = children[step] if -len(children) <= step < len(children) else None
        else:
            current = current._modules.get(step)
    return _own_parameter(current, str(last)) if isinstance(current, nn.Module) else None


def _own_parameter(module: nn.Module, name: str) -> nn.Parameter | None:
    # Keep duplicates: a parameter that is tied within one module has two names there.
    return dict(module.named_parameters(recurse=False, remove_duplicate=False)).get(name)


def _is_true(module: nn.Module, path: _Path) -> bool:
    """Whether a condition is known to hold: an attribute of the module, or an argument that the module keeps by its name."""
    first, *rest = path
    if first == "self":
        current: Any = module
    else:
        kept = vars(module).get("_hparams")
        held = vars(module) if first in vars(module) or not isinstance(kept, Mapping) else kept
        current = held.get(str(first))
    for step in rest:
        if isinstance(current, Mapping):
            current = current.get(step)
        elif hasattr(current, "__dict__"):
            current = vars(current).get(str(step))
        else:
            return False
    return isinstance(current, (bool, int)) and bool(current)


def _shown(file: str) -> str:
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
