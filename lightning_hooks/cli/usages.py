"""The help of the commands that use LightningCLI. It reads names and docstrings from files, so that it loads no torch."""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from pathlib import Path
from typing import Final

_USAGE: Final = {
    "check": """\
usage: lightning-hooks check --config FILE [--json | --junit] [--accept CHECK/ROW ...] [--accept-file FILE ...]
                             [--overfit] [--time-limit SECONDS] [options of LightningCLI]

Find faults of a training on its first batch, without training.

check options:
  --json                print JSON
  --junit               print JUnit XML, which CI shows as tests
  --accept CHECK/ROW    a result that is known and no problem; `*` stands for any text; may be given several times
  --accept-file FILE    a file with one of these in each line; may be given several times
  --overfit             also check that one batch can be learnt in 50 steps
  --time-limit SECONDS  of each check; default 60

exit codes:
  0  no check fails
  1  a check fails

""",
    "fit": """\
usage: lightning-hooks fit --config FILE [options of LightningCLI]

Train as LightningCLI does, with short names for the callbacks and transforms of lightning_hooks.

""",
    "match": """\
usage: lightning-hooks match --config FILE [options of LightningCLI]
       lightning-hooks match MODULE [NAME=VALUE ...]

Print what each rule of a config matches in its model, how many scalars, and how many bytes, without training.
Without a config, build a module from its import path, such as package.Model, and print what StatsMonitor()
would watch of it.

""",
}
_OPTIONS: Final = """\
options:
  --config FILE         a config of LightningCLI; several are merged, in order
  --trainer.callbacks+=CALLBACK --trainer.callbacks.OPTION=VALUE
                        add a callback and set its options
  --print_config        print the config with all options, and end
  --help                print this help
  --help-all            print all options of LightningCLI, those of the Trainer included

"""


def helps(command: str, arguments: list[str]) -> bool:
    """Print the help of a command, if the arguments ask for it."""
    if not {"-h", "--help"}.intersection(arguments):
        return False
    print(f"{_USAGE[command]}{_OPTIONS}{_classes()}")
    return True


def _classes() -> str:
    """The callbacks and transforms that a config may name, with the first line of each docstring."""
    from lightning_hooks import callbacks, transforms

    if not any(map(importlib.util.find_spec, ("lightning", "pytorch_lightning"))):
        return "Lightning is not installed: only `match MODULE` works."
    lines = [f"  {name:<22}{_first_line(callbacks.__name__, name)}" for name in callbacks.__all__]
    others = [name for name in transforms.__all__ if name not in ("Context", "Transform")]
    names = textwrap.fill(", ".join(others), 100, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(["callbacks:", *lines, "", "transforms:", names])


def _first_line(package: str, name: str) -> str:
    """The first line of the docstring of a class of a package, from the source of the package; empty without the source."""
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for file in sorted(Path(folder).glob("[a-z]*.py")):
            text = file.read_text(encoding="utf-8")
            if f"\nclass {name}(" not in text:
                continue
            (kind,) = (each for each in ast.parse(text).body if isinstance(each, ast.ClassDef) and each.name == name)
            return (ast.get_docstring(kind) or "").partition("\n")[0]
    return ""
