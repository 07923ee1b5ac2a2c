from __future__ import annotations

import pytest

from galleries.checks.catalogue import faulty, healthy
from galleries.checks.peer import fits
from galleries.checks.table import BEGIN, END, PAGE, held, recorded, replaced, section
from galleries.rules import command_of

NAMES = {pattern.name for pattern in [*healthy(), *faulty()]}


def test_the_page_is_that_of_the_recorded_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert replaced(page, section(*recorded(), held())) == page, "run: python -m galleries.checks.table"


def test_everything_is_recorded() -> None:
    ours, theirs = recorded()
    assert set(ours) == NAMES, f"run: {command_of('checks/results.jsonl')}"
    assert set(theirs) == NAMES, "run: make gallery PEERS=1"


def test_the_numbers_are_those_of_the_results() -> None:
    nothing = {"alarms": [], "skipped": [], "error": "", "changed": [], "changed_in_fit": None}
    ours = {name: dict(nothing) for name in NAMES}
    ours["lora"]["changed_in_fit"], ours["gan"]["changed_in_fit"], ours["gan"]["changed"] = [], ["parameter …"], ["gradient …"]
    theirs = {name: {"said": [], "error": "", "version": "0.1.0"} for name in NAMES}
    rows = ["4.weight", "4.bias"]
    ours["head-replaced"]["alarms"] = [{"check": "NotInOptimizer", "status": "fail", "rows": rows, "message": "…"}]
    theirs["lora"]["said"] = [["overfit_batch", "warn", "…"]]
    theirs["gan"]["error"] = "NotImplementedError: no"
    others = [{"name": "cnn", "alarms": [["BiasBeforeNorm", "warn"]]}, {"name": "mlp", "alarms": []}]
    text = section(ours, theirs, others)
    assert (
        "Of 2 healthy trainings of the [health gallery](health.md), it says something of 1 (`BiasBeforeNorm`: warn, 1 times)."
        in text
    )
    assert f"`check` names 1 of {len(faulty())} bugs, 1 with the expected status" in text
    assert f"Of {len(healthy())} healthy models, `check` says something of 0." in text
    assert f"{len(NAMES) - 1} of {len(NAMES)} models are bit for bit as before it. 1 of 2 fits" in text
    assert "names 0 bugs. It fails 0 healthy models and warns of 1 more, of 1 of these only" in text
    assert "1 models it cannot run" in text
    assert "| `NotInOptimizer`: fail at `4.weight`, `4.bias` |" in text


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"docs/check.md must hold .* once"):
        replaced(f"text {END} {BEGIN}", "new")


def test_text_outside_the_markers_stays() -> None:
    assert replaced(f"before {BEGIN} old {END} after", "new") == f"before {BEGIN}\n\nnew\n\n{END} after"


def test_a_check_of_torchtest2_fits_a_bug_that_it_can_name() -> None:
    expected = {pattern.name: pattern.expected for pattern in faulty()}
    assert fits(expected["head-replaced"], "optimizer_coverage")
    assert not fits(expected["head-replaced"], "initial_loss")
