"""`lightning-hooks findings RUN` where a folder has several fits, and where it follows one that goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks.cli import findings as command
from lightning_hooks.health.finding import Event, Finding
from lightning_hooks.health.journal import Journal
from tests.cli import written_fits
from tests.cli.written_fits import BEGIN, END, Run, cause, finding, found, summary, write_fit

run = written_fits.run


# -- several fits in one folder --------------------------------------------------------------------------------------------


def test_the_last_fit_in_a_folder_counts(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1), finding(2, "LossSpike", ""), cause(1))
    write_fit(tmp_path, finding(1, "NonFinite", "head"))
    code, out, _ = run()
    assert code == 1 and "NonFinite" in out and "DeadUnits" not in out and "BadBatch" not in out
    write_fit(tmp_path)
    code, out, _ = run()
    assert code == 0 and out.startswith("Healthy: 1 rule found nothing in 100 steps")


def test_the_summary_of_an_earlier_fit_says_nothing_about_the_one_that_goes_on(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path)
    write_fit(tmp_path, finding(), ends=False)
    code, out, _ = run()
    assert code == 1 and "Healthy" not in out and "The fit has not ended" in out
    shown = json.loads(run("--json")[1])
    assert shown["summary"] is None and shown["has_ended"] is False


def test_a_finding_names_the_cause_that_explained_it_later(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1), finding(2, "LossSpike", ""), cause(1), ends=False)
    assert [each["cause"] for each in json.loads(run("--json")[1])["findings"]] == ["BadBatch", None]


def test_a_fit_that_has_found_nothing_yet_says_so(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, ends=False)
    assert run() == (0, "The fit has not ended, or was killed; 0 findings so far.\n", "")


# -- follow ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[Any]], None]:
    """Let a generator go on whenever the command waits; Ctrl-C at its end."""

    def script(happens: Iterator[Any]) -> None:
        def sleep(seconds: float) -> None:
            if next(happens, "over") == "over":
                raise KeyboardInterrupt

        monkeypatch.setattr(command.time, "sleep", sleep)

    return script


def test_follow_waits_for_the_fit_that_goes_on_in_the_folder_of_an_earlier_one(
    tmp_path: Path, run: Run, later: Callable[[Iterator[Any]], None]
) -> None:
    write_fit(tmp_path)
    journal = Journal(tmp_path)
    journal.write([BEGIN])

    def fit() -> Iterator[None]:
        yield
        journal.write(found(finding()))
        yield
        journal.write_summary(summary(finding()))
        yield  # the fit has not ended before its last event
        journal.write([END])
        yield

    later(fit())
    code, out, _ = run("--follow")
    journal.close()
    assert code == 1 and out.count("DeadUnits, since step 20") == 1
    assert "Healthy:" not in out.replace("Not healthy:", "") and out.splitlines()[-1].startswith("Not healthy")


def test_follow_prints_each_cause_and_finding_once_and_says_when_it_is_over(
    tmp_path: Path, run: Run, later: Callable[[Iterator[Any]], None]
) -> None:
    journal = Journal(tmp_path)

    def fit() -> Iterator[None]:
        yield
        journal.write([BEGIN, *found(finding())])
        yield
        more = Finding.from_dict({**finding().to_dict(), "rows": ["fc", "head"], "message": "fc, then 1 more"})
        journal.write([Event("grown", 40, more), *found(cause(1))])
        yield
        journal.write([Event("over", 60, finding(is_over=55)), Event("cause", 60, cause=cause(1, 2))])
        yield
        journal.write([Event("again", 80, finding())])
        yield

    later(fit())
    code, out, _ = run("--follow")
    journal.close()
    assert code == 1 and out.count("DeadUnits, since step 20. fc: dead.") == 1 and out.count("BadBatch (possible)") == 1
    assert out.count("DeadUnits/fc is over since step 55.\n") == 1


def test_follow_prints_a_second_block_with_the_same_words(
    tmp_path: Path, run: Run, later: Callable[[Iterator[Any]], None]
) -> None:
    journal = Journal(tmp_path)

    def fits() -> Iterator[None]:
        journal.write([BEGIN, *found(finding(1, is_over=30), cause(1))])
        yield
        journal.write(found(finding(2, first=390), cause(2), step=400))
        yield
        journal.write([BEGIN, *found(finding(1), cause(1))])
        yield

    later(fits())
    _, out, _ = run("--follow")
    journal.close()
    assert out.count("BadBatch (possible). One batch differs.") == 3


def test_follow_ends_with_ctrl_c_before_anything_is_there(
    tmp_path: Path, run: Run, later: Callable[[Iterator[Any]], None]
) -> None:
    later(iter([None]))
    assert run("--follow") == (0, "", "")
