"""`python -m lightning_hooks`: the command line, also where the command `lightning-hooks` is not on the path of the shell."""

from __future__ import annotations

import os
import sys


def _drop_current_folder() -> None:
    """Take the current folder from the front of the path, where `python -m` puts it, so that no file in it hides a package."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]


if __name__ == "__main__":
    _drop_current_folder()
    from lightning_hooks.cli import main

    sys.exit(main())
