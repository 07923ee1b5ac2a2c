"""The command line `lightning-hooks`."""

from lightning_hooks.cli.main import main

__all__ = ["main"]
