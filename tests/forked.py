"""Python processes that find torch and Lightning imported, but nothing of this package.

A process of its own takes 5 s to import both. These are forks of one that has done so, and start in a tenth of a second.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_CONTEXT = multiprocessing.get_context("forkserver")
_LIGHTNING = [package for package in ("lightning", "pytorch_lightning") if find_spec(package)]
_CONTEXT.set_forkserver_preload(["torch", *_LIGHTNING[:1]])


def start(
    arguments: Sequence[str], environment: Mapping[str, str], stdout: Path, stderr: Path | None = None, cwd: Path = ROOT
) -> BaseProcess:
    """Start what `python ARGUMENTS` would run.

    Args:
        arguments: `-c CODE` or `-m MODULE`, then those of the program.
        environment: all of its variables. Those that torch reads when it is imported are without effect.
        stdout: the file for its output.
        stderr: the file for its errors; by default that of the output.
        cwd: its current folder.
    """
    files = str(stdout), str(stderr or stdout)
    process = _CONTEXT.Process(target=_run, args=([*arguments], {**environment}, files, str(cwd)))
    process.start()
    return process


class Done(NamedTuple):
    """What a process has left."""

    returncode: int
    stdout: str
    stderr: str


def run(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ, cwd: Path = ROOT, timeout: float = 120.0
) -> Done:
    """Run a process to its end, as `subprocess.run` would."""
    with TemporaryDirectory() as folder:
        stdout, stderr = Path(folder) / "stdout", Path(folder) / "stderr"
        process = start(arguments, environment, stdout, stderr, cwd)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"the process has not ended within {timeout:g} s:\n{stderr.read_text()[-3000:]}")
        return Done(process.exitcode, stdout.read_text(), stderr.read_text())


def _run(arguments: list[str], environment: dict[str, str], files: tuple[str, str], cwd: str) -> None:
    gc.freeze()  # What was imported is no garbage.
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, path in enumerate(files, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
    _note_rank()
    kind, what, *rest = arguments
    sys.argv = [what, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


def _note_rank() -> None:
    """Lightning reads the rank when it is imported, which was in another process."""
    from lightning_utilities.core.rank_zero import rank_zero_only

    rank_zero_only.rank = int(os.environ.get("RANK", 0))
