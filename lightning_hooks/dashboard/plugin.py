"""The entry point of the Hooks tab in TensorBoard.

TensorBoard does not catch errors of this module, so nothing here may fail, and as little as possible is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin

from lightning_hooks.dashboard import REMOTE_STEPS

NAME = "lightning_hooks"


class HooksLoader(base_plugin.TBLoader):
    """Makes the plugin. Errors are not raised, but shown in the tab."""

    def fix_flags(self, flags: Any) -> None:
        """Let TensorBoard keep more steps if the log directory is not local: then the page reads through TensorBoard."""
        try:
            if not _is_local(flags.logdir):
                flags.samples_per_plugin.setdefault(NAME, REMOTE_STEPS)
        # Another version of TensorBoard may have other flags. Keep its default number of steps.
        except Exception:
            return

    def load(self, context: Any) -> base_plugin.TBPlugin:
        return HooksPlugin(context)


class HooksPlugin(base_plugin.TBPlugin):
    """The Hooks tab of a TensorBoard.

    Args:
        context: the `TBContext` of TensorBoard, with its log directory, flags and data provider.
    """

    plugin_name = NAME

    def __init__(self, context: Any) -> None:
        self._context = context
        self._site: Any = None
        self._runs: Any = None
        self._error = ""

    def get_plugin_apps(self) -> dict[str, Any]:
        """The routes below `data/plugin/lightning_hooks`."""
        return {"/static/*": self._serve, "/data/*": self._serve}

    def is_active(self) -> bool:
        """Whether the page can show something of any run; otherwise TensorBoard lists the tab as inactive.

        True also if loading failed, so that the user sees the error in the tab.
        """
        self._load()
        try:
            return self._runs is None or any(run["shown"] for run in self._runs.names())
        except Exception:
            return False

    def frontend_metadata(self) -> Any:
        return base_plugin.FrontendMetadata(es_module_path="/static/page.js", tab_name="Hooks", disable_reload=True)

    def _load(self) -> None:
        """Load the server of the tab once. An error is kept, and shown in the tab."""
        if self._site is not None or self._error:
            return
        try:
            self._runs, self._site = _make(self._context)
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Any:
        self._load()
        if not self._error:
            from tensorboard.errors import PublicError

            from lightning_hooks.dashboard.runs import ENVIRON

            ENVIRON.set(environ)
            try:
                return self._site(environ, start_response)
            # TensorBoard would answer a PublicError itself, but not with JSON, which the page reads.
            except PublicError as error:
                return _failed(str(error), environ, start_response, error.http_code, error.headers)
            except Exception as error:
                return _failed(f"{type(error).__name__}: {error}", environ, start_response)
        return _failed(self._error, environ, start_response)


def _make(context: Any) -> tuple[Any, Any]:
    from lightning_hooks.dashboard.api import Api
    from lightning_hooks.dashboard.hosts import names_for
    from lightning_hooks.dashboard.runs import LocalRuns, ProviderRuns
    from lightning_hooks.dashboard.site import Site

    runs = LocalRuns(Path(context.logdir).expanduser()) if _is_local(context.logdir) else ProviderRuns(context.data_provider)
    address = _address(getattr(context, "flags", None))
    return runs, Site(Api(runs), None if address is None else names_for(address), prefix=f"/data/plugin/{NAME}")


def _address(flags: Any) -> str | None:
    """The address at which TensorBoard listens; None if its flags do not tell."""
    import socket

    if flags is None or not hasattr(flags, "host"):
        return None
    if getattr(flags, "bind_all", False):
        return "0.0.0.0"
    host = flags.host or "localhost"  # the default of TensorBoard
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return str(host)


def _is_local(logdir: Any) -> bool:
    """Whether a log directory is a local path, which need not exist yet.

    Not local are URLs, and the empty `logdir` that TensorBoard passes if it was given a list of directories.
    """
    return bool(logdir) and "://" not in str(logdir)


def _failed(message: str, environ: dict[str, Any], start_response: Any, code: int = 500, headers: Any = ()) -> Any:
    """Answer with an error: as JSON, or if the page asks for its script, as a script that shows the error."""
    import json
    from http import HTTPStatus

    if environ.get("PATH_INFO", "").endswith(".js"):
        text = json.dumps(f"The Hooks tab could not be loaded. {message}")
        body = f"export function render() {{ document.body.textContent = {text}; }}"
        start_response("200 OK", [("Content-Type", "text/javascript"), ("X-Content-Type-Options", "nosniff")])
        return [body.encode()]
    all_headers = [("Content-Type", "application/json"), ("X-Content-Type-Options", "nosniff"), *headers]
    start_response(f"{code} {HTTPStatus(code).phrase}", all_headers)
    return [json.dumps({"error": message}).encode()]
