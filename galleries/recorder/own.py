"""The flight recorder as a tool of the table: alone, and beside a monitor that watches every row."""

from __future__ import annotations

from galleries.recorder.answer import Answer, answer_of
from galleries.recorder.fault import Fault
from galleries.recorder.peers import Tool


class Recorder(Tool):
    """`callbacks=[FlightRecorder()]`."""

    name = "FlightRecorder"

    def __init__(self) -> None:
        from lightning_hooks import FlightRecorder

        super().__init__()
        self.recorder = FlightRecorder()
        self.callbacks = [self.recorder]

    def answer(self, fault: Fault, error: Exception | None) -> Answer | None:
        """Its record."""
        return None if self.recorder.record is None else answer_of(self.recorder.record)


class Beside(Recorder):
    """`callbacks=[StatsMonitor(), FlightRecorder()]`."""

    name = "FlightRecorder beside StatsMonitor"

    def __init__(self) -> None:
        from lightning_hooks import StatsMonitor

        super().__init__()
        self.callbacks = [StatsMonitor(loggers=[]), self.recorder]


OWN: list[type[Tool]] = [Recorder, Beside]
