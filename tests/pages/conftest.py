"""An empty folder for the blocks of a page, and a server in the place of Slack."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The empty current folder; afterwards the random numbers of torch go on as before."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        yield tmp_path


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The messages that were posted to the address in SLACK_WEBHOOK."""
    messages: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("SLACK_WEBHOOK", f"http://127.0.0.1:{server.server_port}/services/secret")
    yield messages
    server.shutdown()
    server.server_close()
    thread.join()
