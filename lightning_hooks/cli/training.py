"""The commands `fit` and `match`, which use LightningCLI with a config."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_hooks.cli.module import match_module
from lightning_hooks.errors import HooksError

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI


def fit(arguments: list[str]) -> None:
    """Train."""
    cli = lightning_cli("fit", arguments)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)


def match(arguments: list[str]) -> None:
    """Print what the rules of a config match in its model, or what default rules match in a module."""
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
