"""`lightning-hooks doctor RUN`: one screen, its exit code, JSON, runs without a journal, and folders of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_hooks import StatsMonitor
from lightning_hooks.cli.main import main
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.learning import LossCourse
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.summary import summary_of
from tests.callbacks.terminal import Screen, run_in_terminal
from tests.cli.written_fits import BEGIN, END, LEARNED, cause, finding, write_fit

Doctor = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["doctor", *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def write_summary(folder: Path, *findings: Finding, stopped: str | None = None, **options: Any) -> None:
    """Write the journal of a fit in which some rules ran and others could not.

    Args:
        folder: of the run.
        findings: of the fit.
        stopped: the error that ended the rules before the fit.
        options: of `summary_of`.
    """
    fixed: dict[str, Any] = {
        "ran": ["DeadUnits", "LossSpike", "WeightGrowth"],
        "could_not": {"NormStatistics": "no norm", "ScaleCollapse": "no scaler", "Underflow": "no scaler"},
        "failed": {},
        "accepted": [],
        "course": LEARNED,
    }
    journal = Journal(folder)
    journal.write([BEGIN])
    summary = summary_of(99, 100, findings=findings, causes=[], **{**fixed, **options})
    journal.write_summary(summary if stopped is None else {**summary, "stopped": stopped})
    journal.write([END])
    journal.close()


# -- one run with a journal ------------------------------------------------------------------------------------------------


def test_a_run_is_told_with_its_findings_and_what_ran_and_what_could_not(tmp_path: Path, doctor: Doctor) -> None:
    write_summary(tmp_path, finding(1))
    code, out, err = doctor(tmp_path)
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        f"{tmp_path}: not healthy, 1 problem in 100 steps.",
        "WARNING: DeadUnits, since step 20. fc: dead.",
        "  Why   fc, step 20: 90 % of the units are dead",
        "  More  lightning-hooks explain DeadUnits",
        "1 found     DeadUnits",
        "2 silent    LossSpike, WeightGrowth",
        "Could not   NormStatistics (no norm), ScaleCollapse and Underflow (no scaler)",
    ]


def test_a_healthy_run_says_which_checks_found_nothing(tmp_path: Path, doctor: Doctor) -> None:
    write_summary(tmp_path, accepted=["DeadUnits/head"], failed={"Mine": "ValueError: no"})
    code, out, _ = doctor(tmp_path)
    assert code == 0
    assert out.splitlines() == [
        f"{tmp_path}: healthy, no problem in 100 steps.",
        "3 silent    DeadUnits, LossSpike, WeightGrowth",
        "Could not   NormStatistics (no norm), ScaleCollapse and Underflow (no scaler)",
        "Failed      Mine (ValueError: no)",
        "Accepted    DeadUnits/head",
    ]


@pytest.mark.parametrize("has_learned", [False, None])
def test_a_run_whose_loss_does_not_show_that_it_has_learned_is_not_called_healthy(
    tmp_path: Path, doctor: Doctor, has_learned: bool | None
) -> None:
    write_summary(tmp_path / "a", course=LossCourse(2.31, 2.3, has_learned))
    write_summary(tmp_path / "b")
    code, out, _ = doctor(tmp_path / "a")
    assert code == 0 and out.startswith(f"{tmp_path / 'a'}: no problem found in 100 steps; the loss went from 2.31 to 2.3.\n")
    code, out, _ = doctor(tmp_path)
    assert code == 0
    assert [line.split(maxsplit=1)[1] for line in out.splitlines()] == [
        "no problem     the loss went from 2.31 to 2.3",
        "healthy",
    ]
    shown = json.loads(doctor(tmp_path, "--json")[1])
    assert shown["healthy"] is None and [run["healthy"] for run in shown["runs"]] == [None, True]


@pytest.mark.parametrize(
    ("options", "code", "verdict"),
    [
        ({"severity": Severity.INFO}, 0, "healthy, no problem in 100 steps."),
        ({"severity": Severity.WARNING}, 1, "not healthy, 1 problem in 100 steps."),
        ({"severity": Severity.CRITICAL}, 1, "not healthy, 1 problem in 100 steps."),
        (
            {"severity": Severity.CRITICAL, "is_over": 40},
            0,
            "healthy, no problem stands in 100 steps. 1 earlier problem is over.",
        ),
    ],
    ids=["info", "warning", "critical", "over"],
)
def test_the_exit_code_and_the_verdict_agree(
    tmp_path: Path, doctor: Doctor, options: dict[str, Any], code: int, verdict: str
) -> None:
    write_summary(tmp_path, finding(**options))
    for shape in ("--all", "--json", "--junit", "--follow"):
        assert doctor(tmp_path, shape)[0] == code
    assert json.loads(doctor(tmp_path, "--json")[1])["healthy"] is not bool(code)
    assert doctor(tmp_path)[:2] == (code, doctor(tmp_path, "--all")[1])
    assert doctor(tmp_path)[1].startswith(f"{tmp_path}: {verdict}\n")
    assert doctor(tmp_path, "--follow")[1].endswith(f"{tmp_path}: {verdict}\n")


def test_json_has_what_the_screen_has(tmp_path: Path, doctor: Doctor) -> None:
    about = (finding(1, cause="BadBatch"), finding(2, "LossSpike", ""), cause(1))
    write_fit(tmp_path, *about)
    code, out, _ = doctor("--json", tmp_path)
    shown = json.loads(out)
    assert code == 1 and shown["healthy"] is False
    (run,) = shown["runs"]
    assert [Finding.from_dict(each) for each in run.pop("findings")] == [*about[:2]]
    assert [Cause.from_dict(each) for each in run.pop("causes")] == [about[2]]
    assert run == {
        "run": str(tmp_path),
        "healthy": False,
        "source": "journal",
        "has_ended": True,
        "fit": 1,
        "fits": 1,
        "steps": 100,
        "course": "",
        "ran": ["R"],
        "could_not_run": {},
        "failed": {},
        "accepted": [],
        "error": None,
    }


def test_a_cause_is_told_with_its_findings_before_what_stands_alone(tmp_path: Path, doctor: Doctor) -> None:
    write_fit(tmp_path, finding(1, cause="BadBatch"), finding(2, "LossSpike", ""), cause(1))
    lines = doctor(tmp_path)[1].splitlines()
    assert lines[1] == "WARNING: BadBatch (possible). One batch differs."
    assert "  Why   DeadUnits in fc, since step 20: 90 % of the units are dead" in lines
    assert "WARNING: LossSpike, since step 20. : dead." in lines


def test_junit_has_a_suite_for_each_run_and_a_case_for_each_rule(tmp_path: Path, doctor: Doctor) -> None:
    write_fit(tmp_path / "a", finding(1), finding(2, "LossSpike", "", first=50))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "events.out.tfevents.0").write_bytes(b"")
    code, out, _ = doctor(tmp_path, "--junit", "--since", "21")
    one, other = ElementTree.fromstring(out)
    assert code == 1 and (one.get("name"), other.get("name")) == (str(tmp_path / "a"), str(tmp_path / "b"))
    assert {case.get("name"): len(case) for case in one} == {"LossSpike": 1, "R": 0}
    assert {case.get("classname") for case in one} == {"lightning_hooks.doctor"}
    assert "has no step views" in (other.findtext("system-err") or "")


def test_since_keeps_what_began_at_the_step_or_later_and_its_causes(tmp_path: Path, doctor: Doctor) -> None:
    write_fit(tmp_path, finding(1, first=20), finding(2, "LossSpike", "", first=50), cause(1), cause(2, name="Late"))
    for since, rules, names in (("20", 2, 2), ("21", 1, 1), ("51", 0, 0)):
        (shown,) = json.loads(doctor(tmp_path, "--json", "--since", since)[1])["runs"]
        assert (len(shown["findings"]), len(shown["causes"])) == (rules, names)
    code, out, _ = doctor(tmp_path, "--since", "51")
    before = "2 problems from before stand: BadBatch, Late"
    assert code == 0 and out.startswith(f"{tmp_path}: no new problem since step 51 in 100 steps; {before}.\n")
    answer = json.loads(doctor(tmp_path, "--json", "--since", "51")[1])
    assert answer["healthy"] is None and answer["runs"][0]["earlier"] == ["BadBatch", "Late"]
    write_fit(tmp_path / "b")
    lines = doctor(tmp_path, tmp_path / "b", "--since", "51")[1].splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == [f"nothing new    {before}", "healthy"]


def test_reasons_why_many_rules_could_not_look_are_counted_unless_all_is_asked_for(tmp_path: Path, doctor: Doctor) -> None:
    write_summary(tmp_path, could_not={f"Rule{number}": "no norm" for number in range(4)})
    assert doctor(tmp_path)[1].splitlines()[-1] == "Could not   4 rules (--all says why)"
    told = "Could not   Rule0 and Rule1 and Rule2 and Rule3 (no norm)"
    assert doctor(tmp_path, "--all")[1].splitlines()[-1] == told


def test_a_fit_that_goes_on_or_was_killed_says_so(tmp_path: Path, doctor: Doctor) -> None:
    write_fit(tmp_path, finding(1), ends=False)
    code, out, _ = doctor(tmp_path)
    assert code == 1
    assert out.startswith(f"{tmp_path}: not healthy, 1 problem. The fit has not ended, or was killed.\n")
    assert "Ran         A fit notes which rules ran when it ends; --recompute lets the default rules" in out


def test_a_fit_that_failed_says_so(tmp_path: Path, doctor: Doctor) -> None:
    write_summary(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "error": "ValueError: no\x1b[31m"}), "utf-8")
    code, out, _ = doctor(tmp_path)
    assert code == 0 and out.startswith(f"{tmp_path}: healthy, no problem in 100 steps. The fit ended with ValueError: no\\x1b")


def test_of_several_fits_in_a_folder_the_newest_is_told_and_where_the_one_before_is(tmp_path: Path, doctor: Doctor) -> None:
    write_fit(tmp_path, finding())
    write_fit(tmp_path)
    code, out, _ = doctor(tmp_path)
    head = " ".join(out.split())
    other = f"This is fit 2 of 2 in the folder. The one before: lightning-hooks doctor {tmp_path} --fit 1"
    assert code == 0 and head.startswith(f"{tmp_path}: healthy, no problem in 100 steps. {other}")
    (entry,) = json.loads(doctor("--json", tmp_path)[1])["runs"]
    assert (entry["fit"], entry["fits"], entry["findings"]) == (2, 2, [])


@pytest.mark.parametrize("key", ["ran", "could_not_run", "failed", "accepted", "steps"])
@pytest.mark.parametrize("value", [None, 3, "text", [["deep"]], {"a": {"b": 1}}], ids=["null", "number", "text", "list", "map"])
def test_a_summary_that_somebody_has_changed_is_shown_as_far_as_it_goes(
    tmp_path: Path, doctor: Doctor, key: str, value: Any
) -> None:
    write_summary(tmp_path, finding(1))
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    (tmp_path / "summary.json").write_text(json.dumps({**summary, key: value}), "utf-8")
    for shape in ((), ("--json",)):
        assert doctor(tmp_path, *shape)[0] == 1


# -- a run of which nothing is known ----


def _killed(folder: Path) -> None:
    write_fit(folder, ends=False)


def _unreadable(folder: Path) -> None:
    (folder / "findings.jsonl").write_bytes(b"\xff\xfe\n{}\nnull\n")


def _damaged_in_part(folder: Path) -> None:
    write_fit(folder, ends=False)
    with open(folder / "findings.jsonl", "ab") as file:
        file.write(b'{"event": "new", "fin')


def _without_summary(folder: Path) -> None:
    write_fit(folder)
    (folder / "summary.json").unlink()


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (_killed, "the fit has not ended, or was killed, perhaps before any rule looked"),
        (_unreadable, "no line of its journal can be read"),
        (_damaged_in_part, "1 line of its journal cannot be read"),
        (_without_summary, "its summary.json is missing or damaged"),
        (lambda folder: write_summary(folder, ran=[]), "no rule looked before the fit ended"),
        (lambda folder: write_summary(folder, stopped="KeyError: x"), "its health rules stopped after KeyError: x"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is ignored")
def test_a_run_of_which_nothing_is_known_is_not_called_healthy(
    tmp_path: Path, doctor: Doctor, write: Callable[[Path], None], why: str
) -> None:
    write(tmp_path)
    code, out, _ = doctor(tmp_path)
    assert code == 2 and " ".join(out.split()).startswith(f"{tmp_path}: not judged") and f": {why}." in " ".join(out.split())
    shown = json.loads(doctor(tmp_path, "--json")[1])
    assert shown["healthy"] is None and shown["runs"][0]["healthy"] is None and shown["runs"][0]["problem"] == why


def test_a_problem_makes_the_exit_code_1_whatever_else_cannot_be_judged(tmp_path: Path, doctor: Doctor) -> None:
    write_summary(tmp_path / "a", finding())
    _killed(tmp_path / "b")
    assert doctor(tmp_path)[0] == 1


def test_of_a_fit_that_goes_on_and_whose_problem_is_over_no_problem_stands(tmp_path: Path, doctor: Doctor) -> None:
    write_fit(tmp_path, finding(is_over=40), ends=False)
    code, out, _ = doctor(tmp_path)
    assert code == 0 and ": no problem stands. 1 earlier problem is over. The fit has not ended, or was killed." in out


@pytest.mark.parametrize("name", ["findings.jsonl", "summary.json"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.filterwarnings("ignore:.*is ignored")
def test_a_pipe_or_a_device_in_place_of_a_file_is_told_at_once(tmp_path: Path, doctor: Doctor, name: str, kind: str) -> None:
    write_fit(tmp_path)
    (tmp_path / name).unlink()
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    code, out, err = doctor(tmp_path)
    assert code == 2 and (f"{name} is a" in err or f"its {name} is missing or damaged" in out)


# -- the height of the screen ----------------------------------------------------------------------------------------------


def many(folder: Path, number: int) -> None:
    """A fit with one critical finding and many warnings."""
    rows = [finding(i, "LossSpike", f"layer.{i}", severity=Severity.WARNING) for i in range(2, number + 1)]
    write_summary(folder, *rows, finding(1, severity=Severity.CRITICAL), ran=[f"Rule{i}" for i in range(60)])


def test_many_findings_fit_into_a_screen_the_worst_in_full(tmp_path: Path, doctor: Doctor) -> None:
    many(tmp_path, 100)
    code, out, _ = doctor(tmp_path)
    lines = out.splitlines()
    assert code == 1 and len(lines) <= 40
    assert lines[1:3] == ["CRITICAL: DeadUnits, since step 20. fc: dead.", "  Why   fc, step 20: 90 % of the units are dead"]
    (more,) = [line for line in lines if "lightning-hooks doctor" in line]
    shown = sum(line.startswith(("CRITICAL:", "WARNING:")) for line in lines)
    assert more == f"{100 - shown} more findings, and all reasons: lightning-hooks doctor {tmp_path} --all"
    assert f"{'60 silent':<12}Rule0, Rule1, Rule2 and 57 more" in lines
    assert doctor(tmp_path, "--since", "9")[1].count(f"lightning-hooks doctor {tmp_path} --all --since 9\n") == 1
    whole = doctor(tmp_path, "--all")[1].splitlines()
    assert sum(line.startswith(("CRITICAL:", "WARNING:")) for line in whole) == 100
    assert sum(line.startswith("  Why   ") for line in whole) == 100 and "Rule59" in " ".join(whole)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize(("columns", "height"), [(80, 24), (120, 40)])
@pytest.mark.parametrize("number", [1, 12, 100])
def test_in_a_terminal_nothing_scrolls_off(tmp_path: Path, columns: int, height: int, number: int) -> None:
    many(tmp_path / "run", number)
    program = "from lightning_hooks.cli.main import main; main()"
    command = [sys.executable, "-c", program, "doctor", str(tmp_path / "run")]
    lines = Screen(columns, height).feed(run_in_terminal(command, columns, height)).text
    assert len(lines) <= height and max(map(len, lines)) <= columns
    assert sum(line.startswith(("CRITICAL:", "WARNING:")) for line in lines) >= min(number, 6)


# -- runs without a journal ------------------------------------------------------------------------------------------------


def write_run_without_journal(folder: Path) -> None:
    """A fit without a `HealthMonitor`, whose optimizer forgets a layer."""
    from lightning.pytorch import LightningModule

    class Forgotten(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.head(self.body(batch)).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.head.parameters(), lr=0.01)

    torch.manual_seed(0)
    trainer = Trainer(
        max_steps=12,
        accelerator="cpu",
        logger=TensorBoardLogger(folder.parent, name=folder.name, version=""),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=StatsMonitor(),
    )
    trainer.fit(Forgotten(), torch.utils.data.DataLoader(torch.randn(48, 3), batch_size=4))


def test_without_a_journal_the_default_rules_read_the_event_file_and_it_says_so(tmp_path: Path, doctor: Doctor) -> None:
    write_run_without_journal(tmp_path / "run")
    code, out, _ = doctor(tmp_path / "run")
    head = " ".join(out.split())
    assert code == 1
    assert head.startswith(
        f"{tmp_path / 'run'}: not healthy, 1 problem in 12 steps. The default rules have read its event file:"
    )
    assert "no HealthMonitor was active." in head and "ParametersForgotten (certain)" in out and "Could not" in out
    (entry,) = json.loads(doctor("--json", tmp_path)[1])["runs"]
    assert (entry["source"], entry["run"]) == ("event file", str(tmp_path / "run"))
    write_summary(tmp_path / "run")
    assert doctor(tmp_path / "run")[0] == 0
    code, out, _ = doctor(tmp_path / "run", "--recompute")
    assert code == 1 and "no HealthMonitor was active" not in out and "have read its event file." in " ".join(out.split())


def test_a_journal_is_read_without_torch(tmp_path: Path) -> None:
    write_fit(tmp_path, finding())
    program = "import sys; from lightning_hooks.cli.main import main; main(); assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program, "doctor", str(tmp_path)], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr


# -- folders of runs -------------------------------------------------------------------------------------------------------


def test_the_one_run_below_a_folder_is_the_run(tmp_path: Path, doctor: Doctor) -> None:
    write_summary(tmp_path / "logs" / "version_0", finding())
    code, out, _ = doctor(tmp_path / "logs")
    assert code == 1 and out.startswith(f"{tmp_path / 'logs' / 'version_0'}: not healthy, 1 problem in 100 steps.\n")


def test_of_several_runs_each_gets_one_line(tmp_path: Path, doctor: Doctor) -> None:
    write_summary(tmp_path / "version_10", finding())
    write_summary(tmp_path / "version_2")
    write_fit(tmp_path / "version_3", ends=False)
    (tmp_path / "version_4").mkdir()
    (tmp_path / "version_4" / "events.out.tfevents.0").write_bytes(b"")
    code, out, _ = doctor(tmp_path)
    assert code == 1
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [Path(name).name for name, _ in lines] == ["version_2", "version_3", "version_4", "version_10"]
    assert lines[0][1].rstrip() == "healthy"
    assert lines[1][1] == "not judged     the fit has not ended, or was killed, perhaps before any rule looked"
    assert lines[2][1].startswith("not diagnosed  ")
    assert lines[3][1] == "not healthy    WARNING: DeadUnits, since step 20. fc: dead."
    assert doctor(tmp_path / "version_2", tmp_path / "version_3")[0] == 2
    assert doctor(tmp_path / "version_2", tmp_path / "version_4")[0] == 2
    entries = json.loads(doctor(tmp_path, "--json")[1])["runs"]
    assert [entry.get("healthy") for entry in entries] == [True, None, None, False] and "no step views" in entries[2]["problem"]


@pytest.mark.parametrize("kind", ["missing", "empty", "of another kind"])
def test_where_no_run_can_be_diagnosed_the_exit_code_is_2(tmp_path: Path, doctor: Doctor, kind: str) -> None:
    path = tmp_path / "logs"
    if kind != "missing":
        path.mkdir()
    if kind == "of another kind":
        (path / "events.out.tfevents.0").write_bytes(b"")
    code, out, err = doctor(path)
    assert (code, out) == (2, "")
    expected = {"missing": f"there is no run {path}", "empty": f"there is no run in {path}: neither an event file"}
    assert err.startswith(f"lightning-hooks: error: {expected.get(kind, f'{path} has no step views')}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--nothing"], "--nothing"),
        (["a", "--since", "soon"], "--since"),
        (["a", "--json", "--junit"], "--junit: not allowed with argument --json"),
        (["a", "--follow", "--json"], "--json: not allowed with argument --follow"),
        (["a", "--all", "--follow"], "--follow: not allowed with argument --all"),
        (["a", "--follow", "--recompute"], "--follow cannot be combined with --fit or --recompute"),
        (["a", "--follow", "--fit", "1"], "--follow cannot be combined with --fit or --recompute"),
        (["a", "--recompute", "--fit", "1"], "so it cannot be combined with --fit"),
        (["a", "b", "--follow"], "--follow takes one RUN, got 2"),
        (["a", "b", "--fit", "1"], "--fit takes one RUN, got 2"),
    ],
)
def test_a_usage_error_is_2(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_fit(tmp_path / "a")
    write_fit(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", *arguments])
    said = capsys.readouterr().err
    assert said.startswith("lightning-hooks: error: ") and message in said
    assert said.endswith("; `lightning-hooks doctor --help` lists the options\n")


def test_of_several_runs_all_is_the_screen_of_each(tmp_path: Path, doctor: Doctor) -> None:
    write_summary(tmp_path / "a", finding())
    write_summary(tmp_path / "b")
    both = doctor(tmp_path, "--all")
    assert both == (1, "\n".join(doctor(tmp_path / name)[1] for name in ("a", "b")), "")
