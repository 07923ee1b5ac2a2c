"""The commands `fit` and `match`, which use LightningCLI with a config, and the help of all commands that use one."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.cli.module import match_module
from lightning_hooks.errors import HooksError

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI


_USAGE: Final = {
    "check": """\
usage: lightning-hooks check --config FILE [--json | --junit] [--accept CHECK/ROW ...] [--overfit]
                             [--time-limit SECONDS] [options of LightningCLI]

Find faults of a training on its first batch, without training. The exit code is 1 if a check fails.

check options:
  --json                print JSON
  --junit               print JUnit XML, which CI shows as tests
  --accept CHECK/ROW    a result that is known and no problem; `*` stands for any text; may be given several times
  --accept-file FILE    a file with one of these in each line; may be given several times
  --overfit             also check that one batch can be learnt in 50 steps
  --time-limit SECONDS  of each check; default 60

""",
    "fit": """\
usage: lightning-hooks fit --config FILE [options of LightningCLI]

Train as LightningCLI does, with short names for the callbacks and transforms of lightning_hooks.

""",
    "match": """\
usage: lightning-hooks match --config FILE [options of LightningCLI]
       lightning-hooks match package.Module [name=value ...]

Print what each rule of a config matches in its model, how many scalars, and how many bytes, without training.
Without a config, build a module and print what StatsMonitor() would watch of it.

""",
}
_OPTIONS: Final = """\
options:
  --config FILE         a config of LightningCLI; several are merged, in order
  --trainer.callbacks+=NAME --trainer.callbacks.OPTION=VALUE
                        add a callback and set its options
  --print_config        print the config with all options, and end
  --help                print this help
  --help-all            print all options of LightningCLI, those of the Trainer included

"""


def fit(arguments: list[str]) -> None:
    """Train."""
    if helps("fit", arguments):
        return
    cli = lightning_cli("fit", arguments)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)


def match(arguments: list[str]) -> None:
    """Print what the rules of a config match in its model, or what default rules match in a module."""
    if helps("match", arguments):
        return
    if not arguments:
        raise HooksError("match needs --config FILE or a module; `lightning-hooks match --help` lists the options")
    if not arguments[0].startswith("-"):
        match_module(arguments)
        return
    cli = lightning_cli("match", arguments)
    from lightning_hooks.callbacks._ours import matched, our_callbacks

    # Call `configure_model`, as `fit` does: some models create their layers there.
    cli.model.configure_model()
    if not our_callbacks(cli.trainer):
        print("the config has no callback of lightning_hooks")
    for callback, report in matched(cli.trainer, cli.model):
        print(f"{type(callback).__name__}\n{report if report.lines else 'matches nothing of its own'}\n")


def helps(command: str, arguments: list[str]) -> bool:
    """Print the help of a command, if the arguments ask for it."""
    if not {"-h", "--help"}.intersection(arguments):
        return False
    print(f"{_USAGE[command]}{_OPTIONS}{_classes()}")
    return True


def _classes() -> str:
    """The callbacks and transforms that a config may name, with the first line of each docstring."""
    from lightning_hooks import callbacks, transforms

    try:
        named = [(name, getattr(callbacks, name)) for name in callbacks.__all__]
    except ImportError:
        return "Lightning is not installed: only `match package.Module` works."
    lines = [f"  {name:<22}{(kind.__doc__ or '').strip().splitlines()[0]}" for name, kind in named]
    others = [name for name in transforms.__all__ if name not in ("Context", "Transform")]
    names = textwrap.fill(", ".join(others), 100, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(["callbacks:", *lines, "", "transforms:", names])


def lightning_cli(command: str, arguments: list[str]) -> LightningCLI:
    """The parsed LightningCLI of a command, with the model, the data and the Trainer of its config.

    Raises:
        HooksError: jsonargparse is missing, or an argument is invalid.
    """
    if importlib.util.find_spec("jsonargparse") is None:
        raise HooksError("the command line needs jsonargparse: pip install 'lightning-hooks[cli]'")
    from lightning_hooks import callbacks, transforms
    from lightning_hooks.callbacks._config import check_config, explain_failure

    arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
    check_config(arguments)
    for package in (callbacks, transforms):
        for name in package.__all__:
            # The class is imported when its name is looked up, and jsonargparse then accepts its short name.
            getattr(package, name)
    base: Any = _cli_of(arguments)

    class CLI(base):  # type: ignore[misc]
        """A LightningCLI that explains an invalid rule itself, since jsonargparse's message is 129 lines long."""

        def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
            parser.exit_on_error = False
            try:
                super().parse_arguments(parser, args)
            except argparse.ArgumentError as error:
                explain_failure(arguments)
                # Do not let the parser print the message: it would print 44 lines of usage before it.
                raise HooksError(f"{error}; `lightning-hooks {command} --help` lists the options") from error

        def instantiate_classes(self) -> None:
            try:
                super().instantiate_classes()
            # If a callback raises a RuleError, which is a ValueError, jsonargparse wraps it into another ValueError.
            except ValueError:
                explain_failure(arguments)
                raise

    # Pass the arguments in `sys.argv`: LightningCLI warns if its arguments differ from `sys.argv`.
    argv, sys.argv = sys.argv, ["lightning-hooks", *arguments]
    try:
        cli: LightningCLI = CLI(run=False, save_config_kwargs={"overwrite": True})
    finally:
        sys.argv = argv
    return cli


def _cli_of(arguments: list[str]) -> Any:
    """The LightningCLI class of the package (`lightning` or `pytorch_lightning`) on whose LightningModule the model is based.

    If no config names a model, take the package that is already imported, or else the first one that is installed.
    """
    from lightning_hooks.callbacks._config import config_files
    from lightning_hooks.callbacks._lightning import first_usable, imported
    from lightning_hooks.rules.importing import import_object

    for _, content in config_files(arguments):
        model = content.get("model")
        path = model.get("class_path") if isinstance(model, Mapping) else model
        kind = import_object(path, "model") if isinstance(path, str) and "." in path else None
        for package, module in imported().items():
            if isinstance(kind, type) and issubclass(kind, module.LightningModule):
                return importlib.import_module(f"{package}.cli").LightningCLI
    try:
        first = next(iter(imported()), None)
        module = first_usable(".cli") if first is None else importlib.import_module(f"{first}.cli")
    except ImportError as error:
        raise HooksError(str(error)) from error
    return module.LightningCLI
