"""`doctor` and `view` without a folder take the usual ones; `view` of a folder without runs waits for one."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks.cli.main import main
from lightning_hooks.dashboard import runs as dashboard_runs
from lightning_hooks.dashboard import view
from tests.cli.written_fits import finding, write_fit

NONE = "none of lightning_logs, lightning_hooks_logs, runs, logs and tb_logs in {} holds a run"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_event_file(folder: Path) -> None:
    """An event file that holds the tag of a table, which the page can show."""
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1").write_bytes(b"hooks_table/watch/grad/norm")


def test_doctor_takes_the_folders_that_hold_runs_and_says_which(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fit(here / "lightning_logs" / "version_0", finding())
    write_fit(here / "runs" / "a")
    (here / "logs").mkdir()
    write_fit(here / "elsewhere" / "b", finding())
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert said.err == "lightning-hooks: doctor takes the runs in lightning_logs and runs\n"
    assert [line.split()[0] for line in said.out.splitlines()] == ["lightning_logs/version_0", "runs/a"]
    assert main(["doctor", "--json"]) == 1
    assert [run["run"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["lightning_logs/version_0", "runs/a"]


@pytest.mark.parametrize("command", ["doctor", "view"])
def test_without_a_run_the_message_names_what_was_looked_for(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lightning-hooks: error: no folder was given, and {NONE.format(here)}; name the folder")
    assert said.endswith(f"as in `lightning-hooks {command} .`\n")
    (here / "runs" / "empty").mkdir(parents=True)
    assert main([command]) == 2
    assert "holds a run (runs exists); name" in capsys.readouterr().err


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Iterator[str]:
    """The address of the page while `lightning-hooks view` serves it in another thread."""
    made, begun, threads = view.make, threading.Event(), []

    def make(*args: Any) -> Any:
        server = made(*args)
        threads.append(server)
        begun.set()
        return server

    monkeypatch.setattr(view, "make", make)
    monkeypatch.setattr(dashboard_runs, "_REFRESH", 0.0)
    serves = threading.Thread(target=main, args=(["view", *arguments, "--port", "0"],))
    serves.start()
    assert begun.wait(60)
    try:
        yield view.url(threads[0])
    finally:
        threads[0].shutdown()
        serves.join()


def names(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}data/runs") as answer:
        return [run["name"] for run in json.loads(answer.read())["runs"]]


def test_view_takes_the_folders_that_hold_runs(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_event_file(here / "runs" / "a")
    write_event_file(here / "elsewhere" / "b")
    with serving(monkeypatch) as address:
        assert names(address) == ["a"]
    write_event_file(here / "lightning_logs" / "version_0")
    with serving(monkeypatch) as address:
        assert names(address) == ["lightning_logs/version_0", "runs/a"]
    said = capsys.readouterr()
    assert said.err.endswith("lightning-hooks: view takes the runs in lightning_logs and runs\n")
    assert "shows the runs in lightning_logs and runs (Ctrl-C ends it)" in said.out and "no run" not in said.out


def test_view_of_a_folder_without_runs_says_so_and_shows_a_run_that_begins_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(monkeypatch, str(tmp_path)) as address:
        assert names(address) == []
        write_event_file(tmp_path / "a")
        assert names(address) == ["a"]
    assert f"there is no run in {tmp_path} yet; the page shows one as soon as it begins\n" in capsys.readouterr().out
