"""A webhook that works, fails or hangs: the training neither waits nor fails."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from lightning_hooks.health.webhook import Webhook, _is_same_server


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


SECRET = "services/T0/B1"


@contextmanager
def redirecting(status: int, to: str, first: str = f"/{SECRET}") -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """A server that redirects one path; `to` may be a path, or a whole address."""
    got: list[tuple[str, str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            got.append((self.command, self.path, json.loads(body or "null")))
            self.send_response(status if self.path == first else 200)
            self.send_header("Location", to)
            self.end_headers()

        do_GET = do_POST = answer

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}{first}", got
    finally:
        running.shutdown()
        running.server_close()


def posted(url: str) -> list[str]:
    """The warnings of a webhook that posts two messages."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        webhook = Webhook(url)
        webhook.post({"text": "a"})
        webhook.post({"text": "b"})
        webhook.close()
    return [str(each.message) for each in said]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_the_same_server_gets_the_message(status: int) -> None:
    with redirecting(status, "/moved?x=1") as (url, got):
        assert posted(url) == []
    steps = [("POST", f"/{SECRET}"), ("POST", "/moved?x=1")]
    assert got == [(*step, {"text": text}) for text in "ab" for step in steps]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_redirect_to_another_server_is_one_warning_and_is_not_followed(status: int, host: str) -> None:
    with server(200) as (other, got):
        port = urlsplit(other).port
        with redirecting(status, f"http://{host}:{port}/elsewhere") as (url, first):
            said = posted(url)
    assert got == [] and [command for command, *_ in first] == ["POST", "POST"]
    assert said == [
        f"notify: findings could not be posted (the server redirects to http://{host}, which is not followed); "
        "the training goes on"
    ]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("http://a/x", "http://a:80/y", True),
        ("https://a/x", "https://A/y", True),
        ("http://a/x", "https://a/x", True),
        ("https://a/x", "http://a/x", False),
        ("http://a/x", "http://a:81/x", False),
        ("http://a:8080/x", "https://a/x", False),
        ("http://a/x", "http://b@a/x", False),
        ("http://a/x", "http://a.b/x", False),
        ("http://a/x", "ftp://a/x", False),
    ],
)
def test_what_is_the_same_server(old: str, new: str, same: bool) -> None:
    assert _is_same_server(urlsplit(old), urlsplit(new)) is same


@pytest.mark.parametrize("status", [304, 305, 400, 404, 418, 500, 599])
def test_a_message_that_is_not_taken_is_one_warning_without_the_address(status: int) -> None:
    with redirecting(status, "/") as (url, _):
        (said,) = posted(url)
    assert f"HTTP Error {status}: " in said and SECRET not in said


def test_a_redirect_without_end_is_one_warning() -> None:
    with redirecting(302, f"/{SECRET}") as (url, got):
        (said,) = posted(url)
    assert "HTTP Error 302: Found" in said and SECRET not in said and len(got) < 20


def test_a_server_that_is_not_there_is_one_warning_without_the_address() -> None:
    with server(200) as (url, _):
        pass
    (said,) = posted(f"{url}{SECRET}")
    assert "Connection refused" in said and SECRET not in said
