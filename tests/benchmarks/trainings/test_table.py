"""The page says what the lines of a folder come to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainings import results
from benchmarks.trainings.__main__ import main
from benchmarks.trainings.table import PROTOCOL, page
from benchmarks.trainings.verdicts import harm_of, rung_of


def drawn(seed: int, discarded: str = "", **more: Any) -> dict[str, Any]:
    line = {"seed": seed, "fault": "", "rung": 0, "repeat": 0, "family": "mlp", "tricks": ["clip"], "error": "", "value": 0.9}
    return {"key": str(seed), **line, "discarded": discarded, "views": f"{seed}.views", **more}


def repeats(seed: int, values: list[float]) -> list[dict[str, Any]]:
    return [drawn(seed, key=f"{seed}+{i}", repeat=i, value=value) for i, value in enumerate(values, 1)]


def faulty(seed: int, rung: int, value: float, fault: str = "rate-too-high", rows: tuple[str, ...] = ()) -> dict[str, Any]:
    key = f"{seed}-{fault}-{rung}"
    return {**drawn(seed), "key": key, "fault": fault, "rung": rung, "value": value, "rows": rows, "onset": 0}


def verdict(key: str, *findings: list[Any], causes: tuple[str, ...] = (), diverged: int | None = None) -> dict[str, Any]:
    told = [[cause, "warning"] for cause in causes]
    return {"key": key, "rules": "r", "code": "c", "findings": [*findings], "causes": told, "diverged": diverged}


def finding(rule: str, step: int, rows: tuple[str, ...] = ("",), severity: str = "warning") -> list[Any]:
    return [rule, [*rows], severity, step, step, "text"]


SPREAD = [0.90, 0.92, 0.91, 0.93, 0.94]


def by_key(*lines: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {line["key"]: line for line in lines}


def test_a_training_counts_once_and_facts_are_apart() -> None:
    lines = by_key(drawn(100_001), drawn(100_002), drawn(100_003, "below the bar"), drawn(100_004))
    judged = by_key(
        verdict("100001", finding("LossSpike", 3), finding("LossSpike", 9), finding("NotInOptimizer", 0)),
        verdict("100002", finding("LossSpike", 3, severity="info")),
        verdict("100003", finding("LossSpike", 3)),
        verdict("100004", finding("NotInOptimizer", 3)),
    )
    text = page(lines, judged)
    assert "Seeds 100001 to 100004, which report. Rules `r`, code `c`." in text
    assert "Of 3 healthy trainings, 2 get a finding above `info`: **666.7 (207.7 to 938.5) of 1,000**" in text
    assert "Without those of which only facts were told: 333.3 (61.5 to 792.3)." in text
    spike, fact = (next(each for each in text.splitlines() if each.startswith(f"| `{name}`")) for name in _RULES)
    assert spike.endswith("| pattern | 333.3 (61.5 to 792.3) | 100001 |")
    assert fact.endswith("| fact | 666.7 (207.7 to 938.5) | 100001, 100004 |")
    assert "| mlp | 4 | 3 | 1 | 0 |" in text and "| clip | 4 | 3 | 1 | 0 |" in text


_RULES = ("LossSpike", "NotInOptimizer")


@pytest.mark.parametrize(
    ("value", "is_harmful"), [(0.95, False), (0.87, False), (0.85, True), (float("nan"), True), (float("-inf"), True)]
)
def test_harm_leaves_the_spread_of_the_repetitions(value: float, is_harmful: bool) -> None:
    lines = by_key(*repeats(7, SPREAD))
    assert harm_of(faulty(7, 0, value), lines) is is_harmful
    assert harm_of(faulty(7, 0, value), by_key(*repeats(7, SPREAD[:4]))) is None
    assert harm_of(faulty(7, 0, value), by_key(*repeats(7, [0.9] * 5))) is not (value > 0.88)


def test_a_fault_that_could_not_be_planted_has_no_harm() -> None:
    line = {key: value for key, value in faulty(7, 0, 0.1).items() if key != "value"} | {"error": "ValueError: no layer"}
    assert harm_of(line, by_key(*repeats(7, SPREAD))) is None


def test_a_rung_is_named_by_its_rules_at_its_rows_with_its_cause() -> None:
    lines = by_key(*repeats(7, SPREAD))
    line = faulty(7, 1, 0.1, "cut-by-detach", ("model.0*",))
    named = rung_of(line, verdict("x", finding("NoGradient", 4, ("model.0.weight",)), causes=("GradientCut",)), lines)
    assert (named.is_harmful, named.is_named, named.in_place, named.has_cause, named.delay) == (True, True, True, True, 4)
    elsewhere = rung_of(line, verdict("x", finding("NoGradient", 4, ("model.1.weight",)), causes=("BadBatch",)), lines)
    assert (elsewhere.is_named, elsewhere.in_place, elsewhere.has_cause) == (True, False, False)
    other = rung_of(line, verdict("x", finding("LossSpike", 4)), lines)
    assert (other.is_told, other.is_named, other.delay, other.said) == (True, False, None, ("LossSpike",))
    note = rung_of(line, verdict("x", finding("NoGradient", 4, ("model.0.weight",), "info")), lines)
    assert (note.is_told, note.is_named, note.is_noted, other.is_noted) == (False, False, True, False)
    assert rung_of(line, verdict("x") | {"line": "Healthy: 38 rules found nothing"}, lines).is_healthy and not note.is_healthy


def test_the_page_counts_harmful_rungs() -> None:
    lines = by_key(drawn(7), *repeats(7, SPREAD), faulty(7, 0, 0.95), faulty(7, 3, 0.2), faulty(7, 4, float("nan")))
    judged = by_key(
        verdict("7"),
        verdict("7-rate-too-high-0"),
        {
            **verdict("7-rate-too-high-3", finding("UpdateTooLarge", 20), causes=("LearningRateTooHigh",), diverged=50),
            "shown": 0,
        },
        verdict("7-rate-too-high-4", finding("UpdateTooLarge", 20, severity="info")) | {"line": "Healthy: 38 rules …"},
    )
    text = page(lines, judged)
    assert "- 3 rungs of 1 faults; 2 are harmful." in text
    assert "**1 of 2 (50 %)** are named, and **1 of 2 (50 %)** get a right cause." in text
    row = next(each for each in text.splitlines() if each.startswith("| `rate-too-high` | 1 of 1 (100 %)"))
    assert (
        "| 0/0/0/1 | 0/0/0/0 | 0/0/0/0 | 1/1/1/1 | 0/0/1/1 | 1 of 2 (50 %) | 1 of 2 (50 %) | – | 1 of 2 (50 %) | 20 | 30 |"
        in row
    )
    assert "- Of all harmful rungs, 1 of 2 (50 %) are named, 1 of 2 (50 %) get a right cause" in text
    assert "has at least a note in 2 of 2 (100 %) of harmful rungs" in text and "**1 of 2 (50 %)** of all harmful rungs" in text
    assert "| `rate-too-high` | 5 | 1 |" in text


def test_judgements_of_two_sets_of_rules_are_refused(tmp_path: Path) -> None:
    results.write_judged(tmp_path, [verdict("1"), {**verdict("2"), "code": "d"}])
    with pytest.raises(ValueError, match="has judgements of 2 sets of rules: judge all of them anew"):
        results.judged(tmp_path)


@pytest.mark.parametrize("lacks", [(), ("value", "rows", "onset")], ids=["with a measure", "without"])
def test_a_fit_that_took_too_long_is_an_error_and_no_harm(lacks: tuple[str, ...]) -> None:
    line = faulty(7, 0, float("-inf")) | {"error": "TimeoutError: it took longer than 180 s"}
    line = {key: value for key, value in line.items() if key not in lacks}
    lines = by_key(drawn(7), *repeats(7, SPREAD), line)
    assert harm_of(line, lines) is None
    text = page(lines, by_key(verdict("7"), verdict(line["key"])) if not lacks else by_key(verdict("7")))
    assert "No faults were recorded." in text
    assert "- 1 faulty trainings took too long, and count neither as harmful nor as harmless." in text


def test_errors_are_listed() -> None:
    text = page(by_key(drawn(1, "below the bar", error="RuntimeError: no")), by_key({"key": "1", "error": "ValueError: bad"}))
    assert "- `1`: RuntimeError: no" in text and "- `1`, judging: ValueError: bad" in text


def test_one_command_writes_the_page(tmp_path: Path) -> None:
    for each in (drawn(7), *repeats(7, SPREAD), faulty(7, 3, 0.2)):
        results.append(tmp_path, each)
    results.write_judged(tmp_path, [verdict("7"), verdict("7-rate-too-high-3", finding("UpdateTooLarge", 20))])
    target = tmp_path / "page.md"
    main(["table", str(tmp_path), "--into", str(target)])
    text = target.read_text(encoding="utf-8")
    assert text.startswith("# Verdicts on drawn trainings\n") and "1 rungs of 1 faults" in text
    link = re.search(r"\[The protocol\]\((.*)\)", text)
    assert link is not None and (tmp_path / link[1]).resolve() == PROTOCOL
