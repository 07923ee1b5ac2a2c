"""The engine: one hook manager per model, the participants that act through it, and the driver of plain loops."""

from lightning_hooks.engine.inspecting.inspect import assert_no_hooks, match, paused
from lightning_hooks.engine.plain_loop.session import Instrument

__all__ = ["Instrument", "assert_no_hooks", "match", "paused"]
