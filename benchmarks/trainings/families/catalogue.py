"""All families: those of the modules of this package that have a `FAMILY`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from benchmarks.trainings.families.family import Family


def _families() -> dict[str, Family]:
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    modules = [import_module(f"{__package__}.{name}") for name in names if name not in ("__init__", "catalogue", "family")]
    return {module.FAMILY.name: module.FAMILY for module in modules}


FAMILIES: Final[Mapping[str, Family]] = _families()
