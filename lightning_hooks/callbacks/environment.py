"""`LIGHTNING_HOOKS_CONFIG=hooks.yaml python train.py`: callbacks for a script that does not know of them."""

from __future__ import annotations

import os
import secrets
from typing import Any, Final

VARIABLE: Final = "LIGHTNING_HOOKS_CONFIG"
DEFAULTS: Final = {"prefix": "watch/", "loggers": ("tensorboard",), "logdir": "lightning_hooks_logs"}
"""What callbacks from the environment variable have where the file says nothing: the user's own curves stay as they are."""


def callbacks_from_environment() -> list[Any]:
    """The callbacks of the file that the environment variable names; none without the variable.

    Lightning calls this through its `callbacks_factory` entry points whenever a Trainer is made.

    Raises:
        RuleError: the file does not exist, or holds something other than callbacks of this package.
    """
    if not os.environ.get(VARIABLE):
        return []
    from lightning_hooks.callbacks._config import load_callbacks

    callbacks = load_callbacks(_exported_path(), where=VARIABLE, defaults=DEFAULTS)
    mark = secrets.token_hex(8)
    for callback in callbacks:
        callback.environment = mark
    return list(callbacks)


def callbacks_for_pytorch_lightning() -> list[Any]:
    """The same for a Trainer of `pytorch_lightning`.

    Raises:
        UnsupportedError: it is older than version 2.
        RuleError: as `callbacks_from_environment`.
    """
    if os.environ.get(VARIABLE):
        from lightning_hooks.callbacks._lightning import refuse_old
        from lightning_hooks.errors import UnsupportedError

        try:
            refuse_old("pytorch_lightning")
        except UnsupportedError as error:
            raise UnsupportedError(f"{VARIABLE}: {error}; or unset the variable") from error
    return callbacks_from_environment()


def _exported_path() -> str:
    """The path in the variable, made absolute there too: workers may have another current directory.

    Where a worker already has one, a relative path is that of the directory in which the process was started (`PWD`).
    """
    given = os.environ[VARIABLE]
    if not os.path.isabs(given):
        started = [folder for folder in (os.getcwd(), os.environ.get("PWD", "")) if os.path.isabs(folder)]
        found = (os.path.join(folder, given) for folder in started)
        os.environ[VARIABLE] = next(filter(os.path.isfile, found), given)
    return os.environ[VARIABLE]
