"""Reading of rules, transforms and callables from mappings, as YAML, jsonargparse and Hydra give them.

Containers of Hydra are a `Sequence` or `Mapping`, but neither `list` nor `dict`. The argument `where` of each function is the
option that holds the value; messages of `RuleError` begin with it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any, TypeVar

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.rules.calling import check_takes, check_takes_tensor
from lightning_hooks.rules.importing import import_object

R = TypeVar("R")


def as_rules(kind: type[R], rules: Any, where: str) -> list[R]:
    """Read a list of rules from instances and mappings (plain, or Hydra's containers).

    Raises:
        RuleError: a rule is invalid; the message has the key of the value (`watch[2].stats`) and what is allowed.
    """
    if isinstance(rules, (kind, Mapping)):
        rules = [rules]
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        raise RuleError(f"{where} must be a list of {kind.__name__} rules or mappings, got {shown(rules)}")
    return [_as_rule(kind, rule, f"{where}[{i}]") for i, rule in enumerate(rules)]


def _as_rule(kind: type[R], rule: Any, where: str) -> R:
    if isinstance(rule, kind):
        return rule
    if not isinstance(rule, Mapping):
        raise RuleError(f"{where} must be a {kind.__name__} or a mapping, got {shown(rule)}")
    fields_of_kind = [field for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
    names = [field.name for field in fields_of_kind]
    fields = {str(key): value for key, value in rule.items() if key != "_target_"}
    for key in fields:
        if key == "stage" and "when" in names:
            raise RuleError(f"{where}: unknown key 'stage'; it is called when: 'step' or 'backward'")
        if key not in names:
            raise RuleError(f"{where}: unknown key {key!r}{did_you_mean(key, names)}; {kind.__name__} has {', '.join(names)}")
    for field in fields_of_kind:
        if field.default is dataclasses.MISSING and field.name not in fields:
            raise RuleError(f"{where}.{field.name} is missing")
    try:
        return kind(**fields)
    except RuleError as error:
        raise RuleError(f"{where}.{error}") from error


def as_transform(item: Any, where: str) -> Any:
    """A transform from an instance, a class path, or a mapping as jsonargparse or Hydra write it."""
    if callable(item) and not isinstance(item, (type, Mapping)):
        if not _takes_tensors_and_context(item):
            raise RuleError(
                f"{where}: {item!r} cannot be called with (tensors, context), as a transform is; a function of one tensor "
                "goes into Function(…)"
            )
        return item
    if isinstance(item, Mapping):
        path, arguments = _class_path(item, where)
    else:
        path, arguments = item, {}
    if not isinstance(path, str) and not isinstance(path, type):
        raise RuleError(f"{where} must be a transform, a class path or a mapping with class_path, got {shown(item)}")
    kind = _transform_class(path, where) if isinstance(path, str) else path
    # Check the class before calling it, because the path may name any class or function that can be imported.
    is_class_of_transforms = isinstance(kind, type) and _makes_callables(kind) and _takes_tensors_and_context(kind)
    made = _construct(kind, arguments, where) if is_class_of_transforms else None
    if not callable(made) or not _takes_tensors_and_context(made):
        raise RuleError(f"{where}: {path!r} is not a class of transforms; a function of one tensor goes into Function(…)")
    return made


def _takes_tensors_and_context(call: Any) -> bool:
    """Whether a callable, or each object of a class, accepts two positional arguments.

    The answer for functions in C without a signature is False.
    """
    is_class = isinstance(call, type)
    kind = call if is_class else type(call)
    # `nn.Module.__call__` accepts any arguments and passes them to `forward`, which has the signature that counts.
    is_module = getattr(kind.__call__, "__module__", "") == "torch.nn.modules.module"
    method = call.forward if is_module else kind.__call__ if is_class else call
    try:
        # Bind (tensors, context). `__call__` of a class takes the object as an additional first argument.
        inspect.signature(method).bind(*[None] * (3 if is_class else 2))
    except TypeError:
        return False
    except ValueError:
        return not isinstance(call, BuiltinFunctionType)
    return True


def _makes_callables(kind: type) -> bool:
    """Whether the objects of a class are callable. `callable(kind)` would be true for every class."""
    return any("__call__" in vars(base) for base in kind.__mro__)


def as_callable(item: Any, where: str, *arguments: str) -> Any:
    """A callable from an instance, an import path, or a mapping with `class_path` and `init_args`.

    Args:
        item: the value in the rule.
        where: the option that holds the value, for messages.
        arguments: the names of the positional arguments that the callable will get; without names, they are not checked.

    Raises:
        RuleError: the callable cannot be imported or constructed, or does not accept these arguments.
    """
    expected = "a class whose objects can be called"
    call = import_object(item, where) if isinstance(item, str) else as_object(item, where, _makes_callables, expected)
    if isinstance(call, type) or not callable(call):
        raise RuleError(
            f"{where} must be a function, an object that can be called, or the import path of one, got {shown(item)}"
        )
    if arguments == ("tensor",):
        check_takes_tensor(call, where)
    elif arguments:
        check_takes(call, where, *arguments)
    return call


def as_object(item: Any, where: str, is_allowed: Callable[[type], bool], expected: str) -> Any:
    """Construct an object from a mapping with `class_path` and `init_args`; return anything else unchanged.

    Args:
        item: the value of the option.
        where: the option that holds the value, for messages.
        is_allowed: whether the option allows a class. A class that is not allowed is never called.
        expected: a description of the allowed classes, for the message.

    Raises:
        RuleError: the class cannot be imported, is not allowed, or raises.
    """
    if not isinstance(item, Mapping):
        return item
    path, arguments = _class_path(item, where)
    kind = import_object(str(path), where)
    if not isinstance(kind, type) or not is_allowed(kind):
        raise RuleError(f"{where}: class_path must name {expected}, got {shown(path)}")
    return _construct(kind, arguments, where)


def _construct(kind: type, arguments: Mapping[str, Any], where: str) -> Any:
    """An object of a class. If the constructor raises, which may be the user's code, the error gets the name of the option."""
    try:
        return kind(**arguments)
    except TypeError as error:
        known = [field.name for field in dataclasses.fields(kind) if field.init] if dataclasses.is_dataclass(kind) else None
        takes = "" if known is None else f"; {kind.__name__} takes {', '.join(known) or 'no arguments'}"
        raise RuleError(f"{where}: {error}{takes}") from error
    except RuleError as error:
        raise RuleError(f"{where}: {error}") from error
    except Exception as error:
        raise RuleError(f"{where}: {kind.__qualname__} raised {type(error).__name__}: {error}") from error


def _class_path(item: Mapping[Any, Any], where: str) -> tuple[Any, dict[str, Any]]:
    """The class and the arguments in a mapping of jsonargparse (with `class_path`) or Hydra (with `_target_`)."""
    fields = {str(key): value for key, value in item.items()}
    if "class_path" not in fields and "_target_" in fields:
        return fields.pop("_target_"), fields
    path = fields.pop("class_path", None)
    if path is None:
        raise RuleError(f"{where}: a mapping needs class_path (and init_args), got keys {sorted(fields)}")
    return path, init_args(fields, where)


def init_args(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments under `init_args`, the only key that a mapping may have besides `class_path`, which `fields` lacks."""
    beside = [key for key in fields if key != "init_args"]
    if beside:
        # Leave `dict_kwargs` out of the hint: it is not an argument but another key under which jsonargparse writes arguments.
        given = ", ".join(f"{key}: …" for key in beside if key != "dict_kwargs")
        raise RuleError(
            f"{where}: unknown key {', '.join(map(repr, beside))} beside class_path and init_args; arguments go under "
            f"init_args{given and f': {{{given}}}'}"
        )
    arguments = fields.get("init_args")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise RuleError(f"{where}.init_args must be a mapping of arguments to values, got {shown(arguments)}")
    return {str(key): value for key, value in (arguments or {}).items()}


def _transform_class(path: str, where: str) -> Any:
    # Import transforms here, so that a rule that names no transform does not load torch.
    from lightning_hooks import transforms

    package, _, name = path.rpartition(".")
    if not package or path.startswith("lightning_hooks."):
        kinds = [name for name in transforms.__all__ if issubclass(getattr(transforms, name), transforms.Transform)]
        known = [kind for kind in kinds if kind != "Transform"]
        if name not in known or (package and not path.startswith("lightning_hooks.transforms.")):
            raise RuleError(f"{where}: unknown transform {path!r}{did_you_mean(name, known)}")
        return getattr(transforms, name)
    return import_object(path, where)
