"""The command line: `fit` and `match`, which use LightningCLI, `info`, and the commands that read runs."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import io
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_hooks.cli.runs import RUN_COMMANDS
from lightning_hooks.errors import HooksError, UnsupportedError, printable

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI


_USAGE = """usage: lightning-hooks COMMAND [options]

commands:
  fit --config FILE     train: a LightningCLI that knows the short class names of lightning_hooks
  match --config FILE   print what each rule of the config matches in the model, without training
  view LOGDIR           show the runs of a log directory in a browser
  report RUN            write a run as one HTML file
  diff A B              say where two runs differ; the exit code is 1 if they do
  findings RUN          say what is wrong with a training; the exit code is 1 if something is
  info                  print the versions of the dependencies and the kernels in use

`lightning-hooks COMMAND --help` lists the options.
"""

_DISTRIBUTIONS = ("torch", "lightning", "pytorch-lightning", "torchmetrics", "tensorboard", "numpy", "triton")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments without the name of the program; by default those of the process.

    Returns:
        The exit code: 0, or 2 if the command or a rule is invalid; 1 if `diff` found a difference, or `findings` a problem.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if arguments else 2
    command, *rest = arguments
    commands: dict[str, Callable[[list[str]], int | None]] = {"fit": _fit, "match": _match, "info": _info, **RUN_COMMANDS}
    if command not in commands:
        print(f"lightning-hooks: unknown command {command!r}; there are {', '.join(commands)}", file=sys.stderr)
        return 2
    if os.getcwd() not in sys.path:
        # As Python does for a script: the config may name modules in the current folder.
        sys.path.insert(0, os.getcwd())
    _write_every_letter()
    try:
        return commands[command](rest) or 0
    except HooksError as error:
        print(f"lightning-hooks: error: {printable(str(error), keep=chr(10))}", file=sys.stderr)
        return 2
    except OSError as error:
        # Print a short message only for a file of a run. An error of a training is raised with its traceback.
        if command not in RUN_COMMANDS or error.filename is None:
            raise
        print(f"lightning-hooks: error: {printable(str(error.filename))}: {error.strerror}", file=sys.stderr)
        return 2


def _write_every_letter() -> None:
    """Let letters that the encoding of the terminal does not have be written as numbers instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _fit(arguments: list[str]) -> None:
    cli = _lightning_cli(arguments)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)


def _info(arguments: list[str]) -> None:
    from lightning_hooks import backends
    from lightning_hooks.stats import kernels

    if arguments:
        raise UnsupportedError(f"info takes no arguments, got {' '.join(arguments)!r}")
    facts = {"lightning_hooks": _version("lightning-hooks"), "python": platform.python_version()}
    facts |= {name: _version(name) for name in _DISTRIBUTIONS}
    facts |= {"CPU kernel": kernels.in_use(), "CUDA kernel": kernels.in_use_on_cuda()}
    facts |= {"hooks": str(backends.hooks()), "tensor hooks": str(backends.tensor_hooks())}
    facts |= {"event files": str(backends.events())}
    facts["private names"] = _private_names()
    for name, value in facts.items():
        print(f"{name:<18}{value}")


def _private_names() -> str:
    from lightning_hooks import private
    from lightning_hooks.hooks import HookSwitch

    HookSwitch()  # the first switch tries the private names of autograd, and records those that are missing
    if private.are_off():
        return f"off ({private.VARIABLE}=off)"
    lost = "; ".join(f"{name}: {what}" for name, what in private.LOST.items())
    return f"public fallbacks for {lost}" if lost else "in use"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _match(arguments: list[str]) -> None:
    from lightning_hooks.callbacks._ours import matched, our_callbacks

    cli = _lightning_cli(arguments)
    cli.model.configure_model()  # as `fit` does: some models create their layers here
    if not our_callbacks(cli.trainer):
        print("the config has no callback of lightning_hooks")
    for callback, report in matched(cli.trainer, cli.model):
        print(f"{type(callback).__name__}\n{report if report.lines else 'matches nothing of its own'}\n")


def _lightning_cli(arguments: list[str]) -> LightningCLI:
    if importlib.util.find_spec("jsonargparse") is None:
        raise HooksError("the command line needs jsonargparse: pip install 'lightning-hooks[cli]'")
    from lightning_hooks import callbacks, transforms
    from lightning_hooks.callbacks._config import check_config, explain_failure

    check_config(arguments)
    for package in (callbacks, transforms):
        for name in package.__all__:
            getattr(package, name)  # imports the class, which registers its short name with jsonargparse
    base: Any = _cli_of(arguments)

    class CLI(base):  # type: ignore[misc]
        """A LightningCLI that explains an invalid rule itself, since jsonargparse's message is 129 lines long."""

        def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
            parser.exit_on_error = False
            try:
                super().parse_arguments(parser, args)
            except argparse.ArgumentError as error:
                explain_failure(arguments)
                parser.exit_on_error = True
                parser.error(str(error))

        def instantiate_classes(self) -> None:
            try:
                super().instantiate_classes()
            # A RuleError is a ValueError, and jsonargparse wraps it into another one.
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
