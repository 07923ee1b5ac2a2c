"""The command `lightning-hooks explain`: a page, a list, a suggestion for a misspelled name, and no torch."""

import subprocess
import sys

import pytest

from lightning_hooks.cli.main import main
from lightning_hooks.explained.pages import TITLES, pages


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal in which no line of the tests is broken."""
    monkeypatch.setenv("COLUMNS", "110")


def printed(capsys, *arguments):
    code = main(["explain", *arguments])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", ["DeadUnits", "deadunits", "DeadUnits/encoder.*"])
def test_a_page_has_its_sections_in_order(capsys, name):
    code, out, err = printed(capsys, name)
    lines = out.splitlines()
    assert (code, err, lines[0]) == (0, "", "DeadUnits (rule)")
    assert [line for line in lines if line in TITLES] == list(TITLES)
    assert "  - `at_start` = 0.5: the share of a rectifier's units that may be dead in the first steps." in lines
    assert max(map(len, lines)) <= 110


def test_a_rule_a_cause_and_a_check_of_one_name_share_a_page(capsys):
    _, out, _ = printed(capsys, "DropoutTooHigh")
    assert out.startswith("DropoutTooHigh (rule, cause, check)\n")
    assert out.count("Begin with 0.1 to 0.5.") == 1


def test_every_page_can_be_printed(capsys):
    for name in pages():
        assert printed(capsys, name)[0] == 0


@pytest.mark.parametrize(("name", "close"), [("DeadUnit", "DeadUnits"), ("nogradients", "NoGradient")])
def test_a_misspelled_name_gets_suggestions(capsys, name, close):
    code, out, err = printed(capsys, name)
    assert (code, out) == (2, "")
    assert err.startswith(f"lightning-hooks: error: there is no rule, cause, check or error {name!r} (did you mean {close} or ")


def test_without_a_name_all_are_listed_in_one_line_each(capsys):
    code, out, _ = printed(capsys)
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("Health rules:")
    listed = [line.split(maxsplit=1) for line in lines if line.startswith("  ")]
    assert {name for name, _ in listed} == set(pages())
    assert ["NoMatchError", pages()["NoMatchError"].summary] in listed


def test_neither_torch_nor_numpy_is_loaded():
    code = "import sys; from lightning_hooks.cli.main import main; main(['explain', 'NonFinite'])"
    code += "; print({'torch', 'numpy', 'lightning'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "set()"
