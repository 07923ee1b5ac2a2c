"""What ends a trial step, or a check that reads it. The engine turns each of these into a result or an error of its own."""

from __future__ import annotations


class StepError(Exception):
    """The step could not be run to its end; the message says why, as a clause."""


class OutOfTimeError(BaseException):
    """The time of a check is over. A `BaseException`, so that code in the step that catches `Exception` does not catch it."""


class OutOfRangeError(BaseException):
    """A label or a token has no output or no vector; raised before torch reads it, which on a GPU ends the process.

    Args:
        row: the module, the input or the function concerned.
        text: what is out of range.
        measured: the number that is out of range.
        threshold: the first number that is too large, or the number that it is below.
    """

    def __init__(self, row: str, text: str, measured: float, threshold: float) -> None:
        super().__init__(text)
        self.row, self.text, self.measured, self.threshold = row, text, measured, threshold


class UnmeasuredError(AttributeError):
    """A check reads a field of a record that no selected check has registered.

    Args:
        field: the name.
    """

    def __init__(self, field: str) -> None:
        super().__init__(f"reads {field!r} of a step, which it does not register; add {field!r} to its `probes`")
