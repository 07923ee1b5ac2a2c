"""Jobs of a pool, in a module that a process imports at once."""

from __future__ import annotations

import os
from typing import Any


def prepare() -> None:
    """Nothing is to be prepared."""


def work(job: int) -> dict[str, Any]:
    """Twice the job; one job ends its process, and one raises."""
    if job == 2:
        os._exit(9)
    if job == 3:
        raise ZeroDivisionError("no luck")
    return {"double": 2 * job}
