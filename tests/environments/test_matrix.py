"""Which tests are run again, and how their counts join those of before."""

import json

from tests.environments import matrix


def test_only_what_failed_is_run_again_and_everything_after_an_error(tmp_path, monkeypatch, capsys):
    before = {
        "floors": {"passed": 9, "failed": {}, "skipped": 1, "python": "3.11", "date": "2026-01-01"},
        "torch-2.11": {"passed": 5, "failed": {"tests/a.py::test_b": "no"}, "skipped": 2, "commit": "abc"},
        "newest": {"error": "no wheel"},
    }
    (tmp_path / "results.json").write_text(json.dumps(before))
    ran = {}

    def try_out(combination, wheel, work, workers, tests):
        ran[combination.name] = tests
        return {"passed": 1, "failed": {}, "skipped": 0, "minutes": 0.1, "python": "3.11", "date": "2026-01-02"}

    for name, value in {
        "RESULTS": tmp_path / "results.json",
        "PAGE": tmp_path / "page.md",
        "try_out": try_out,
        "interpreter": lambda version: "python",
        "commit_of_tree": lambda: "def",
    }.items():
        monkeypatch.setattr(matrix, name, value)
    names = [*before, "torch-2.12"]
    monkeypatch.setattr("sys.argv", ["matrix", *names, "--again", "--wheel", "x.whl", "--tests", "tests/all"])
    matrix.main()
    assert ran == {"torch-2.11": ["tests/a.py::test_b"], "newest": ["tests/all"], "torch-2.12": ["tests/all"]}
    after = matrix.read_results()
    assert after["floors"] == before["floors"] and "floors: nothing failed before\n" in capsys.readouterr().out
    assert [(after[name]["passed"], after[name]["skipped"]) for name in names[1:]] == [(6, 2), (1, 0), (1, 0)]
    assert [after[name].get("commit") for name in names] == [None, "abc, def", "def", "def"]
    page = (tmp_path / "page.md").read_text()
    assert "| 9 | 0 | 1 | 2026-01-01 | – |\n" in page and "| 6 | 0 | 2 | 2026-01-02 | abc, def |\n" in page
