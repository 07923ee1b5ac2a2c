"""What each process of the set-up `ddp` returns; started by `tests.conformance._rank`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden.observing import observe
from tests.golden.setups import fit_rank


def ddp(folder: Path) -> dict[str, Any]:
    return observe(fit_rank, folder)
