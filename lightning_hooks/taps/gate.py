"""Whether hooks look at what passes: open during training batches only."""

from __future__ import annotations


class Gate:
    """A flag that every hook of one model shares.

    Closed during the sanity check, validation and between batches; a hook behind a closed gate returns at once.
    """

    def __init__(self) -> None:
        self.open = False
