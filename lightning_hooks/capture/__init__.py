"""Captured tensors on disk: written during a run and read back on access. Imports neither Lightning nor the engine."""

from lightning_hooks.capture.index import Entry
from lightning_hooks.capture.reader import Capture, Entries, load_capture
from lightning_hooks.capture.reductions import REDUCTIONS, reduction
from lightning_hooks.capture.writer import CaptureWriter

__all__ = ["REDUCTIONS", "Capture", "CaptureWriter", "Entries", "Entry", "load_capture", "reduction"]
