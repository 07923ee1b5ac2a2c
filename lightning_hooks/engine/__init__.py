"""One model under watch: where selection, taps, statistics and transforms meet."""

from lightning_hooks.engine.inspect import assert_no_hooks, match, paused
from lightning_hooks.engine.session import Instrument, instrument

__all__ = ["Instrument", "assert_no_hooks", "instrument", "match", "paused"]
