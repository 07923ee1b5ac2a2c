"""`lightning-hooks doctor RUN` where a folder has several fits, and where it follows one that goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks.cli import following as command
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
    assert code == 0 and out.startswith(f"{tmp_path}: healthy, no problem in 100 steps.")


def test_the_summary_of_an_earlier_fit_says_nothing_about_the_one_that_goes_on(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path)
    write_fit(tmp_path, finding(), ends=False)
    code, out, _ = run()
    assert code == 1 and out.startswith(f"{tmp_path}: not healthy, 1 problem. The fit has not ended")
    (shown,) = json.loads(run("--json")[1])["runs"]
    assert shown["ran"] == [] and shown["has_ended"] is False


def test_a_finding_names_the_cause_that_explained_it_later(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1), finding(2, "LossSpike", ""), cause(1), ends=False)
    assert [each["cause"] for each in json.loads(run("--json")[1])["runs"][0]["findings"]] == ["BadBatch", None]


def test_of_several_fits_the_newest_is_shown_and_how_to_read_another(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1))
    write_fit(tmp_path, finding(2, "LossSpike", ""), finding(3, "WeightGrowth"))
    write_fit(tmp_path)
    assert f"This is fit 3 of 3 in the folder. The one before: lightning-hooks doctor {tmp_path} --fit 2\n" in run()[1]
    code, out, _ = run("--fit", "2", "--all")
    head, first, *_ = out.splitlines()
    assert code == 1 and first.startswith("WARNING: LossSpike")
    assert head == (
        f"{tmp_path}: not healthy, 2 problems. Which rules looked is not kept of an earlier fit. "
        f"This is fit 2 of 3 in the folder. The one before: lightning-hooks doctor {tmp_path} --fit 1"
    )
    assert f"This is fit 1 of 3 in the folder. The newest: lightning-hooks doctor {tmp_path}\n" in run("--fit", "1")[1]
    (shown,) = json.loads(run("--json", "--fit", "2")[1])["runs"]
    assert (shown["fit"], shown["fits"], len(shown["findings"])) == (2, 3, 2)


def test_an_earlier_fit_without_a_finding_is_not_judged(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path)
    write_fit(tmp_path)
    code, out, _ = run("--fit", "1")
    newest = f"This is fit 1 of 2 in the folder. The newest: lightning-hooks doctor {tmp_path}"
    assert code == 2
    assert out.startswith(f"{tmp_path}: not judged: which rules looked is not kept of an earlier fit. {newest}\n")


def test_a_fit_that_the_folder_does_not_have_is_an_error(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path)
    code, _, said = run("--fit", "2")
    assert code == 2 and f"fit must be from 1 to 1, the number of fits in {tmp_path}, got 2" in said


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
    assert ": healthy" not in out and out.splitlines()[-1].startswith(f"{tmp_path}: not healthy, 1 problem in 100 steps.")


def test_follow_of_a_folder_above_runs_follows_the_newest_and_says_what_it_waits_for(
    tmp_path: Path, run: Run, later: Callable[[Iterator[Any]], None]
) -> None:
    write_fit(tmp_path / "logs" / "old")
    os.utime(tmp_path / "logs" / "old", (1, 1))
    for file in (tmp_path / "logs" / "old").iterdir():
        os.utime(file, (1, 1))
    event_file = tmp_path / "logs" / "new" / "events.out.tfevents.1.host"
    event_file.parent.mkdir()
    event_file.write_bytes(b"")

    def fit() -> Iterator[None]:
        yield
        yield
        write_fit(event_file.parent, finding())
        yield

    later(fit())
    code, out, said = run("--follow")
    assert code == 1 and out.splitlines()[-1].startswith(f"{event_file.parent}: not healthy, 1 problem in 100 steps.")
    waits = f"Waiting for a HealthMonitor to write into {event_file.parent}. Without one, of a fit that has ended: "
    assert said == f"{waits}lightning-hooks doctor {event_file.parent}\n"


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
    code, out, said = run("--follow")
    assert (code, out) == (2, "") and said.startswith("Waiting for a HealthMonitor")  # nothing is known of the run
