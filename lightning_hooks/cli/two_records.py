"""`lightning-hooks diff RECORD RECORD`: names the first operator at which the steps of two flight records differ."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lightning_hooks.cli.replay import OpenedRecord, open_record, print_difference


def diff_of_records(a: Path, b: Path, modules: Sequence[str]) -> int:
    """Run the steps of two records, and print the first operator at which they differ.

    Args:
        a: the folder of the first record, or its file.
        b: likewise of the second.
        modules: the import path of the module of both, or of each.

    Returns:
        0 if they are equal to the last bit, else 1.

    Raises:
        RuleError: a record cannot run again, or its module is not given.
    """
    return print_difference(_opened(a, modules[0] if modules else None), _opened(b, modules[-1] if modules else None))


def _opened(path: Path, module: str | None) -> OpenedRecord:
    given = Namespace(record=path, module=module, values=[], config=None, checkpoint=None, classes=[], limit=600.0)
    return open_record(given)
