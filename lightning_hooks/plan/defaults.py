"""The default rules of a monitor."""

from __future__ import annotations

from typing import Final

from lightning_hooks.rules import Watch

DEFAULT_WATCH: Final = (
    Watch(modules="*", layers=True, tensors=("output", "output_grad"), strict=False),
    Watch(params="*", tensors=("param", "grad", "update"), strict=False),
)
