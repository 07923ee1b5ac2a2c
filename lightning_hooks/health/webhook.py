"""Posts findings to a webhook from a thread of its own: a server that hangs or fails neither delays nor ends a training."""

from __future__ import annotations

import json
import queue
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import SplitResult, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from typing_extensions import override

from lightning_hooks.errors import printable, shortened, without_secrets

TIMEOUT: Final = 3.0  # seconds
_MOST_WAITING: Final = 100  # messages


class Webhook:
    """Posts JSON to one URL, in the order of the calls. No message contains the URL, which is a secret.

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
                self._warn(_why(error))

    def _send(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message, allow_nan=False).encode()
        request = Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
        # The opener raises an error for a status other than 2xx.
        with build_opener(_SameServer).open(request, timeout=self._timeout) as answer:
            answer.read(1)

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            said = shortened(printable(why), 200)
            warnings.warn(f"notify: findings could not be posted ({said}); the training goes on", stacklevel=2)


def _why(error: Exception) -> str:
    """An error in words that contain neither the URL nor a text of the server, which may repeat the URL."""
    if isinstance(error, HTTPError):
        phrases = {status.value: status.phrase for status in HTTPStatus}
        return f"HTTPError: HTTP Error {error.code}: {phrases.get(error.code, 'not a known status')}"
    if isinstance(error, _RedirectError):
        return str(error)
    if isinstance(error, OSError):
        return without_secrets(f"{type(error).__name__}: {error}")
    return type(error).__name__


class _RedirectError(Exception):
    """The server answered with the address of another server."""


class _SameServer(HTTPRedirectHandler):
    """Repeats the post if a server redirects to another address of its own; urllib would send a GET without the message."""

    @override
    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if not _is_same_server(old, new):
            # The message is for the server that the user has named, and another one may be anybody's.
            raise _RedirectError(f"the server redirects to {new.scheme}://{new.hostname}, which is not followed")
        # Close the answer now: otherwise urllib reads it to its end, however long the server makes it.
        fp.close()
        return Request(newurl, req.data, dict(req.headers), method=req.get_method())


def _is_same_server(old: SplitResult, new: SplitResult) -> bool:
    """Whether an address is on the same server: of the same host and port, or the https of an http address."""
    if old.hostname != new.hostname or new.username is not None:
        return False
    if (old.scheme, new.scheme) == ("http", "https"):
        return old.port in (None, 80) and new.port in (None, 443)
    return old.scheme == new.scheme and _port(old) == _port(new)


def _port(address: SplitResult) -> int:
    return address.port or {"http": 80, "https": 443}.get(address.scheme, 0)
