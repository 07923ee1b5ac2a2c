"""Writes `replay.py` into the folder of a record: a script that replays the step without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightning_hooks.whole_files import write_whole

SCRIPT: Final = "replay.py"


def write_script(folder: Path) -> Path:
    """Write the script, and return its path. It reads the record beside it, so it is the same for every record.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / SCRIPT
    source = Path(__file__).with_name("replay_script.py").read_bytes()
    if not path.is_file() or path.read_bytes() != source:
        write_whole(path, source)
    return path
