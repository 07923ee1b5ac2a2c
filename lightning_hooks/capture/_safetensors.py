"""The one place that loads safetensors, which is an extra."""

from __future__ import annotations

from types import ModuleType

from lightning_hooks.errors import UnsupportedError


def need_safetensors() -> ModuleType:
    """The `safetensors` package with its `torch` part loaded.

    Raises:
        UnsupportedError: where it is not installed; the message names the extra.
    """
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise UnsupportedError(
            "capturing tensors needs safetensors, which is not installed: pip install 'lightning-hooks[capture]'"
        ) from error
    return safetensors
