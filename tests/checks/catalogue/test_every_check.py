"""Every check of the package is used, and has a test in this folder. A model of the gallery shows it, see tests/galleries."""

import re
from pathlib import Path

import pytest

from lightning_hooks.checks import catalogue
from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.checks.check import Check

TESTS = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))


def test_every_class_of_a_check_is_among_the_default_checks():
    classes = {each for each in Check.__subclasses__() if each.__module__.startswith(f"{catalogue.__name__}.")}
    assert classes == {type(check) for check in DEFAULT_CHECKS}, "add an object to CHECKS of its file"
    assert len(DEFAULT_CHECKS) == len({check.name for check in DEFAULT_CHECKS})


def test_every_file_of_checks_is_read():
    folder = Path(catalogue.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "\nCHECKS: Final" in path.read_text(encoding="utf-8")}
    read = {type(check).__module__.rpartition(".")[2] for check in DEFAULT_CHECKS}
    assert files == read, "add the file to _FILES in checks/catalogue/__init__.py"


@pytest.mark.parametrize("name", [check.name for check in DEFAULT_CHECKS])
def test_every_check_has_a_test(name):
    assert re.search(rf"\b{name}\b", TESTS), f"test {name} in tests/checks/catalogue/"
