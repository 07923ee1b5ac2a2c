"""Runs the blocks of a page one after the other in one folder, and compares what they print with what the page shows."""

from __future__ import annotations

import contextlib
import io
import math
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from lightning_hooks.cli.main import main as lightning_hooks
from tests.pages.page import Block, blocks

# Lines of other packages, which depend on their versions.
_NOISE = re.compile(
    r"it/s|━|\[transformers\]|Writing model shards|train_runtime|^\W*$|UserWarning|FutureWarning|^  \w+\(|^Seed set to|"
    r"^(GPU|TPU|HPU) available|^💡|^`Trainer\.\w+` stopped|^StatsMonitor watches|^wandb:|"
    r"^lightning_hooks writes to|INFO mlflow|^Experiment with name"
)
_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)")
USAGE = 2
"""The exit code of a command that refuses its arguments or cannot judge."""
_NEAR = 0.1  # relative; another processor rounds otherwise, and a training amplifies it


class Failed(AssertionError):
    """A block did not do what its page says."""


def play(page: str) -> Iterator[tuple[Block, str, Block | None]]:
    """Run each block in the current folder; yields it, what it printed, and the block behind it that shows this.

    A block of Python is a script. If its first line is a comment that names a file, as `# train.py`, it is saved there and runs
    when a command names it; so is a block of YAML. Of a block of commands those of this package, `python` and `torchrun` run.

    Args:
        page: the text of the page.
    """
    each = blocks(page)
    for block, after in zip(each, [*each[1:], None], strict=True):
        shown = after if after is not None and after.language == "text" else None
        name = re.match(r"# ([\w./-]+\.(?:py|ya?ml))\n", block.text)
        if name:
            Path(name[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            yield block, _said(partial(exec, compile(block.text, "train.py", "exec"), {"__name__": "__main__"})), shown
        if block.language == "bash":
            lines = block.text.replace("\\\n", "").splitlines()
            yield block, "".join(_said(partial(command, line)) for line in lines), shown


def command(line: str) -> int | None:
    """Run one line of a shell; returns its exit code, or None if it is no command that a test may run.

    Args:
        line: one command; a comment behind it is left out.

    Raises:
        Failed: it is a command of this package, and it refuses its arguments.
    """
    words, target = _redirected(shlex.split(line, comments=True))
    if target is not None:
        with target.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            return command(shlex.join(words))
    if words[:1] == ["lightning-hooks"]:
        code = _exit_code(partial(lightning_hooks, words[1:]))
    elif words[:2] == ["python", "-m"]:
        code = _exit_code(partial(runpy.run_module, words[2], run_name="__main__"), words[2:])
    elif words[:1] == ["torchrun"]:
        launched = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        done = subprocess.run(launched, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout)
        code = done.returncode
    elif words[:1] == ["python"]:
        code = _exit_code(partial(runpy.run_path, words[1], run_name="__main__"), words[1:])
    else:
        return None
    if code == USAGE:
        raise Failed(f"{line}: exit code {code}")
    return code


def _redirected(words: list[str]) -> tuple[list[str], Path | None]:
    """The words before a `>`, and the file behind it."""
    return (words[:-2], Path(words[-1])) if ">" in words else (words, None)


def _exit_code(run: Callable[[], object], arguments: Sequence[str] = ()) -> int:
    """The exit code of what is called, with arguments of the process."""
    before = sys.argv
    sys.argv = list(arguments)
    try:
        code = run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int | None) else 1
    finally:
        sys.argv = before
    return code if isinstance(code, int) else 0


def _said(run: Callable[[], object]) -> str:
    """What a call prints, without the lines of other packages."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        run()
    lines = said.getvalue().replace("\r", "\n").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if not _NOISE.search(line))


def is_shown(shown: str, said: str) -> bool:
    """Whether a text stands in what was printed. A line `...` stands for any lines, numbers may differ by a tenth.

    Example:
        >>> is_shown("loss 0.51\\n...\\nend", "begin\\nloss 0.50\\nmore\\nend\\n"), is_shown("loss 0.9", "loss 0.5")
        (True, False)
    """
    words = _NUMBER.split(shown.strip().removesuffix("\n..."))
    parts = [_NUMBER.pattern if i % 2 else re.escape(word) for i, word in enumerate(words)]
    pattern = "".join(parts).replace(re.escape("...\n"), r"(?:.*\n)*?")
    numbers = [_value(word) for word in words[1::2]]
    return any(
        all(math.isclose(_value(a), b, rel_tol=_NEAR) for a, b in zip(match.groups(), numbers, strict=True))
        for match in re.finditer(pattern, said)
    )


def _value(number: str) -> float:
    return float(number.replace(",", "").rstrip("."))


def check(page: str) -> None:
    """Run a page in the current folder, and fail where it shows what its blocks do not print.

    Args:
        page: the text of the page.

    Raises:
        Failed: with what is shown and what was printed.
    """
    for _, said, shown in play(page):
        if shown is not None and not is_shown(shown.text, said):
            raise Failed(f"the page shows\n{shown.text}\nand its block printed\n{said}")
