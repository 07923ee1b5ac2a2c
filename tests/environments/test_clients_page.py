"""The page of `make clients`, from results made up here."""

from pathlib import Path

from tests.environments.clients import CLIENTS, WATCHED, compared
from tests.environments.clients_page import VARIANTS, page

QUICK_STARTS = Path(__file__).parent / "clients"


def outcome(weights, predictions="1", **facts):
    return {"weights": {".w": weights}, "predictions": {"": predictions}, **facts}


def runs(**changed):
    """Results of runs, in which what is `changed` has other weights."""
    written = {"runs": 1, "scalars": 44, "histograms": 0, "bytes": 2_000_000}
    facts = {"seconds": 3.2, "modules": 5, "left": [], "written": written}
    return {
        name: {part: outcome(changed.get(name, "0"), **facts) for part in ("trained", "loaded")}
        for name in (*WATCHED, "plain", "again")
    }


def row_of(result):
    text = page({"package": {"what": "a fit", "date": "2026-01-01", **result}})
    return [cell.strip() for cell in text.splitlines()[-1].strip("|").split("|")]


def test_identical_runs():
    result = {"version": "1.0", "environment": "Python 3.11", "facts": compared(runs())}
    same = "identical (1 and 1 arrays)"
    files = "44 scalars; 2.0 MB in 1 event file"
    assert row_of(result) == ["package 1.0", "a fit", same, same, "none", files, files, "3, 3, 3"]
    assert "Run with Python 3.11 (2026-01-01)." in page({"package": {"what": "a fit", "date": "2026-01-01", **result}})


def test_what_differs_is_named():
    facts = compared(runs(everything="9"))
    assert row_of({"version": "1.0", "facts": facts})[2] == "**different:** weights.w (1) with everything"
    assert row_of({"version": "1.0", "facts": compared(runs(again="9"))})[2] == "two plain runs differ: weights.w"
    assert row_of({"error": "no such package"})[2] == "not run: no such package"


def test_every_package_has_a_quick_start():
    assert tuple(WATCHED) == VARIANTS
    assert {client.quick_start for client in CLIENTS.values()} == {path.stem for path in QUICK_STARTS.glob("*.py")}
