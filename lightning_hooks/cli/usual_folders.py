"""The folders that `doctor` and `view` take without an argument: the usual ones of the current folder that hold runs."""

from __future__ import annotations

import fnmatch
import os
import sys
from pathlib import Path
from typing import Final

from lightning_hooks.errors import RuleError, enumerated, printable

USUAL: Final = ("lightning_logs", "lightning_hooks_logs", "runs", "logs", "tb_logs")
"""The names of the folders into which Lightning, this package and users write runs."""
NAMED: Final = enumerated(USUAL)
"""These names in a sentence."""


def usual_folders(command: str, *, records: bool = False) -> list[Path]:
    """The usual folders that hold runs, relative to the current folder. A line on standard error says which were taken.

    Args:
        command: the name of the command, for messages.
        records: whether a folder with a flight record alone counts too.

    Raises:
        RuleError: there is none; the message names what was looked for.
    """
    from lightning_hooks.health.journal import FINDINGS
    from lightning_hooks.recorder.files import RECORD
    from lightning_hooks.tensorboard.run_files import PATTERN

    patterns = [PATTERN, FINDINGS, *[RECORD] * records]
    folders = [Path(name) for name in USUAL if _holds(Path(name), patterns)]
    if not folders:
        empty = [name for name in USUAL if Path(name).is_dir()]
        beside = f" ({' and '.join(empty)} {'exists' if len(empty) == 1 else 'exist'})" if empty else ""
        raise RuleError(
            f"no folder was given, and none of {NAMED} in {Path.cwd()} holds a run{beside}; name the folder of a run, or one "
            f"above runs, as in `lightning-hooks {command} .`"
        )
    taken = " and ".join(map(str, folders))
    print(printable(f"lightning-hooks: {command} takes the runs in {taken}"), file=sys.stderr)
    return folders


def _holds(folder: Path, patterns: list[str]) -> bool:
    """Whether a file of these names is in a folder, at any depth."""
    return any(fnmatch.filter(files, pattern) for _, _, files in os.walk(folder) for pattern in patterns)
