"""Accepting: which findings a user knows and takes for no problem, by patterns, some of them in files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.health.finding import fingerprint_of
from lightning_hooks.rules.fields import as_patterns

File = Mapping[str, str | os.PathLike[str]]
"""A file of patterns as YAML names it: `{file: accepted.txt}`."""
Accept = str | File | Sequence[str | File | os.PathLike[str]] | os.PathLike[str] | None
"""One or several patterns, or files of patterns; None for none.

jsonargparse tries the types in this order. A path takes any value as its text, so it comes after the list.
"""


_NAMED: Final = 3  # the most rows that patterns accept by their names
FILE_HINT: Final = "a file of patterns is Path({0!r}), in YAML {{file: {0}}}"


def accepted_patterns(accept: Accept) -> list[str]:
    """The patterns of an option `accept`.

    Args:
        accept: patterns such as `DeadUnits/encoder.*`, or files of them: paths, or mappings with the key `file`. A string is
            always a pattern. A file has one pattern in each line; empty lines and those that begin with `#` are skipped.

    Raises:
        RuleError: an entry is no pattern, or a file cannot be read.

    Example:
        >>> accepted_patterns(["DeadUnits/encoder.*"])
        ['DeadUnits/encoder.*']
    """
    entries: Any = [accept] if isinstance(accept, (str, os.PathLike, Mapping)) else accept
    if not isinstance(entries, Sequence) or isinstance(entries, bytes):
        return as_patterns("accept", entries)
    return as_patterns("accept", [pattern for entry in entries for pattern in _patterns_of(entry)])


def _patterns_of(entry: Any) -> list[Any]:
    """The patterns of one entry of `accept`: those of a file, or the entry itself."""
    if isinstance(entry, os.PathLike):
        return _read(entry)
    if not isinstance(entry, Mapping):
        return [entry]
    if [*entry] != ["file"] or not isinstance(entry["file"], (str, os.PathLike)):
        raise RuleError(f"accept: a mapping must be {{file: PATH}}, got {shown(dict(entry))}")
    return _read(entry["file"])


def _read(file: str | os.PathLike[str]) -> list[str]:
    """The patterns of a file."""
    path = Path(file).expanduser()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RuleError(f"accept: cannot read the file {shown(str(path))}: {reason}") from error
    return [line for line in lines if line and not line.startswith("#")]


def is_accepted(patterns: Iterable[str], rule: str, row: str) -> bool:
    """Whether a pattern accepts symptoms of a rule at a row. `*` stands for any text; a rule alone accepts all its rows.

    Example:
        >>> is_accepted(["DeadUnits/encoder.*"], "DeadUnits", "encoder.3"), is_accepted(["LossSpike"], "DeadUnits", "fc")
        (True, False)
    """
    names = (rule, f"{rule}/{row}")
    return any(_glob(pattern, name) for pattern in patterns for name in names)


def patterns_of(rule: str, rows: Sequence[str]) -> list[str]:
    """The patterns that accept a finding: its rows by their names, and more than three rows by what they have in common.

    Example:
        >>> patterns_of("DeadUnits", ["fc", "head"]), patterns_of("LossSpike", [""])
        (['DeadUnits/fc', 'DeadUnits/head'], ['LossSpike'])
        >>> patterns_of("DeadUnits", [f"encoder.{i}" for i in range(8)])
        ['DeadUnits/encoder.*']
    """
    if len(rows) > _NAMED:
        return [fingerprint_of(rule, rows)]
    return [f"{rule}/{row}" if row else rule for row in rows]


def refuse_unknown_rules(patterns: Iterable[str], rules: Sequence[str], where: str = "accept") -> None:
    """Refuse patterns of findings that name no rule.

    Args:
        patterns: as of `is_accepted`.
        rules: the names of the rules.
        where: the option in messages.

    Raises:
        RuleError: no rule has the name that stands before the slash.
    """
    for pattern in patterns:
        name = pattern.partition("/")[0]
        if any(_glob(name, rule) for rule in rules):
            continue
        if name.endswith(".txt"):
            raise RuleError(f"{where}: there is no health rule {shown(name)}; {FILE_HINT.format(name)}")
        if "*" in name:
            raise RuleError(f"{where}: no health rule matches {shown(name)}; there are {', '.join(rules)}")
        raise RuleError(f"{where}: there is no health rule {shown(name)}{did_you_mean(name, rules)}")


def _glob(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
