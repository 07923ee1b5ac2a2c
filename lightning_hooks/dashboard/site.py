"""Serves the page and its data over HTTP, for our own server and for TensorBoard's.

Files are looked up by their exact names in a list that is made when the package is loaded: no path of a request is ever opened.
Only GET and HEAD requests of pages of the same origin are answered. If host names are given, requests under other names than
these and those of this machine are refused, as a protection against DNS rebinding (`hosts.py`). Links from other sites to the
page work, because the page itself holds no data.
"""

from __future__ import annotations

import contextvars
import mimetypes
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from werkzeug.exceptions import SecurityError
from werkzeug.wrappers import Request, Response

from lightning_hooks.dashboard.api import JSON, Api, to_json
from lightning_hooks.dashboard.bundle import PAGE, SERVED, served
from lightning_hooks.dashboard.hosts import VARIABLE, is_loopback

FILES: Final = {path.relative_to(PAGE).as_posix(): path for path in sorted(PAGE.rglob("*")) if path.is_file()}
POLICY: Final = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'self'; form-action 'none'"
)


class Site:
    """A WSGI application: `/` is the page, `/static/…` its files, `/data/…` the answers of the API.

    Args:
        api: answers the requests for data.
        hosts: the host names under which requests are answered, besides `localhost` and loopback addresses; None, the default,
            for any name. The port is ignored, since a forwarded port differs.
        prefix: the prefix of all paths; empty by default.
    """

    def __init__(self, api: Api, hosts: Collection[str] | None = None, prefix: str = "") -> None:
        self._api, self.hosts, self._prefix = api, hosts, prefix
        # One thread reads runs for all requests: no run is read twice at the same time, and memory does not grow with requests.
        self._reader = ThreadPoolExecutor(1, "lightning_hooks")

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        response = self._answer(Request(environ))
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _refusal(405, f"{request.method} is not allowed; only GET and HEAD are")
        host = _host(request)
        path = request.path.removeprefix(self._prefix)
        # Serve the files of the page under any host name: they are no secret, and the page says why it gets no data.
        if not path.startswith("/static/") and not self._answers_to(urlsplit(f"//{host}").hostname or ""):
            hint = f"set {VARIABLE} to the name if a proxy of yours asks under it"
            return _refusal(421, f"this server, which is for this machine only, is not {host!r}; {hint}")
        is_followed_link = path in ("", "/") and request.headers.get("Sec-Fetch-Dest") == "document"
        if not is_followed_link and not _is_same_origin(request, host):
            return _refusal(403, "pages of other origins are not answered")
        if path in ("", "/"):
            # Index the run while the browser loads the page. Errors are ignored here: the request for the run reports them.
            self._reader.submit(self._api.prepare)
            return self._file("index.html")
        if path.startswith("/static/"):
            return self._file(path.removeprefix("/static/"))
        if path.startswith("/data/"):
            context = contextvars.copy_context()
            answer = self._reader.submit(context.run, self._api, path.removeprefix("/data/"), request.args).result()
            return Response(answer.body, answer.status, content_type=answer.kind, headers={"Cache-Control": "no-store"})
        return _refusal(404, "there is nothing here")

    def _answers_to(self, name: str) -> bool:
        return self.hosts is None or is_loopback(name) or name in self.hosts

    def _file(self, name: str) -> Response:
        if name not in FILES and name != SERVED:
            return _refusal(404, "there is no such file")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        if name.endswith(".js"):
            # Browsers refuse modules of other types, and the type that `mimetypes` guesses depends on the system.
            kind = "text/javascript"
        if kind.startswith("text/"):
            kind += "; charset=utf-8"
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        content = served() if name == SERVED else FILES[name].read_bytes()
        return Response(content, 200, content_type=kind, headers=headers)


def _host(request: Request) -> str:
    """The host name and the port that a request names; empty if they are invalid."""
    try:
        host: str = request.host
        urlsplit(f"//{host}")
    # Some versions of werkzeug raise a SecurityError for an invalid host.
    # urlsplit() raises a ValueError for an unclosed bracket.
    except (SecurityError, ValueError):
        return ""
    return host


def _is_same_origin(request: Request, host: str) -> bool:
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("Origin")
    return origin is None or (host != "" and origin.partition("://")[2] == host)


def _refusal(status: int, message: str) -> Response:
    return Response(to_json({"error": message}), status, content_type=JSON)
