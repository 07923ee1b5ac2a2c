"""`lightning-hooks doctor RUN` of runs that are missing, or whose files are damaged."""

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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.cli.main import main
from tests.cli import written_fits
from tests.cli.written_fits import ABOUT, Run, cause, finding, write_fit

run = written_fits.run


@pytest.mark.parametrize("options", [[], ["--json"], ["--follow"], ["--recompute"]])
def test_a_run_that_is_not_there_is_an_error(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "nowhere"), *options]) == 2
    assert f"lightning-hooks: error: there is no run {tmp_path / 'nowhere'}" in capsys.readouterr().err


def test_a_run_without_health_rules_says_what_to_do(tmp_path: Path, run: Run) -> None:
    (tmp_path / "events.out.tfevents.0").write_bytes(b"")
    code, _, err = run("--fit", "1")
    assert code == 2 and "no HealthMonitor was active in this run" in err
    assert f"`lightning-hooks doctor {tmp_path} --recompute` applies the default rules to its event file" in err
    for options in ((), ("--recompute",)):
        code, _, err = run(*options)
        assert code == 2 and "has no step views" in err


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
    assert [each["rule"] for each in shown["runs"][0]["findings"]] == ["DeadUnits", "LossSpike"]


def test_a_damaged_line_in_the_middle_leaves_the_others_while_the_fit_goes_on(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding(1), finding(2, "LossSpike", ""), ends=False)
    damage(tmp_path, 1)
    with pytest.warns(UserWarning, match="findings.jsonl: line 2 is ignored"):
        code, out, _ = run()
    assert code == 1 and "LossSpike" in out and "DeadUnits" not in out
    assert out.startswith(f"{tmp_path}: not healthy, 1 problem. The fit has not ended, or was killed.\n")


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
    assert f"{tmp_path}: not healthy, 1 problem. Its summary.json is missing or damaged.\n" in out


def test_damaged_findings_in_a_summary_are_read_from_the_journal(tmp_path: Path, run: Run) -> None:
    write_fit(tmp_path, finding())
    content = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    content["findings"][0]["first_step"] = "early"
    (tmp_path / "summary.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"summary.json: its findings are ignored: finding.first_step must be an integer"):
        code, out, _ = run()
    assert code == 1 and "DeadUnits, since step 20" in out and f"{tmp_path}: not healthy, 1 problem in 100 steps.\n" in out


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
        options = data.draw(st.sampled_from([[], ["--all"], ["--json"], ["--junit"]]))
        with redirect_stderr(io.StringIO()) as err:
            assert main(["doctor", temporary, *options]) in (0, 1, 2)
    assert "\x1b" not in out.getvalue() + err.getvalue()


@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "層é"), ("cp1252", r"\u5c64é"), ("ascii", r"\u5c64\xe9")])
def test_a_terminal_without_a_letter_gets_its_number(tmp_path: Path, encoding: str, name: str) -> None:
    write_fit(tmp_path, finding(row="層é"))
    code = "import sys; from lightning_hooks.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, "doctor", str(tmp_path)], capture_output=True, env=environment)
    assert done.returncode == 1 and done.stderr == b""
    assert done.stdout.decode(encoding).splitlines()[1] == f"WARNING: DeadUnits, since step 20. {name}: dead."


def test_names_cannot_move_the_cursor(tmp_path: Path, run: Run) -> None:
    row = "fc\x1b[31m"
    write_fit(tmp_path, finding(row=row), cause(2))
    for options in ([], ["--all"], ["--follow"], ["--json"], ["--junit"]):
        assert "\x1b" not in run(*options)[1]
