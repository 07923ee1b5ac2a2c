import json

import pytest

from lightning_hooks import RuleError
from lightning_hooks.cli import main
from lightning_hooks.dashboard.diff import diff

from .runs import NAMES, STATS, write_run


def test_equal_runs(tmp_path, capsys):
    write_run(tmp_path / "a", range(12))
    write_run(tmp_path / "b", range(12))
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == "equal to the last bit over 12 steps × 4 rows\n"


def test_the_first_step_and_the_rows_in_which_runs_part(tmp_path, capsys):
    def change(step, values):
        if step >= 7:
            values["norm"][2] *= 1 + 2**-20
        if step >= 9:
            values["mean"][0] = 0.0

    write_run(tmp_path / "a", range(12), old=True)
    write_run(tmp_path / "b", range(12), change=change, old=True)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert (found.first, found.steps, found.rows, found.equal) == (7, 12, 4, False)
    assert [(part.name, part.stat, part.step) for part in found.parts] == [
        ("net.2.weight", "norm", 7),
        ("net.0.weight", "mean", 9),
    ]
    assert found.parts[0].relative == pytest.approx(2**-20, rel=0.2)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("equal before step 7; there 1 of 4 rows differ (2 over 12 steps), in the order of execution:\n")
    assert "  grad of net.2.weight: norm " in out
    assert main(["diff", "--json", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["first"] == 7 and answer["equal"] is False and answer["parts"][0]["name"] == "net.2.weight"


def test_the_loss_is_compared_and_stands_between_the_forward_and_the_backward_pass(tmp_path):
    def change(step, values):
        values["mean"][:] += 1

    many = tuple(f"layer.{i}" for i in range(40))
    for run, changed in {"a": None, "b": change}.items():
        for tensor, names in {"loss": ("loss",), "output": many, "output_grad": NAMES, "update": NAMES}.items():
            write_run(tmp_path / run, range(3), names=names, change=changed, tensor=tensor, prefix="health/", old=True)
    found = diff(tmp_path / "a", tmp_path / "b")
    tensors = list(dict.fromkeys(part.tensor for part in found.parts))
    assert tensors == ["health/output", "health/loss", "health/output_grad", "health/update"]
    (line,) = [line for line in str(found).splitlines() if "loss" in line]
    assert line.startswith("  health/loss: mean ") and str(found).endswith(f"{line}\n  and {49 - 21} more")


def test_json_of_an_infinite_value_is_json(tmp_path, capsys):
    def infinite(step, values):
        values["norm"][1] = float("inf")

    write_run(tmp_path / "a", range(2), change=infinite, old=True)
    write_run(tmp_path / "b", range(2), old=True)
    assert main(["diff", "--json", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    (part,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["parts"]
    assert part["a"] == {"float": "inf"} and part["relative"] == 1.0


def test_nan_equals_nan_and_differs_from_a_number_and_from_a_gap(tmp_path):
    def nan(step, values):
        values["norm"][:] = float("nan")

    def nothing(step, values):
        for stat in STATS:
            values[stat][0] = 0 if stat == "count" else float("nan")

    for name, change in {"a": nan, "b": nan, "c": None, "gap": nothing, "same": nothing}.items():
        write_run(tmp_path / name, range(3), change=change, old=True)
    assert diff(tmp_path / "a", tmp_path / "b").equal and diff(tmp_path / "gap", tmp_path / "same").equal
    for one, other, words in (
        ("a", "c", "norm NaN and 0.6740"),
        ("c", "a", " and NaN\n"),
        ("a", "gap", " and not measured\n"),
    ):
        found = diff(tmp_path / one, tmp_path / other)
        part = next(part for part in found.parts if part.stat == "norm" and part.name == NAMES[0])
        assert found.first == 0 and words in f"{found}\n" and part.relative is None
        as_json = next(
            each for each in json.loads(found.json())["parts"] if each["stat"] == "norm" and each["name"] == NAMES[0]
        )
        assert as_json["relative"] is None and {"float": "nan"} in (as_json["a"], as_json["b"])


def test_what_only_one_run_has_is_a_difference(tmp_path):
    write_run(tmp_path / "a", range(5))
    write_run(tmp_path / "b", range(8), names=("net.0.weight", "net.0.bias", "net.2.weight", "head.weight", "more"))
    found = diff(tmp_path / "a", tmp_path / "b")
    assert not found.equal and found.first is None
    assert found.only == [f"only in {tmp_path / 'b'}: 1 row, such as more", f"only in {tmp_path / 'b'}: 3 steps, from 5 to 7"]


def test_a_terminal_gets_no_escape_sequence(tmp_path, capsys):
    names = ("\x1b]0;owned\x07net.weight", "net\r\nbias", "\u202ereversed", "שלום.weight")

    def change(step, values):
        values["norm"][:] *= 2

    write_run(tmp_path / "a", range(3), names=names, tensor="\x1b[31mgrad", old=True)
    write_run(tmp_path / "b", range(3), names=names, tensor="\x1b[31mgrad", change=change, old=True)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert all(each.isprintable() for each in out.replace("\n", "")) and len(out.splitlines()) == 5
    assert r"  \x1b[31mgrad of \x1b]0;owned\x07net.weight: norm" in out and "שלום.weight" in out
    write_run(tmp_path / "c", range(3), names=(*names, "\x1b[2Jmore"), tensor="\x1b[31mgrad", old=True)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "c")]) == 1
    assert r"1 row, such as \x1b[2Jmore" in capsys.readouterr().out
    for folder in ("\x1b[31mnowhere", "a"):
        (tmp_path / "\x1b[31mempty").mkdir(exist_ok=True)
        assert main(["diff", str(tmp_path / folder), str(tmp_path / "\x1b[31mempty")]) == 2
        assert all(each.isprintable() for each in capsys.readouterr().err.rstrip("\n"))


def test_messages(tmp_path, capsys):
    write_run(tmp_path / "a" / "version_0", range(2))
    write_run(tmp_path / "b", range(2), tensor="param")
    with pytest.raises(RuleError, match="there is no run at '.*nowhere'"):
        diff(tmp_path / "nowhere", tmp_path / "b")
    with pytest.raises(RuleError, match="has no table of lightning_hooks; there are runs in .*version_0"):
        diff(tmp_path / "a", tmp_path / "b")
    with pytest.raises(RuleError, match="have no table of the same tensor and statistic"):
        diff(tmp_path / "a" / "version_0", tmp_path / "b")
    write_run(tmp_path / "c", range(5, 7), tensor="param")
    with pytest.raises(RuleError, match="have no step in common"):
        diff(tmp_path / "b", tmp_path / "c")
    assert main(["diff", str(tmp_path / "nowhere"), str(tmp_path / "b")]) == 2
    assert "lightning-hooks: error: there is no run at" in capsys.readouterr().err


def test_where_moments_are_stored_every_statistic_that_follows_differs(tmp_path):
    def change(step, values):
        if step >= 3:
            values["norm"][2] *= 2

    write_run(tmp_path / "a", range(5))
    write_run(tmp_path / "b", range(5), change=change)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert {(part.name, part.stat, part.step) for part in found.parts} == {
        ("net.2.weight", stat, 3) for stat in ("mean", "std", "norm")
    }
    norm = next(part for part in found.parts if part.stat == "norm")
    assert norm.relative == pytest.approx(0.5, rel=1e-6)


def test_runs_of_different_models_say_that_they_share_no_row(tmp_path, capsys):
    write_run(tmp_path / "a", range(3), names=("encoder.weight", "head.weight"), old=True)
    write_run(tmp_path / "b", range(3), names=("net.weight",), old=True)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert "error: the runs share no row of a layer or parameter: " in said
    assert "a' has 2 rows, such as encoder.weight, head.weight; " in said and "b' has 1 row, such as net.weight" in said


def test_of_different_models_only_the_loss_is_compared(tmp_path, capsys):
    for run, name in {"a": "encoder.weight", "b": "net.weight"}.items():
        write_run(tmp_path / run, range(3), names=(name,), old=True)
        write_run(tmp_path / run, range(3), names=("loss",), tensor="loss", old=True)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("the runs share no row of a layer or parameter: ") and first.endswith("; only the loss is compared")
    assert last == "equal to the last bit over 3 steps × 1 rows"


def test_two_runs_that_watch_the_loss_alone_are_compared_without_a_word(tmp_path):
    for run in "ab":
        write_run(tmp_path / run, range(3), names=("loss",), tensor="loss", old=True)
    assert str(diff(tmp_path / "a", tmp_path / "b")) == "equal to the last bit over 3 steps × 1 rows"
