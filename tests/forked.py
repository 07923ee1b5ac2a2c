"""Python processes that find torch imported, and what Lightning needs, but neither Lightning nor anything of this package.

A process of its own takes 8 s to import torch and Lightning. These are forks of one that has imported all but Lightning's own
modules: they start in a tenth of a second, and either Lightning is theirs after another fifth.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_CONTEXT = multiprocessing.get_context("forkserver")
# The server ignores a module that cannot be imported.
_CONTEXT.set_forkserver_preload(
    ["torch", "torch._dynamo", "torchmetrics", "torch.utils.tensorboard", "jsonargparse", "safetensors.torch", "pytest"]
)


def start(
    arguments: Sequence[str], environment: Mapping[str, str], stdout: Path, stderr: Path | None = None, cwd: Path = ROOT
) -> BaseProcess:
    """Start what `python ARGUMENTS` would run.

    Args:
        arguments: `-c CODE`, `-m MODULE` or the path of a script, then those of the program.
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
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")
