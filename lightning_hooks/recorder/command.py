"""The command that replays a record. A record only names its module and checkpoint: whoever types the command chooses them."""

from __future__ import annotations

import os
import shlex
from typing import Final

from lightning_hooks.recorder.record import FlightRecord

_SCRIPT = "__main__"
SCRIPT_PLACE: Final = "FILE_WITHOUT_PY"
"""Stands in a command for the name of the script that was run."""


def replay_command(record: FlightRecord, folder: str | os.PathLike[str]) -> str:
    """The command to type; empty if the record has no batch, so that its step cannot be replayed.

    Args:
        record: the record.
        folder: in which it is.

    Example:
        >>> from lightning_hooks.recorder.record import Verdict
        >>> record = FlightRecord(Verdict.FORWARD, 3, files={"batch": "batch.json"}, context={"module": "package.Model"})
        >>> replay_command(record, "flight_record")
        'lightning-hooks replay flight_record --module package.Model'
    """
    if "batch" not in record.files:
        return ""
    words = ["lightning-hooks", "replay", os.fspath(folder)]
    module, checkpoint = module_of(record), checkpoint_of(record)
    if module:
        words += ["--module", module]
    if checkpoint and "weights" not in record.files:
        words += ["--checkpoint", checkpoint]
    return shlex.join(words)


def module_of(record: FlightRecord) -> str:
    """The import path of the module that a record names; empty if there is none.

    A class of the script that was run has `SCRIPT_PLACE` in place of the name of the script, which the record does not know.
    """
    path = record.context.get("module")
    if not isinstance(path, str) or not all(part.isidentifier() for part in path.split(".")):
        return ""
    return f"{SCRIPT_PLACE}{path.removeprefix(_SCRIPT)}" if path.partition(".")[0] == _SCRIPT else path


def checkpoint_of(record: FlightRecord) -> str:
    """The path of the last checkpoint before a record; empty if there was none."""
    path = record.context.get("checkpoint")
    return path if isinstance(path, str) and path.isprintable() else ""
