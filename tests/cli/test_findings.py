"""`lightning-hooks findings RUN`: what it prints, its exit code, and runs that are missing, damaged or still going on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.cli.main import main
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.rule import Severity
from tests.cli import written_fits
from tests.cli.written_fits import ABOUT, BEGIN, END, Run, cause, finding, summary, write_fit

run = written_fits.run


# -- output and exit code --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"severity": Severity.INFO}, 0),
        ({"severity": Severity.WARNING}, 1),
        ({"severity": Severity.CRITICAL}, 1),
        ({"severity": Severity.CRITICAL, "is_over": 40}, 0),
    ],
    ids=["info", "warning", "critical", "over"],
)
@pytest.mark.parametrize("shape", [(), ("--json",), ("--follow",)], ids=["text", "json", "follow"])
def test_the_exit_code_is_1_where_a_warning_or_worse_stands(
    tmp_path: Path, run: Run, options: dict[str, Any], code: int, shape: tuple[str, ...]
) -> None:
    write_fit(tmp_path, finding(**options))
    assert run(*shape)[0] == code


def test_a_block_for_each_cause_and_lone_finding_then_the_line_of_the_summary(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1, cause="BadBatch"), finding(2, "LossSpike", ""), cause(1))
    code, out, _ = run()
    lines = out.splitlines()
    assert code == 1 and lines[0] == "WARNING: BadBatch (possible). One batch differs."
    assert "  Why   DeadUnits in fc, since step 20: 90 % of the units are dead" in lines
    assert lines[-1].startswith("Not healthy: 1 rule found 2 problems in 100 steps: BadBatch, LossSpike")


def test_json_is_what_the_run_found(tmp_path: Path, run: Run) -> None:
    about = (finding(1), finding(2, "LossSpike", ""), cause(1))
    write_fit(tmp_path, *about)
    shown = json.loads(run("--json")[1])
    assert [Finding.from_dict(each) for each in shown["findings"]] == [*about[:2]]
    assert [Cause.from_dict(each) for each in shown["causes"]] == [about[2]]
    assert shown["summary"]["line"].startswith("Not healthy") and shown["has_ended"] is True


def test_junit_has_a_case_for_each_rule(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1), finding(2, "LossSpike", "", first=50))
    code, out, _ = run("--junit", "--since", "21")
    (suite,) = ElementTree.fromstring(out)
    assert code == 1 and suite.get("name") == str(tmp_path)
    assert {case.get("name"): len(case) for case in suite} == {"LossSpike": 1, "R": 0}


def test_since_keeps_what_began_at_the_step_or_later_and_its_causes(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1, first=20), finding(2, "LossSpike", "", first=50), cause(1), cause(2, name="Late"))
    for since, rules, names in (("20", 2, 2), ("21", 1, 1), ("51", 0, 0)):
        shown = json.loads(run("--json", "--since", since)[1])
        assert (len(shown["findings"]), len(shown["causes"])) == (rules, names)
    code, out, _ = run("--since", "51")
    assert code == 0 and out.startswith("Not healthy")


def test_of_several_fits_the_newest_is_shown_and_how_to_read_another(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1))
    write_fit(tmp_path, finding(2, "LossSpike", ""), finding(3, "WeightGrowth"))
    write_fit(tmp_path)
    code, out, _ = run()
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("Healthy: ")
    assert lines[1:] == [f"This is fit 3 of 3 in the folder. The one before: lightning-hooks findings {tmp_path} --fit 2"]
    code, out, _ = run("--fit", "2")
    assert code == 1 and out.startswith("WARNING: LossSpike")
    assert "The fit has ended with 2 findings; which rules looked is not kept of an earlier fit.\n" in out
    assert f"This is fit 2 of 3 in the folder. The one before: lightning-hooks findings {tmp_path} --fit 1\n" in out
    assert f"This is fit 1 of 3 in the folder. The newest: lightning-hooks findings {tmp_path}\n" in run("--fit", "1")[1]
    shown = json.loads(run("--json", "--fit", "2")[1])
    assert (shown["fit"], shown["fits"], len(shown["findings"])) == (2, 3, 2)


def test_a_fit_that_the_folder_does_not_have_is_an_error(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path)
    code, _, said = run("--fit", "2")
    assert code == 2 and f"fit must be from 1 to 1, the number of fits in {tmp_path}, got 2" in said


def test_a_fit_that_failed_says_so(tmp_path: Path, run: Run) -> None:
    journal = Journal(tmp_path)
    journal.write([BEGIN])
    journal.write_summary({**summary(), "error": "ValueError: no\x1b[31m"})
    journal.write([END])
    journal.close()
    assert run()[1].endswith("100 steps. The fit ended with ValueError: no\\x1b[31m\n")


@pytest.mark.parametrize(
    "options",
    [
        *(["--since", "soon"], ["--nothing"], ["--json", "--junit"], []),
        *(["--follow", "--json"], ["--follow", "--junit"], ["--follow", "--recompute"]),
    ],
)
def test_a_usage_error_is_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["findings", *(["somewhere"] if options else []), *options])
    assert ended.value.code == 2 and "usage: lightning-hooks findings" in capsys.readouterr().err


# -- runs that are missing or damaged --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--json"], ["--follow"], ["--recompute"]])
def test_a_run_that_is_not_there_is_an_error(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", str(tmp_path / "nowhere"), *options]) == 2
    assert f"lightning-hooks: error: there is no run {tmp_path / 'nowhere'}" in capsys.readouterr().err


def test_a_run_without_health_rules_says_what_to_do(tmp_path: Path, run: Run) -> None:
    code, _, err = run()
    assert code == 2 and "no HealthMonitor was active in this run" in err and "--recompute` applies the default rules" in err
    assert run("--recompute")[0] == 2  # there is no event file either


@pytest.mark.parametrize("options", [[], ["--follow"]])
def test_a_damaged_last_line_is_named_and_the_others_count(tmp_path: Path, run: Run, options: list[str]) -> None:
    write_fit(tmp_path, finding(1), finding(2, "LossSpike", ""))
    with open(tmp_path / "findings.jsonl", "ab") as file:
        file.write(b'{"event": "new", "st')
    with pytest.warns(UserWarning, match=r"findings.jsonl: line 5 is ignored: it is not JSON: Unterminated string"):
        code, out, _ = run(*options)
    assert code == 1 and out.count("WARNING:") == 2


def test_a_damaged_line_in_the_middle_loses_nothing_once_the_fit_has_ended(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1), finding(2, "LossSpike", ""))
    damage(tmp_path, 1)
    with pytest.warns(UserWarning, match="findings.jsonl: line 2 is ignored"):
        shown = json.loads(run("--json")[1])
    assert [each["rule"] for each in shown["findings"]] == ["DeadUnits", "LossSpike"]


def test_a_damaged_line_in_the_middle_leaves_the_others_while_the_fit_goes_on(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1), finding(2, "LossSpike", ""), ends=False)
    damage(tmp_path, 1)
    with pytest.warns(UserWarning, match="findings.jsonl: line 2 is ignored"):
        code, out, _ = run()
    assert code == 1 and "LossSpike" in out and "DeadUnits" not in out
    assert out.endswith("The fit has not ended, or was killed; 1 finding so far.\n")


def damage(folder: Path, line: int) -> None:
    path = folder / "findings.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line][:40] + b"\n"
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    "content", ["{", "", "[1]", "3", "[" * 100_000, "\xff"], ids=["cut", "empty", "list", "number", "deep", "bytes"]
)
@pytest.mark.parametrize("options", [(), ("--follow",)], ids=["once", "follow"])
def test_a_damaged_summary_is_named_and_the_findings_are_shown(
    tmp_path: Path, run: Run, content: str, options: tuple[str, ...]
) -> None:
    write_fit(tmp_path, finding())
    (tmp_path / "summary.json").write_bytes(content.encode("latin-1"))
    with pytest.warns(UserWarning, match="summary.json is ignored: "):
        code, out, _ = run(*options)
    assert code == 1 and "DeadUnits, since step 20" in out
    assert out.endswith("The fit has ended with 1 finding; its summary.json is missing or damaged.\n")


def test_damaged_findings_in_a_summary_are_read_from_the_journal(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding())
    content = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    content["findings"][0]["first_step"] = "early"
    (tmp_path / "summary.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"summary.json: its findings are ignored: finding.first_step must be of type int"):
        code, out, _ = run()
    assert code == 1 and "DeadUnits, since step 20" in out and "Not healthy" in out


def test_a_damaged_summary_without_a_journal_is_an_error(tmp_path: Path, run: Run) -> None:
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    for options in ((), ("--follow",)):
        with pytest.warns(UserWarning, match="summary.json is ignored"):
            code, _, err = run(*options)
        assert code == 2 and "summary.json is damaged, and there is no findings.jsonl beside it" in err


def test_a_file_that_cannot_be_read_is_a_short_error(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fit(tmp_path, finding())

    def refuse(path: Path, *options: int) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    code, _, err = run()
    assert code == 2 and err == f"lightning-hooks: error: {tmp_path / 'findings.jsonl'} cannot be read: Permission denied\n"


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.data())
def test_files_that_somebody_has_changed_end_in_an_exit_code(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings(), redirect_stdout(io.StringIO()) as out:
        warnings.simplefilter("ignore")
        folder = Path(temporary)
        write_fit(folder, *ABOUT)
        for name in data.draw(st.sampled_from([["findings.jsonl"], ["summary.json"], ["findings.jsonl", "summary.json"]])):
            content = (folder / name).read_bytes()
            at = data.draw(st.integers(0, len(content)))
            length = data.draw(st.integers(0, 40))
            put = data.draw(
                st.sampled_from([b"", b"null", b"-1", b'""', b"[]", b"{}", b"1e999", b"NaN", b"\n", b"\x1b[2J", b"true"])
            )
            (folder / name).write_bytes(content[:at] + put + content[at + length :])
        options = data.draw(st.sampled_from([[], ["--json"]]))
        with redirect_stderr(io.StringIO()) as err:
            assert main(["findings", temporary, *options]) in (0, 1, 2)
    assert "\x1b" not in out.getvalue() + err.getvalue()


@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "層é"), ("cp1252", r"\u5c64é"), ("ascii", r"\u5c64\xe9")])
def test_a_terminal_without_a_letter_gets_its_number(tmp_path: Path, encoding: str, name: str) -> None:
    write_fit(tmp_path, finding(row="層é"))
    code = "import sys; from lightning_hooks.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, "findings", str(tmp_path)], capture_output=True, env=environment)
    assert done.returncode == 1 and done.stderr == b""
    assert done.stdout.decode(encoding).startswith(f"WARNING: DeadUnits, since step 20. {name}: dead.")


def test_names_cannot_move_the_cursor(tmp_path: Path, run: Run) -> None:
    row = "fc\x1b[31m"
    write_fit(tmp_path, finding(row=row), cause(2))
    for options in ([], ["--follow"], ["--json"]):
        assert "\x1b" not in run(*options)[1]
