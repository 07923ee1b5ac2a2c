"""Which recorder a model gets."""

from __future__ import annotations

from typing import Any

import torch

from lightning_hooks.engine.recording.call_recorder import CallRecorder
from lightning_hooks.engine.recording.late_recorder import LateRecorder
from lightning_hooks.engine.recording.recorder import Recorder
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share


def recorder_for(observer: Observer, share: Share, last: int, device: Any) -> Recorder:
    """The recorder for a model on a device; the other arguments are those of the recorders."""
    if torch.device(device).type == "cpu":
        return CallRecorder(observer, share, last)
    return LateRecorder(observer, share, last)
