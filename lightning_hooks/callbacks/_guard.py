"""Errors of a monitor's own, outside its hooks."""

from __future__ import annotations

from typing import Any

from lightning_hooks.engine.observer import Observer


class Guard:
    """Errors of ours go through `on_error`."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Exception) and self.observer.on_error == "warn":
            self.observer.fail(error)
            return True
        return False
