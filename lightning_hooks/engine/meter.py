"""Where the time of a step goes: one clock per model, and an account for everybody who works on it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from types import TracebackType

Clock = Callable[[], float]


class Meter:
    """Adds up, per account, the seconds between entering and leaving it.

    Accounts exclude one another: who works on behalf of another (the dispatcher that lets a monitor read gradients) stands
    still meanwhile, so nothing is counted twice. The clock is that of the process: work that an accelerator still has to do
    when a call returns is not in it, since to know it the device would have to be waited for.

    Args:
        clock: seconds from anywhere.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or perf_counter
        self.common = Account(self)  # what training costs whoever takes part
        self.aside = Account(self)  # the same in other stages
        self._entered: list[Account] = []
        self._since = 0.0
        self._began: float | None = None
        self._stopped: float | None = None

    def lap(self) -> float | None:
        """A step of training begins: the seconds of the one before, from start to start; None where that is not known."""
        now = self.clock()
        wall = self._stopped if self._began is None else now - self._began
        self._began, self._stopped = now, None
        return wall

    def interrupt(self) -> None:
        """Something that is no step of training begins, a validation for one: the step before ends here."""
        if self._began is not None:
            self._stopped = self.clock() - self._began
            self._began = None


class Account:
    """The seconds of one participant, or of the work that all have in common; a context manager around that work.

    Args:
        meter: whose clock.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.seconds = 0.0

    def __enter__(self) -> None:
        """Begin to work; who was working stands still."""
        meter = self.meter
        now = meter.clock()
        if meter._entered:
            meter._entered[-1].seconds += now - meter._since
        meter._since = now
        meter._entered.append(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Whoever was working before goes on."""
        meter = self.meter
        now = meter.clock()
        meter._entered.pop().seconds += now - meter._since
        meter._since = now

    def take(self) -> float:
        """What has come together, which begins anew."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds
