"""Patterns: select the modules and parameters of a model that a rule names."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from lightning_hooks.errors import NoMatchError, RuleError, UnsupportedError, listed, nearest
from lightning_hooks.rules.fields import EXPRESSION, TypeSpec, check_expressions
from lightning_hooks.rules.importing import import_object
from lightning_hooks.rules.layers import has_children, why_no_layers

R = TypeVar("R")
T = TypeVar("T", nn.Module, nn.Parameter)
_WRAPPER_PARTS = ("_orig_mod", "_fsdp_wrapped_module")
FLATTENED: Final = (
    "FSDP flattens parameters and gradients and leaves each rank a slice of them, often an empty one: their "
    "statistics would be those of slices, a norm that of one rank, and hooks on them never fire"
)
_SCRIPTED = "torch refuses hooks on modules of TorchScript (torch.jit.script, torch.jit.load); rules on their parameters work"


@dataclass(slots=True)
class Target(Generic[T]):
    """A module or a parameter that patterns can match.

    Args:
        name: the first dotted name, without the parts that wrappers such as DDP add.
        value: the module or parameter.
        owner: the module that holds the parameter; for a module the module itself.
        others: the other names of the same object, for example of a tied weight.
    """

    name: str
    value: T
    owner: nn.Module
    others: tuple[str, ...] = ()

    @property
    def aliases(self) -> tuple[str, ...]:
        """All names of the target, beginning with `name`."""
        return (self.name, *self.others)

    def add_alias(self, name: str) -> None:
        """Add another name, unless the target already has it."""
        if name not in self.aliases:
            self.others += (name,)


def each_once(targets: Iterable[Target[T]]) -> list[Target[T]]:
    """The first target of each object, because a fit may tie two parameters or modules that were separate targets."""
    by_id: dict[int, Target[T]] = {}
    for target in targets:
        by_id.setdefault(id(target.value), target)
    return list(by_id.values())


class Modules(list[Target[nn.Module]]):
    """The modules of a model that can be hooked.

    Args:
        targets: these modules.
        unhooked: maps the name of each other module to the reason why it cannot be hooked.
        scripted: the modules that `torch.jit.script` made; they are called, but cannot be hooked.
    """

    def __init__(
        self, targets: Iterable[Target[nn.Module]], unhooked: Mapping[str, str], scripted: Sequence[Target[nn.Module]]
    ) -> None:
        super().__init__(targets)
        self.unhooked = unhooked
        self.scripted = scripted

    def layers(self) -> Modules:
        """The modules that are layers of the network.

        Example:
            >>> model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(2, 2)), "loss": nn.MSELoss()})
            >>> [target.name for target in named_modules(model).layers()]
            ['net.0']
        """
        reasons = why_no_layers(target.value for target in (*self, *self.scripted))
        kept, scripted = ([each for each in targets if id(each.value) not in reasons] for targets in (self, self.scripted))
        return Modules(kept, self.unhooked, scripted)


def named_modules(model: nn.Module) -> Modules:
    """The modules of a model that can be hooked, by their clean names.

    Containers that are never called (`ModuleList`, `ModuleDict`) and modules that `torch.jit.script` made are not included, nor
    is the root, unless it is a single layer: that has the name of its class. A shared module appears once, under its first
    name. Instead of a wrapper, the wrapped module appears.

    Example:
        >>> [target.name for target in named_modules(nn.Sequential(nn.ModuleList([nn.Linear(1, 1)]), nn.ReLU()))]
        ['0.0', '1']
        >>> [target.name for target in named_modules(nn.Linear(1, 1))]
        ['Linear']
    """
    by_id: dict[int, Target[nn.Module]] = {}
    by_name: dict[str, nn.Module] = {}
    unhooked: dict[str, str] = {}
    scripted: list[Target[nn.Module]] = []
    for raw, module in model.named_modules(remove_duplicate=False):
        name = _clean(raw, model)
        # A wrapped module comes after its wrapper and has the same clean name, so it replaces the wrapper here.
        by_name[name] = module
    if _is_one_layer(root := by_name.pop("")):
        by_name[type(root).__name__] = root
    for name, module in by_name.items():
        if isinstance(module, torch.jit.RecursiveScriptModule):  # type: ignore[attr-defined]
            scripted.append(Target(name, module, module))
            unhooked[name] = _SCRIPTED
        elif _is_called(module):
            by_id.setdefault(id(module), Target(name, module, module)).add_alias(name)
        else:
            fault = "defines __call__() and not forward()" if "__call__" in _attributes(type(module)) else "has no forward()"
            unhooked[name] = f"the {type(module).__name__} {fault}, and torch calls hooks around forward() only"
    return Modules(by_id.values(), unhooked, scripted)


def named_parameters(model: nn.Module) -> list[Target[nn.Parameter]]:
    """The parameters of a model by their clean names; a tied parameter appears once, under its first name."""
    by_id: dict[int, Target[nn.Parameter]] = {}
    for raw_module, module in model.named_modules(remove_duplicate=False):
        prefix = _clean(raw_module, model)
        for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{leaf}" if prefix else leaf
            by_id.setdefault(id(parameter), Target(name, parameter, module)).add_alias(name)
    return list(by_id.values())


def select(
    targets: Sequence[Target[T]],
    patterns: str | Sequence[str],
    *,
    types: TypeSpec | Sequence[TypeSpec] | None = None,
    among: str = "all",
    strict: bool = True,
    is_written: bool = True,
    where: str = "patterns",
    advice: str = ". Set strict=False if this is intended",
) -> list[Target[T]]:
    """The targets that a rule matches, in the order of the model.

    Args:
        targets: the modules or parameters of the model.
        patterns: globs, `re:` regular expressions, `!` exclusions; a list is the union without its exclusions.
        types: classes, class names or import paths, of the module or of the parameter's module; default all.
        among: `all` targets (default), `leaves` (modules without children) or `layers` (of the network).
        strict: whether a rule that matches nothing raises (default) or warns.
        is_written: whether a user wrote the rule. Another rule that is not strict says nothing if it matches nothing.
        where: the option, for messages: `watch[0].modules`.
        advice: the end of the error's message.

    Raises:
        NoMatchError: nothing matches; the message has the three nearest names.
        RuleError: a regular expression is invalid, or a type does not exist.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    types = None if types is None else [types] if isinstance(types, (str, type)) else list(types)
    is_named, is_of_type = by_names(patterns, where), by_types(types, where)
    leaves = among == "leaves"
    if among == "layers" and isinstance(targets, Modules):
        targets = targets.layers()

    def matches(target: Target[T]) -> bool:
        return is_named(target.aliases) and not (leaves and has_children(target.owner)) and is_of_type(target.owner)

    selected = [target for target in targets if matches(target)]
    scripted = [target.name for target in getattr(targets, "scripted", ()) if matches(target)]
    refused = [name for name in scripted if name in patterns]
    if refused or not selected:
        message = _no_match(targets, refused, None, where) if refused else _no_match(targets, patterns, types, where)
        if strict:
            raise NoMatchError(f"{message}{advice}")
        if is_written:
            warnings.warn(message, stacklevel=2)
    elif scripted:
        warnings.warn(f"{where}: the rule has no effect on {listed(scripted)}: {_SCRIPTED}", stacklevel=2)
    return selected


def by_names(patterns: Sequence[str], where: str) -> Callable[[Sequence[str]], bool]:
    """Whether the names of a target match patterns, as a function of the names."""
    inclusions = [_compile(p, where) for p in patterns if not p.startswith("!")] or [re.compile(".*")]
    exclusions = [_compile(p[1:], where) for p in patterns if p.startswith("!")]

    def matches(names: Sequence[str]) -> bool:
        return any(p.fullmatch(name) for p in inclusions for name in names) and not any(
            p.fullmatch(name) for p in exclusions for name in names
        )

    return matches


def by_types(types: Sequence[TypeSpec] | None, where: str) -> Callable[[nn.Module], bool]:
    """Whether a module is of one of several classes, as a function of the module; None for any class."""
    kinds = None if types is None else [_kind(kind, where) for kind in types]
    return lambda module: kinds is None or any(_is_kind(module, kind) for kind in kinds)


def matched_by(model: nn.Module, rules: Iterable[R], where: str) -> Iterator[tuple[str, R, list[Target[Any]]]]:
    """For each rule of a list: its name in messages (`watch[0]`), the rule, and the targets that it matches in a model.

    Args:
        model: the root.
        rules: `Watch`, `Apply` or `Hook` rules; a rule on optimizers has no targets.
        where: the option that holds the rules: `watch`.

    Raises:
        NoMatchError: a strict rule matches nothing.
        RuleError: a regular expression is invalid, or a type does not exist.
        UnsupportedError: a rule matches a parameter under torch's `FullyShardedDataParallel` (FSDP1).
    """
    modules = named_modules(model)
    candidates: dict[str, Any] = {"modules": modules, "params": named_parameters(model)}
    for position, rule in enumerate(rules):
        here, fields, targets = f"{where}[{position}]", cast(Any, rule), []
        for option, all_targets in candidates.items():
            if (patterns := getattr(rule, option)) is not None:
                how = {"types": fields.types, "among": getattr(rule, "select", "all"), "strict": fields.strict}
                how["is_written"] = getattr(rule, "is_written", True)
                targets = select(all_targets, patterns, **how, where=f"{here}.{option}")
                if option == "params":
                    _refuse_flattened(model, targets, f"{here}.{option}")
        yield here, rule, targets


def _refuse_flattened(model: nn.Module, targets: Iterable[Target[Any]], where: str) -> None:
    # Compare the names of classes: importing FSDP takes long, and most models do not use it.
    flat = [m for m in model.modules() if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(m).__mro__)]
    held = {id(parameter) for module in flat for parameter in module.parameters()}
    for target in targets:
        if id(target.value) in held:
            raise UnsupportedError(
                f"{where}: {target.name!r} is part of a FullyShardedDataParallel (FSDP1). {FLATTENED}; use fully_shard "
                "(FSDP2) or DistributedDataParallel; rules on modules work here"
            )


def _clean(raw: str, root: nn.Module) -> str:
    parts: list[str] = []
    module: Any = root
    for part in raw.split(".") if raw else []:
        is_wrapped = part in _WRAPPER_PARTS or (
            part == "module" and isinstance(module, (DataParallel, DistributedDataParallel))
        )
        if not is_wrapped:
            parts.append(part)
        module = module._modules[part]
    return ".".join(parts)


def _attributes(kind: type) -> set[str]:
    """The names that a class and its bases below `nn.Module` define."""
    return {name for base in kind.__mro__ if issubclass(base, nn.Module) and base is not nn.Module for name in vars(base)}


def _is_called(module: nn.Module) -> bool:
    # A module whose class does not define forward() (ModuleList, ModuleDict, ParameterList) cannot be called. The class of a
    # module from torch.jit.trace does not define forward() in Python either, but such a module is called.
    return isinstance(module, torch.jit.ScriptModule) or (
        getattr(type(module).forward, "__name__", "") != "_forward_unimplemented"
    )


def _is_one_layer(root: nn.Module) -> bool:
    # A Trainer calls `training_step` of its module, so hooks around forward() of a LightningModule never fire.
    return not has_children(root) and _is_called(root) and not hasattr(root, "training_step")


def _compile(pattern: str, where: str) -> re.Pattern[str]:
    if not pattern.startswith(EXPRESSION):
        return re.compile(fnmatch.translate(pattern))
    check_expressions(where, [pattern])
    return re.compile(pattern.removeprefix(EXPRESSION))


def _kind(kind: TypeSpec, where: str) -> Any:
    if isinstance(kind, type):
        return kind
    if not isinstance(kind, str):
        raise RuleError(f"{where}: types holds {kind!r}; give a class, a class name or an import path")
    if "." not in kind:
        return kind
    found = import_object(kind, f"{where}: types")
    if not isinstance(found, type):
        raise RuleError(f"{where}: types: {kind!r} is not a class")
    return found


def _is_kind(module: nn.Module, kind: Any) -> bool:
    if isinstance(kind, str):
        return any(base.__name__ == kind for base in type(module).__mro__)
    return isinstance(module, kind)


def _no_match(targets: Sequence[Target[T]], patterns: list[str], types: Sequence[TypeSpec] | None, where: str) -> str:
    shown = patterns[0] if len(patterns) == 1 else patterns
    message = f"{where}: {shown!r} matches nothing"
    if types is not None:
        present = sorted({type(target.owner).__name__ for target in targets})
        names_of_types = [kind if isinstance(kind, str) else kind.__name__ for kind in types]
        message += f" of types {names_of_types} (the model has {', '.join(present)})"
    for pattern in [pattern for pattern in patterns if not pattern.startswith("!")]:
        for name, reason in getattr(targets, "unhooked", {}).items():
            if _compile(pattern, where).fullmatch(name):
                return f"{message}: {name!r} is there, but {reason}"
    names = [alias for target in targets for alias in target.aliases]
    plain = next((p for p in patterns if not p.startswith("!")), patterns[0]).removeprefix(EXPRESSION).lstrip("!")
    close = nearest(plain, names)
    if close:
        message += f"; the nearest names are {', '.join(map(repr, close))}"
    return message
