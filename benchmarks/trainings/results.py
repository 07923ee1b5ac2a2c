"""The files of a folder of results: one JSON object a line, of recorded jobs, of judgements and of other packages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

RECORDED: Final = "recorded.jsonl"
JUDGED: Final = "judged.jsonl"
PEERS: Final = "peers.jsonl"


def append(folder: Path, line: Mapping[str, Any], name: str = RECORDED) -> None:
    """Add a line to a file. A line that was cut short is ended first."""
    with (folder / name).open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            is_cut = file.read(1) != b"\n"
        else:
            is_cut = False
        file.write(b"\n" * is_cut + json.dumps(line).encode() + b"\n")


def recorded(folder: Path, name: str = RECORDED) -> dict[str, dict[str, Any]]:
    """The lines of a file by their keys. A line that was cut short, because a run was killed, counts as not there."""
    lines: dict[str, dict[str, Any]] = {}
    path = folder / name
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        lines[line["key"]] = line
    return lines


def write_judged(folder: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace the judgements."""
    (folder / JUDGED).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def judged(folder: Path) -> dict[str, dict[str, Any]]:
    """The judgements by the keys of their jobs.

    Raises:
        ValueError: they are of different rules, so that no number is that of one set of rules.
    """
    lines = [json.loads(text) for text in (folder / JUDGED).read_text(encoding="utf-8").splitlines()]
    digests = {(line["rules"], line["code"]) for line in lines if "rules" in line}
    if len(digests) > 1:
        raise ValueError(f"{folder / JUDGED} has judgements of {len(digests)} sets of rules: judge all of them anew")
    return {line["key"]: line for line in lines}
