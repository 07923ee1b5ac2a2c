"""Creates callbacks from a YAML file, and checks the callbacks of this package in config files of the command line."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from lightning_hooks import callbacks
from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.errors import RuleError, did_you_mean, shortened, shown
from lightning_hooks.rules.prefix import ROOT
from lightning_hooks.rules.reading import init_args

_KNOWN: dict[str, type[HooksCallback]] = {name: getattr(callbacks, name) for name in callbacks.__all__}
_LONGEST: Final = 1_000_000  # characters of a file after its aliases are expanded
_MERGE: Final = "tag:yaml.org,2002:merge"  # the key `<<`, which may occur several times in a mapping


class _Loader(yaml.SafeLoader):
    """Loads YAML 1.2, in which 1e-3 is a number and a repeated key is an error. PyYAML reads a string, and the last value.

    The length of a file with expanded aliases is limited, because aliases of aliases may stand for more than memory holds.
    """

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _length(node, {}) > _LONGEST:
            raise yaml.composer.ComposerError(
                None, None, f"with its aliases written out it has more than {_LONGEST:,} characters", node.start_mark
            )
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                mark = first.setdefault((key.tag, key.value), key.start_mark)
                if mark is not key.start_mark:
                    reason = f"the key {key.value!r} is in line {mark.line + 1} already"
                    raise yaml.composer.ComposerError(None, None, reason, key.start_mark)
        return node


def _length(node: yaml.Node, lengths: dict[yaml.Node, int | None]) -> int:
    """The number of characters of a node with expanded aliases.

    `lengths` caches the lengths of nodes, and holds None for a node that is being counted.
    """
    if node not in lengths:
        lengths[node] = None
        if isinstance(node, yaml.ScalarNode):
            lengths[node] = 1 + len(node.value)
        elif isinstance(node, yaml.MappingNode):
            lengths[node] = 1 + sum(_length(each, lengths) for pair in node.value for each in pair)
        else:
            lengths[node] = 1 + sum(_length(each, lengths) for each in node.value)
    length = lengths[node]
    if length is None:
        raise yaml.composer.ComposerError(None, None, "an alias stands for what holds it", node.start_mark)
    return length


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def load_callbacks(path: str | Path, where: str, defaults: Mapping[str, Any] | None = None) -> list[HooksCallback]:
    """The callbacks that a file lists under `callbacks`, or under `trainer: callbacks` as for LightningCLI.

    Args:
        path: a YAML file.
        where: a prefix of messages, which names the source of the path.
        defaults: attributes to set on callbacks whose `init_args` do not have them.

    Raises:
        RuleError: there is no such file, it does not hold exactly one list of callbacks, or a callback is invalid.
    """
    file = Path(path)
    if not file.is_file():
        if file.is_dir():
            raise RuleError(f"{where}: {str(path)!r} is a folder; name a file in it")
        here = "" if file.is_absolute() else f" in {os.getcwd()} (give an absolute path)"
        raise RuleError(f"{where}: there is no file {str(path)!r}{here}")
    content = _read(file, f"{where}: {path}")
    listed: Any = content
    if isinstance(content, Mapping):
        trainer = content.get("trainer")
        of_trainer = trainer.get("callbacks") if isinstance(trainer, Mapping) else None
        if "callbacks" in content and of_trainer is not None:
            raise RuleError(
                f"{where}: {path} has both 'callbacks' and 'trainer: callbacks'; keep one: 'callbacks' is for this variable, "
                "'trainer: callbacks' for the command line too"
            )
        listed = content.get("callbacks", of_trainer)
    if not isinstance(listed, list):
        raise RuleError(f"{where}: {path} must hold a list of callbacks, under 'callbacks' or 'trainer: callbacks'")
    return [_callback(item, f"{where}: {path}: callbacks[{i}]", defaults) for i, item in enumerate(listed)]


def _callback(item: Any, where: str, defaults: Mapping[str, Any] | None = None) -> HooksCallback:
    kind, arguments = _call(item, where)
    try:
        callback = kind(**arguments)
    # A RuleError, which is a ValueError, is raised again with the place in the file.
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RuleError(f"{where}: {kind.__name__}: {shortened(str(error))}") from error
    for name, value in (defaults or {}).items():
        # Keep the prefix of a HealthMonitor:
        # it already differs from the prefixes of the script and of a StatsMonitor in the file.
        if name not in arguments and not (name == "prefix" and callback.prefix != ROOT):
            setattr(callback, name, value)
    callback.origin = where
    return callback


def _call(item: Any, where: str) -> tuple[type[HooksCallback], dict[str, Any]]:
    """The class of a callback and the arguments that a config gives it. Nothing is constructed.

    Raises:
        RuleError: no such callback or option.
    """
    if isinstance(item, str):
        item = {"class_path": item}
    if not isinstance(item, Mapping) or "class_path" not in item:
        raise RuleError(f"{where} needs class_path (and init_args), got {shown(item)}")
    path = str(item["class_path"])
    name = path.rpartition(".")[2]
    if name not in _KNOWN or (path != name and not path.startswith("lightning_hooks.")):
        raise RuleError(f"{where}: {shown(path)} is not a callback of lightning_hooks{did_you_mean(name[:100], _KNOWN)}")
    arguments = init_args({str(key): value for key, value in item.items() if key != "class_path"}, f"{where}: {name}")
    options = inspect.signature(_KNOWN[name]).parameters
    for option in arguments:
        if option == "True" and "on" in options:
            raise RuleError(f'{where}: {name}: YAML reads a bare on: as true; write "on": in quotes')
        if option not in options:
            raise RuleError(f"{where}: {name} has no option {shown(option)}{did_you_mean(option[:100], options)}")
    return _KNOWN[name], arguments


def _read(file: Path, where: str) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise RuleError(f"{where} cannot be read ({error.strerror})") from error
    # A ValueError is raised for bytes that are not UTF-8, and for a date that does not exist.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError)
        reason = "it is nested too deep" if is_deep else shortened(" ".join(str(error).split()), 1000)
        raise RuleError(f"{where} is not valid YAML ({reason})") from error


def config_files(arguments: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The config files among command-line arguments, `--config FILE` or `-c FILE`: the path and the content of each."""
    for position, argument in enumerate(arguments):
        flag, _, value = argument.partition("=")
        if flag in ("--config", "-c"):
            path = value or (arguments[position + 1] if position + 1 < len(arguments) else "")
            content = _read(Path(path), path) if os.path.isfile(path) else None  # The value may be YAML text instead of a path.
            if isinstance(content, Mapping):
                yield path, content


def check_config(arguments: list[str]) -> None:
    """Check the config files among command-line arguments without constructing anything.

    Args:
        arguments: the arguments of the command line; every `--config FILE` or `-c FILE` among them is read.

    Raises:
        RuleError: a file that cannot be read; an unknown callback of this package, or an unknown option of one; a file for the
            environment variable.
    """
    for path, content in config_files(arguments):
        if "callbacks" in content:
            raise RuleError(
                f"{path} has 'callbacks' at its top, as a file for LIGHTNING_HOOKS_CONFIG=FILE python train.py; the command "
                "line needs a config of LightningCLI, with 'model' and 'trainer: callbacks'"
            )
        for item, where in _listed_callbacks(path, content):
            kind, _ = _call(item, where)
            if isinstance(item, Mapping) and "init_args" in item:
                _refuse_for_jsonargparse(item["init_args"], f"{where}: {kind.__name__}")


def explain_failure(arguments: list[str]) -> None:
    """Construct the callbacks of the config files among command-line arguments, after LightningCLI has failed.

    Messages of jsonargparse about a rule are up to 129 lines long, and do not name the file.

    Args:
        arguments: of the command line.

    Raises:
        RuleError: an invalid callback of this package, with the key of the invalid value.
    """
    for path, content in config_files(arguments):
        for item, where in _listed_callbacks(path, content):
            _callback(item, where)


def _listed_callbacks(path: str, content: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """The callbacks of this package that a config of LightningCLI lists, each with its file and key for messages."""
    trainer = content.get("trainer")
    for key in ("callbacks", "callbacks+"):
        listed = trainer.get(key) if isinstance(trainer, Mapping) else None
        for i, item in enumerate(listed if isinstance(listed, list) else []):
            name = str(item.get("class_path", "") if isinstance(item, Mapping) else item)
            if name in _KNOWN or name.startswith("lightning_hooks."):
                yield item, f"{path}: trainer.{key}[{i}]"


def _refuse_for_jsonargparse(arguments: Any, where: str) -> None:
    """Refuse values that this package accepts and jsonargparse does not: its message would be 70 lines long."""
    if arguments is None:
        raise RuleError(f"{where}: init_args holds nothing: omit it, or give options in it")
    for option in ("watch", "apply", "hooks", "consumers"):
        if isinstance(arguments.get(option), Mapping):
            raise RuleError(
                f"{where}: {option} must be a list in a config of the command line: begin each item with '- ', got "
                f"{arguments[option]!r}"
            )
