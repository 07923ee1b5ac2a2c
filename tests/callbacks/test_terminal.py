"""Findings in the terminal of a fit: above the progress bar, once, in whole lines, while the bar goes on below."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_hooks.callbacks import _diagnosing
from lightning_hooks.callbacks._terminal import print_above
from lightning_hooks.health.text import Block, as_text
from tests.callbacks import _sick_fit
from tests.callbacks._sick_fit import BATCHES, EPOCHS
from tests.callbacks.terminal import Screen, plain_environment, run_in_terminal

COLUMNS = 72

has_terminals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
bars = pytest.mark.parametrize(
    "bar",
    [
        "tqdm",
        pytest.param(
            "rich", marks=pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed")
        ),
    ],
)


def fit_with(bar: str, told: Path) -> list[str]:
    return [sys.executable, "-m", "tests.callbacks._sick_fit", bar, str(told)]


def told_in(path: Path) -> tuple[list[Block], list[str]]:
    """The blocks and the lines that a monitor told."""
    told: list[Any] = json.loads(path.read_text(encoding="utf-8"))
    blocks = [Block(severity, verdict, *map(tuple, rest)) for severity, verdict, *rest in filter(_is_block, told)]
    return blocks, [line for line in told if not _is_block(line)]


def _is_block(each: Any) -> bool:
    return not isinstance(each, str)


def places_of(lines: list[str], among: list[str]) -> list[int]:
    """The indices at which these lines begin among others, one below the other."""
    return [i for i in range(len(among)) if among[i : i + len(lines)] == lines]


@pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed")
def test_lines_stand_although_rich_draws_fewer_bars_while_they_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch.callbacks import RichProgressBar
    from rich.console import Console
    from rich.live_render import LiveRender
    from rich.progress import Progress

    out = io.StringIO()
    progress = Progress(console=Console(file=out, force_terminal=True, width=COLUMNS, height=24), auto_refresh=False)
    render, main = LiveRender.__rich_console__, threading.get_ident()

    def render_and_wait(self: LiveRender, *given: Any) -> Iterator[Any]:
        yield from render(self, *given)
        # The thread of rich that draws the bar comes between a text that is ready and its being written.
        if threading.get_ident() == main:
            drawing = threading.Thread(target=progress.refresh)
            drawing.start()
            drawing.join()

    class Bar(RichProgressBar):
        def print(self, *given: Any, **options: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(LiveRender, "__rich_console__", render_and_wait)
                super().print(*given, **options)

    bar = Bar()
    bar.progress = progress  # type: ignore[assignment]
    with progress:
        progress.add_task("training")
        validation = progress.add_task("validation")
        progress.refresh()
        print("zero")
        progress.update(validation, visible=False)
        print_above(SimpleNamespace(progress_bar_callback=bar), lambda stream: "one\ntwo\nthree\nfour")  # type: ignore[arg-type]
    seen = Screen(COLUMNS).feed(out.getvalue().replace("\n", "\r\n")).text  # as a terminal does
    assert [line for line in seen if line and "%" not in line] == ["zero", "one", "two", "three", "four"]


@has_terminals
@bars
def test_findings_stand_once_in_whole_lines_above_the_bar(tmp_path: Path, bar: str) -> None:
    output = run_in_terminal(fit_with(bar, tmp_path / "told.json"), COLUMNS)
    blocks, (line,) = told_in(tmp_path / "told.json")
    seen = Screen(COLUMNS).feed(output).text
    assert len(blocks) == 2, [block.verdict for block in blocks]
    places = []
    for block in blocks:
        (place,) = places_of([*block.lines(COLUMNS)], seen)
        places.append(place)
    assert places == sorted(places)
    # The path in the line may be longer than a line of the terminal.
    assert re.sub(r"\s+", "", "".join(seen)).count(re.sub(r"\s+", "", line)) == 1
    # The bar is drawn at every batch. Only its end stands, below what was found in training; twice, because the message of
    # Lightning that the fit has stopped is printed into the bar.
    ends = [i for i, each in enumerate(seen) if each.startswith("Epoch")]
    assert 1 <= len(ends) <= 2 and min(ends) > places[1]
    assert all(seen[i].startswith(f"Epoch {EPOCHS - 1}") and f"{BATCHES}/{BATCHES}" in seen[i] for i in ends)
    drawn = [int(step) for step in re.findall(rf" (\d+)/{BATCHES}\b", output.partition(blocks[1].verdict[:30])[2])]
    assert drawn[-1] == BATCHES and min(drawn) < BATCHES
    if importlib.util.find_spec("rich") is not None:
        assert (
            output.count("\x1b[1;31mCRITICAL: NumericalRange ") == output.count("\x1b[1;33mWARNING: ParametersForgotten ") == 1
        )


@bars
def test_in_a_file_findings_are_plain_text(tmp_path: Path, bar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_diagnosing, "TrainerOutlet", _diagnosing.TrainerOutlet)  # the fit replaces it
    monkeypatch.setattr(_sick_fit.Recorded, "told", [])
    monkeypatch.setattr(os, "environ", plain_environment())
    with open(tmp_path / "out", "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        with warnings.catch_warnings():
            _sick_fit.main(bar, tmp_path / "told.json")
    output = (tmp_path / "out").read_text(encoding="utf-8")
    blocks, (line,) = told_in(tmp_path / "told.json")
    assert [output.count(as_text([block])) for block in blocks] == [1, 1] and output.count(f"{line}\n") == 1
    # tqdm moves the cursor for its second bar, also in a file.
    assert {*re.findall(r"\x1b\[?[0-9;?]*.", output)} <= {"\x1b[A"}


def test_the_screen_of_a_test_shows_what_a_terminal_shows() -> None:
    assert Screen(5).feed("abcdefg").text == ["abcde", "fg"]
    assert Screen(5).feed("abcde\r\nf").text == ["abcde", "f"]
    assert Screen(9).feed("bar 1\rtext\x1b[K\r\nbar 2\x1b[1A\rT").text == ["Text", "bar 2"]
    assert Screen(9).feed("one\r\ntwo\r\x1b[2K\x1b[A\x1b[2Kthree").text == ["three", ""]
    assert Screen(9, lines=2).feed("1\n2\n3\r\x1b[9AX").text == ["1", "X2", "  3"]
