"""`LIGHTNING_HOOKS_CONFIG=hooks.yaml python train.py`: callbacks for a script that does not know of them."""

from __future__ import annotations

import os
import secrets
from typing import Any

VARIABLE = "LIGHTNING_HOOKS_CONFIG"


def callbacks_from_environment() -> list[Any]:
    """The callbacks of the file that the environment variable names; none without the variable.

    Lightning calls this through its `callbacks_factory` entry points whenever a Trainer is made.

    Raises:
        RuleError: the file does not exist, or holds something other than callbacks of this package.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return []
    from lightning_hooks.callbacks._config import load_callbacks

    callbacks = load_callbacks(path, where=VARIABLE)
    mark = secrets.token_hex(8)
    for callback in callbacks:
        callback.environment = mark
    return list(callbacks)
