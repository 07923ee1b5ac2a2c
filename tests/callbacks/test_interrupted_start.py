"""Ctrl-C while callbacks of this package attach to a Trainer: nothing of them is left in the Trainer or on the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks import ActivationCapture, StatsMonitor
from lightning_hooks.callbacks._guard import HooksGuard
from tests.callbacks.models import Net, adamw, assert_clean, data, trainer_of

LINES = {"_attach", "install", "join", "take_part"}
INSTRUCTIONS = {"_begin"}


def interrupt(number: int, by_instruction: bool) -> None:
    """Raise KeyboardInterrupt at a line, or instruction, of the functions by which a callback attaches."""
    count = [0]
    functions = INSTRUCTIONS if by_instruction else LINES

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_name not in functions or "lightning_hooks" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = by_instruction
        if event == ("opcode" if by_instruction else "line"):
            count[0] += 1
            if count[0] == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    # Python 3.12 traces instructions only if the frame that calls `settrace` asks for them.
    sys._getframe().f_trace_opcodes = by_instruction
    sys.settrace(trace)


@pytest.mark.parametrize("by_instruction", [False, True], ids=["lines", "instructions"])
def test_an_interruption_while_attaching_leaves_nothing(tmp_path: Path, by_instruction: bool) -> None:
    number, is_done = 0, False
    while not is_done:
        number += 1
        torch.manual_seed(0)
        model, given = Net(adamw), StatsMonitor(loggers=[])
        capture = ActivationCapture("body.0", every_n_steps=1, folder=tmp_path / "captures")
        trainer = trainer_of(tmp_path, given, capture)
        before = [*trainer.callbacks]
        interrupt(number, by_instruction)
        try:
            trainer.fit(model, data(1))
            is_done = True
        except (KeyboardInterrupt, SystemExit):
            pass
        finally:
            sys.settrace(None)
        assert not any(isinstance(callback, HooksGuard) for callback in trainer.callbacks), number
        assert trainer.callbacks == before
        assert_clean(model)
    assert number > 20
