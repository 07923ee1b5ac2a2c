"""Serves the page with a server of our own, which listens on this machine only unless the user chooses another host."""

from __future__ import annotations

import errno
import socket
import webbrowser
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.hosts import is_loopback, names_for
from lightning_hooks.dashboard.runs import LocalRuns, folders_of_runs
from lightning_hooks.dashboard.site import Site
from lightning_hooks.errors import RuleError, printable
from lightning_hooks.tensorboard.run_files import PATTERN

_EVERYWHERE: Final = ("0.0.0.0", "::")


class _Quiet(WSGIRequestHandler):
    """A request handler that logs errors only."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        return


def make(logdir: Path, host: str = "127.0.0.1", port: int = 0, within: Sequence[Path] = ()) -> BaseWSGIServer:
    """A server of the runs below a folder. It answers after `serve_forever` is called.

    Args:
        logdir: the folder, or one event file.
        host: the address to listen at, by default this machine only. If it is not a loopback address, other machines can
            connect, and requests under any host name are answered.
        port: the port; 0, the default, takes any free port.
        within: as of `LocalRuns`.

    Raises:
        RuleError: the path does not exist or is a file that is no event file, or the host or the port cannot be used.
    """
    if not logdir.exists():
        raise RuleError(f"there is no log directory at {str(logdir)!r}")
    if logdir.is_file() and not fnmatch(logdir.name, PATTERN):
        raise RuleError(f"{str(logdir)!r} is neither a log directory nor an event file, whose name is like {PATTERN!r}")
    site = Site(Api(LocalRuns(logdir, within)), hosts=())
    try:
        server = make_server(host, port, site, threaded=True, request_handler=_Quiet)
    # werkzeug raises a SystemExit if it cannot listen.
    except (OSError, SystemExit) as error:
        cause = error.__context__ if isinstance(error, SystemExit) else error
        if isinstance(cause, OSError) and cause.errno in (errno.EADDRINUSE, errno.EACCES):
            raise RuleError(f"port: {port} of {host} cannot be used ({cause}); choose another with --port") from None
        raise RuleError(f"host: {host!r} is no address of this machine ({cause}); 0.0.0.0 stands for all of them") from None
    site.hosts = names_for(_address(server))
    return server


def _address(server: BaseWSGIServer) -> str:
    """The numeric address at which a server listens; `host` may have been a name, or a short form such as `127.1`."""
    return str(server.socket.getsockname()[0])


def url(server: BaseWSGIServer) -> str:
    """The address of the page for a browser on this machine."""
    host = "127.0.0.1" if server.host in _EVERYWHERE else server.host
    return f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/"


def view(
    logdir: Path, host: str = "127.0.0.1", port: int | None = None, *, opens: bool = False, within: Sequence[Path] = ()
) -> None:
    """Serve the runs below a folder until Ctrl-C, also those that begin later.

    Args:
        logdir: the folder, or one event file.
        host: the address to listen at, by default this machine only.
        port: the port; by default 6007, or any free port if 6007 is in use.
        opens: whether to open the page in the browser; by default not.
        within: as of `LocalRuns`.

    Raises:
        RuleError: as of `make`.
    """
    server = make(logdir, host, (6007 if _is_free(host, 6007) else 0) if port is None else port, within)
    names = printable(" and ".join(map(str, within or [logdir])))
    try:
        print(f"lightning-hooks: {url(server)} shows the runs in {names} (Ctrl-C ends it)", flush=True)
        if logdir.is_dir() and not any(any(folders_of_runs(each)) for each in within or [logdir]):
            print(f"lightning-hooks: there is no run in {names} yet; the page shows one as soon as it begins", flush=True)
        if not is_loopback(_address(server)):
            print(f"lightning-hooks: everybody who reaches {host} can read these runs", flush=True)
        if opens:
            webbrowser.open(url(server))
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
