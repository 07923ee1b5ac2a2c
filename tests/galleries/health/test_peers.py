"""How statements of other packages are judged and shown, with lines made by hand. The packages are never imported here."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from galleries.health import peer_callbacks, peer_table, peers
from galleries.health.catalogue import faulty, healthy
from galleries.health.peer_alarms import HINTS, KINDS, alarms, fitting
from galleries.health.training import Training

TRAININGS = {training.name: training for training in [*healthy(), *faulty()]}


def line(name: str, *said: list[Any], peer: str = "torch-audit", ratio: float = 1.5, **more: Any) -> dict[str, Any]:
    """A line of peers.jsonl."""
    line = {"name": name, "peer": peer, "version": "0.3.0", "said": list(said), "failures": [], "error": ""}
    return line | {"ratio": ratio, "cpu": [ratio], "bare_cpu": [1.0], "torch": "2.13.0", "lightning": "2.6.6"} | more


def said(kind: str, severity: str, first: int = 0, last: int = 149) -> list[Any]:
    return [kind, severity, 1, first, last, ["encoder.2"]]


def kinds_that_fit(name: str, *statements: list[Any]) -> list[str]:
    return [each.kind for each in fitting(line(name, *statements), TRAININGS[name])]


def test_an_alarm_is_a_warning_or_worse() -> None:
    statements = [said("Dead units", severity) for severity in ("info", "warning", "critical")]
    statements += [
        said("TA105 Activation Collapse (Dead Neurons)", severity) for severity in ("info", "warn", "error", "fatal")
    ]
    severities = [each.severity for each in alarms(line("mlp-relu", *statements))]
    assert severities == ["warning", "critical", "warn", "error", "fatal"]


def test_a_hint_on_speed_or_memory_is_no_alarm() -> None:
    assert alarms(line("mlp-relu", *(said(hint, "warn") for hint in sorted(HINTS)))) == []


def test_an_alarm_fits_by_the_rule_that_is_expected() -> None:
    assert kinds_that_fit("nan-planted", said("TA100 NaN or Inf Detected", "error", 60)) == ["TA100 NaN or Inf Detected"]
    assert kinds_that_fit("rate-far-too-low", said("TA100 NaN or Inf Detected", "error")) == []


def test_an_alarm_fits_by_the_cause_that_is_expected() -> None:
    assert kinds_that_fit("absurd-sample", said("TA301 Suspicious Data Range", "error")) == ["TA301 Suspicious Data Range"]


def test_an_alarm_fits_a_training_for_which_no_rule_is_expected() -> None:
    assert kinds_that_fit("targets-constant", said("TA302 Flat/Empty Data", "warn")) == ["TA302 Flat/Empty Data"]
    assert kinds_that_fit("labels-of-one-class", said("TA302 Flat/Empty Data", "warn")) == []


def test_a_rule_of_this_package_fits_where_it_is_expected() -> None:
    assert kinds_that_fit("nan-planted", said("NonFinite", "critical", 60), said("DeadUnits", "warning")) == ["NonFinite"]


def test_an_alarm_before_the_onset_does_not_fit() -> None:
    assert kinds_that_fit("nan-planted", said("TA100 NaN or Inf Detected", "error", 0, 59)) == []
    assert kinds_that_fit("nan-planted", said("TA100 NaN or Inf Detected", "error", 0, 60)) != []


def test_no_alarm_fits_a_healthy_training() -> None:
    assert kinds_that_fit("mlp-relu", *(said(kind, "critical") for kind in KINDS)) == []


def test_every_name_in_the_table_of_kinds_is_known() -> None:
    expected = [training.expects for training in faulty() if training.expects is not None]
    known = {rule for each in expected for rule in each.rules}
    causes = {each.cause for each in expected}
    for kind, fit in KINDS.items():
        assert fit.rules <= known, kind
        assert fit.causes <= causes, kind
        assert fit.trainings <= set(TRAININGS), kind


def test_statements_of_one_kind_become_one_line() -> None:
    found = [
        ("B", "warn", 7, 7, ["head"]),
        ("A", "warn", 3, 3, []),
        ("B", "warn", 2, 2, [*"abcdefg"]),
        ("B", "error", 4, 9, ["a"]),
    ]
    assert peer_callbacks.grouped(found) == [
        ["A", "warn", 1, 3, 3, []],
        ["B", "error", 1, 4, 9, ["a"]],
        ["B", "warn", 2, 2, 7, ["head", *"abcd"]],
    ]


@pytest.fixture
def page() -> str:
    audit = [
        line("nan-planted", said("TA100 NaN or Inf Detected", "error"), ratio=2.0),
        line("rate-far-too-low", said("TA402 Weight Decay on Norm/Bias", "warn"), ratio=3.0),
        line("some-labels-shuffled"),
        line("mlp-relu", said("TA402 Weight Decay on Norm/Bias", "warn"), ratio=4.0, failures=["a check raised"]),
    ]
    own = [line(name, peer="HealthMonitor alone", version="0.1.0") for name in ("nan-planted", "mlp-relu")]
    chosen = [TRAININGS[name] for name in ("nan-planted", "rate-far-too-low", "some-labels-shuffled", "layers-of-zeros")]
    return peer_table.section([*audit, *own], [TRAININGS["mlp-relu"], TRAININGS["mlp-tanh"]], chosen)


def test_the_section_has_a_row_of_totals_for_each_package(page: str) -> None:
    assert "| torch-audit | 1 of 2 | 1 | 2 of 2 | 0 of 1 | 1 of 1 | 0 of 1 | 2.50 (1.88 to 3.25) | 1 |" in page
    assert "| HealthMonitor alone | 0 of 1 | 1 | 0 of 1 | 0 of 0 | 0 of 1 | 0 of 1 | 1.50 (1.50 to 1.50) | 0 |" in page


def test_the_section_says_what_was_run(page: str) -> None:
    assert (
        "1 of 2 healthy trainings and 3 of 4 with a fault that have one process, with torch 2.13.0 and Lightning 2.6.6" in page
    )
    assert "**torch-audit** (0.3.0): an `Auditor` of every step" in page
    assert "Each was run once, with one thread" in page


def test_the_section_shows_what_fits_each_fault(page: str) -> None:
    assert "| nan-planted | TA100 NaN or Inf Detected | - |  |" in page
    assert "| rate-far-too-low | other | not run |  |" in page
    assert "| some-labels-shuffled | - | not run | no trace in layers |" in page
    assert "| layers-of-zeros |" not in page


def test_the_section_counts_kinds_of_the_other_packages(page: str) -> None:
    assert "| torch-audit | TA402 Weight Decay on Norm/Bias | 1 | 1 | 0 |" in page
    assert "| torch-audit | TA100 NaN or Inf Detected | 0 | 1 | 1 |" in page


def test_a_line_that_was_run_again_replaces_the_one_before() -> None:
    lines = [line("mlp-relu", said("Dead units", "warning")), line("mlp-relu")]
    assert "| 0 of 1 | 0 of 1 |" in peer_table.section(lines, [TRAININGS["mlp-relu"]], [])


def test_nothing_is_written_where_nothing_is_recorded() -> None:
    assert peer_table.section([], healthy(), faulty()) == ""


def test_the_third_of_make_test_comes_before_the_other_faults() -> None:
    order = [training.name for training in peers.in_order()]
    assert order[: len(healthy())] == [training.name for training in healthy()]
    assert set(order[len(healthy()) : len(healthy()) + len(peers.NAMED)]) == set(peers.NAMED)
    assert "rates-by-rank" not in order
    assert len(set(order)) == len(order)


def test_a_bare_run_and_a_package_are_compared_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        name, package = "fake", "pytest"
        failures = ("a check raised",)

    ran = []

    def run(training: Training, peer: Any) -> peers.Run:
        ran.append(type(peer).__name__)
        return peers.Run(cpu=3.0 if peer else 2.0, wall=4.0, said=[said("Dead units", "warning")], error="")

    monkeypatch.setattr(peers, "run", run)
    (result,) = peers.compared(dataclasses.replace(TRAININGS["mlp-relu"]), [Fake], rounds=2)
    assert ran == ["NoneType", "Fake", "Fake", "NoneType"]
    assert result["ratio"] == 1.5
    assert result["failures"] == ("a check raised",)
    assert [result[key] for key in ("name", "peer", "seed", "cpu", "bare_cpu")] == [
        "mlp-relu",
        "fake",
        0,
        [3.0, 3.0],
        [2.0, 2.0],
    ]
