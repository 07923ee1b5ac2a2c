"""A webhook that works, fails or hangs: the training neither waits nor fails."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lightning_hooks.health.webhook import Webhook


@contextmanager
def server(status: int, hangs: threading.Event | None = None) -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if hangs is not None:
                hangs.wait(20)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/", got
    finally:
        if hangs is not None:
            hangs.set()
        running.shutdown()
        running.server_close()


def test_messages_arrive_in_order() -> None:
    with server(200) as (url, got):
        webhook = Webhook(url)
        for i in range(3):
            webhook.post({"text": str(i)})
        webhook.close()
    assert got == [{"text": "0"}, {"text": "1"}, {"text": "2"}]


def test_an_error_of_the_server_is_one_warning() -> None:
    with server(500) as (url, got), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        webhook = Webhook(url)
        for _ in range(3):
            webhook.post({"text": "x"})
        webhook.close()
    assert len(got) == 3
    assert [str(each.message) for each in said] == [
        "notify: findings could not be posted (HTTPError: HTTP Error 500: Internal Server Error); the training goes on"
    ]


def test_a_server_that_hangs_is_left_after_the_timeout() -> None:
    with server(200, threading.Event()) as (url, got), pytest.warns(UserWarning, match="could not be posted"):
        webhook = Webhook(url, timeout=0.2)
        webhook.post({"text": "x"})
        webhook.close()
        webhook._thread.join(5)  # type: ignore[union-attr]
    assert got == [{"text": "x"}]


def test_findings_that_are_not_posted_when_the_run_ends_are_one_warning() -> None:
    hangs = threading.Event()
    with server(200, hangs) as (url, _), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        webhook = Webhook(url, timeout=30.0)
        for _ in range(3):
            webhook.post({"text": "x"})
        webhook.close(0.0)
        assert [str(each.message) for each in said] == [
            "notify: findings could not be posted (the server has not answered yet); the training goes on"
        ]
