"""Digests of the source that decides how a job is drawn, fitted and recorded: shared files, the family, the mutator."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.trainings import mutators
from benchmarks.trainings.families import FAMILIES
from benchmarks.trainings.mutators import FILES

_FOLDER: Final = Path(__file__).parent
_LATER: Final = frozenset(
    f"{name}.py"
    for name in (
        *("__init__", "__main__", "judging", "peers", "planning", "pool", "results", "shown", "source"),
        *("peer_table", "table", "verdicts", "wilson"),
    )
)
"""Files that choose jobs, judge lines or write pages. They change nothing of what a line records."""


def source_of(family: str, fault: str = "") -> dict[str, str]:
    """Twelve digits for each part of the source that decides a job.

    Args:
        family: the name of its family.
        fault: the name of its mutator; empty for none.

    Example:
        >>> [*source_of("mlp", "rate-too-high")]
        ['generator', 'families/mlp', 'mutators/rates']
    """
    shared = [path for path in sorted(_FOLDER.glob("*.py")) if path.name not in _LATER]
    parts = {"generator": _digest((*shared, _FOLDER / "families" / "family.py", *map(_path_of, _GALLERY)))}
    module = FAMILIES[family].measure.__module__
    parts[f"families/{module.rpartition('.')[2]}"] = _digest(files_of(module))
    if fault:
        parts[f"mutators/{FILES[fault]}"] = _digest(files_of(f"{mutators.__name__}.{FILES[fault]}"))
    return parts


@cache
def files_of(module: str) -> tuple[Path, ...]:
    """The file of a module, and the files of its folder that it imports, also by way of others. Answers decide no training.

    Example:
        >>> [path.name for path in files_of("benchmarks.trainings.families.segmentation")]
        ['cnn.py', 'denoising.py', 'family.py', 'segmentation.py']
    """
    package, path = module.rpartition(".")[0], _path_of(module)
    nodes = ast.walk(ast.parse(path.read_bytes()))
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None}
    inside = {each for each in imported if each.startswith(f"{package}.") and each != f"{package}.answers"}
    return tuple(sorted({path, *(file for each in inside for file in files_of(each))}))


_GALLERY: Final = ("galleries.health.training", "galleries.health.faulty_parts")
"""Modules outside of this package that make or fit trainings."""


def refuse_mixed(lines: Iterable[Mapping[str, Any]], where: str, today: bool = False) -> None:
    """Raise if lines were recorded with different sources.

    Args:
        lines: of recorded jobs. One that failed before its family was known names no source.
        where: names the file in the message.
        today: whether the lines must be of the source of today too.

    Raises:
        ValueError: names the part that differs, and the jobs.
    """
    known: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        source = line.get("source", {})
        for part, digest in source.items():
            known.setdefault(part, {}).setdefault(digest, []).append(line["key"])
        if today and source and line["family"] in FAMILIES and (not line["fault"] or line["fault"] in FILES):
            for part, digest in source_of(line["family"], line["fault"]).items():
                known.setdefault(part, {}).setdefault(digest, [])
    for part, digests in known.items():
        if len(digests) > 1:
            named = "; ".join(f"{digest}: {_few(keys) or 'the source of today'}" for digest, keys in digests.items())
            raise ValueError(
                f"{where} has lines of different versions of {part} ({named}): record these jobs anew, in another folder"
            )


def _few(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


@cache
def _digest(paths: tuple[Path, ...]) -> str:
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in paths)).hexdigest()[:12]


def _path_of(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)
