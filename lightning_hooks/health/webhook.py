"""Posts findings to a webhook from a thread of its own: a server that hangs or fails neither delays nor ends a training."""

from __future__ import annotations

import json
import queue
import threading
import urllib.request
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from lightning_hooks.errors import printable, shortened

TIMEOUT: Final = 3.0  # seconds
_MOST_WAITING: Final = 100  # messages


class Webhook:
    """Posts JSON to one URL, in the order of the calls.

    Args:
        url: of the webhook. Services for chats read the field `text`.
        timeout: in seconds, for each post.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self._url, self._timeout = url, timeout
        self._waiting: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_MOST_WAITING)  # None ends the thread
        self._thread: threading.Thread | None = None
        self._has_warned = False

    def post(self, message: Mapping[str, Any]) -> None:
        """Post a message soon; it is dropped if a hundred others wait."""
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self._warn("a hundred findings wait for it; later ones are not posted")
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lightning-hooks-webhook", daemon=True)
            self._thread.start()

    def close(self, wait: float | None = None) -> None:
        """Wait for what is being posted, at most as long as one post may take, or so many seconds."""
        if self._thread is not None:
            with suppress(queue.Full):
                self._waiting.put_nowait(None)
            self._thread.join(self._timeout if wait is None else wait)
            if self._thread.is_alive():
                self._warn("the server has not answered yet")

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                self._send(message)
            except Exception as error:
                self._warn(f"{type(error).__name__}: {error}")

    def _send(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message, allow_nan=False).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=self._timeout) as answer:
            answer.read(1)

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            said = shortened(printable(why), 200)
            warnings.warn(f"notify: findings could not be posted ({said}); the training goes on", stacklevel=2)
