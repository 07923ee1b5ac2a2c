"""`LIGHTNING_HOOKS_CONFIG=hooks.yaml python train.py`: adds callbacks to a script without changing it."""

from __future__ import annotations

import os
import secrets
from typing import Any, Final

from lightning_hooks.callbacks._default_folder import LOGS

VARIABLE: Final = "LIGHTNING_HOOKS_CONFIG"
DEFAULTS: Final = {"prefix": "watch/environment/", "loggers": ("tensorboard",), "logdir": LOGS}
"""Defaults for callbacks from the environment variable, which keep their tags apart from those of the script."""


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
    """The same as `callbacks_from_environment`, for a Trainer of `pytorch_lightning`.

    Raises:
        UnsupportedError: the installed `pytorch_lightning` is older than version 2.
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
    """The path in the variable as an absolute path, which is also written back: workers may have another current directory.

    In such a worker, a relative path is looked up in the directory in which the process was started (`PWD`).
    """
    given = os.environ[VARIABLE]
    if not os.path.isabs(given):
        folders = [folder for folder in (os.getcwd(), os.environ.get("PWD", "")) if os.path.isabs(folder)]
        candidates = (os.path.join(folder, given) for folder in folders)
        os.environ[VARIABLE] = next(filter(os.path.isfile, candidates), given)
    return os.environ[VARIABLE]
