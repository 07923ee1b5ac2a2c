"""The command line: finds the command, and turns errors into short messages and exit codes."""

from __future__ import annotations

import difflib
import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from lightning_hooks.cli.check import check
from lightning_hooks.cli.explain import explain
from lightning_hooks.cli.info import info, version
from lightning_hooks.cli.options import USAGE, error_line
from lightning_hooks.cli.runs import RUN_COMMANDS
from lightning_hooks.cli.usages import helps
from lightning_hooks.errors import HooksError, shown

_USAGE: Final = """usage: lightning-hooks COMMAND [options]

commands:
  fit --config FILE     train: a LightningCLI that knows the short class names of lightning_hooks
  match --config FILE   print what each rule of the config matches in the model, without training
  check --config FILE   find faults of a training on its first batch; the exit code is 1 if there are any
  match MODULE          print what StatsMonitor() would watch of a module; arguments as NAME=VALUE
  view [LOGDIR]         show the runs of a log directory in a browser
  report RUN            write a run as one HTML file
  doctor [RUN ...]      say what is wrong with trainings; the exit code is 1 if something is
  diff RUN RUN          say where two runs differ by a bit; the exit code is 1 if they do
  compare GOOD ... RUN  say where a run differs from good ones by more than a seed; the exit code is 1 if it does
  baseline RUN ...      keep what good runs tell in one small file, for compare and HealthMonitor
  replay RECORD         run the step of a flight record again and name the operation that went wrong
  explain NAME          say what a health rule, a cause, a check or an error means, and what to do; without NAME list all
  info                  print the versions of the dependencies and the kernels in use

exit codes:
  0    nothing is wrong, nothing differs, or the work is done
  1    a training is not healthy, a check fails, runs differ, or a step does not go wrong again
  2    wrong options, a file that is missing or damaged, or a run that cannot be judged
  130  Ctrl-C
  141  nobody reads the output any more, as after `| head`

`lightning-hooks COMMAND --help` lists the options, `lightning-hooks --version` prints the version.
"""
_INTERRUPTED: Final = 128 + 2
"""The exit code that a shell shows of a program that Ctrl-C has ended."""
_CLOSED_PIPE: Final = 128 + 13
"""The exit code that a shell shows of a program that SIGPIPE has ended, as it ends `cat`."""
_USER_CODE: Final = frozenset({"fit", "match", "check", "replay"})
"""The commands that import modules of the user's, which may lie in the current folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments without the name of the program; by default those of the process.

    Returns:
        The exit code: 0, or 2 if the command or a rule is invalid or `doctor` cannot judge a run; 1 if `diff` or `compare`
        found a difference, `doctor` or `check` a problem, or if `replay` did not find the problem of its record again; 130
        after Ctrl-C; 141 if nobody reads the output any more, as after `| head`.
    """
    try:
        try:
            code = _run(argv)
        except SystemExit as ended:  # argparse raises it after --help, --version and usage errors
            _flush()
            # Lightning ends a fit itself after Ctrl-C, with code 1.
            if isinstance(ended.__context__, KeyboardInterrupt):
                return _INTERRUPTED
            raise
        _flush()
        return code
    except BrokenPipeError:
        # The pipe of a training or of its workers may have broken, which is an error.
        if not _drop_closed_pipes():
            raise
        return _CLOSED_PIPE
    except KeyboardInterrupt:
        # What is printed so far stays. A traceback of our own code would say nothing to the user who has pressed the keys.
        _drop_closed_pipes()
        return _INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if arguments else USAGE
    if arguments[0] in ("-V", "--version"):
        print(f"lightning-hooks {version('lightning-hooks')}")
        return 0
    command, *rest = arguments
    commands: dict[str, Callable[[list[str]], int | None]] = {
        "fit": _fit,
        "match": _match,
        "replay": _replay,
        "check": check,
        "explain": explain,
        "info": info,
        **RUN_COMMANDS,
    }
    if command not in commands:
        near = difflib.get_close_matches(command, commands, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        print(error_line(f"unknown command {shown(command)}{meant}; there are {', '.join(commands)}"), file=sys.stderr)
        return USAGE
    # Of two flight records, `diff` imports the module that it is given.
    if command in _USER_CODE or (command == "diff" and any(each.startswith("--module") for each in rest)):
        _append_current_folder()
    _write_every_letter()
    try:
        return commands[command](rest) or 0
    except HooksError as error:
        print(error_line(str(error)), file=sys.stderr)
        return USAGE
    except OSError as error:
        # Print a short message only for a file of a run. An error of a training is raised with its traceback.
        if command not in RUN_COMMANDS or error.filename is None:
            raise
        print(error_line(f"{error.filename}: {error.strerror}"), file=sys.stderr)
        return USAGE


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _drop_closed_pipes() -> bool:
    """Let what waits for a pipe that nobody reads go nowhere: Python flushes again at its end, and would complain.

    Returns:
        Whether standard output or standard error is such a pipe.
    """
    closed = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _is_closed_pipe(stream)]
    for stream in closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return bool(closed)


def _is_closed_pipe(stream: TextIO) -> bool:
    try:
        stream.flush()
        if not hasattr(select, "poll"):
            return False
        # A stream without a buffer has nothing left to flush, so ask the system.
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except BrokenPipeError:
        return True
    except (OSError, ValueError):  # It is closed, or has no descriptor.
        return False


def _append_current_folder() -> None:
    """Let the user's modules be found in the current folder, after all installed ones.

    If the folder came first, a `tensorboard.py` or `numpy.py` in it would run in place of the package of that name.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)


def _write_every_letter() -> None:
    """Let letters that the encoding of the terminal does not have be written as numbers instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _fit(arguments: list[str]) -> None:
    if helps("fit", arguments):
        return
    from lightning_hooks.cli.training import fit

    fit(arguments)


def _match(arguments: list[str]) -> None:
    if helps("match", arguments):
        return
    from lightning_hooks.cli.training import match

    match(arguments)


def _replay(arguments: list[str]) -> int:
    from lightning_hooks.cli.replay import replay

    return replay(arguments)
