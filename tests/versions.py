"""What differs between the versions of Lightning that the tests run with."""

from __future__ import annotations

import inspect
from typing import Any

from lightning.pytorch import Trainer


def reading(weights_only: bool | None) -> dict[str, Any]:
    """Options of `fit` for a checkpoint with classes of ours: Lightning 2.5 has none, and reads every class."""
    known = "weights_only" in inspect.signature(Trainer.fit).parameters
    return {"weights_only": weights_only} if known else {}
