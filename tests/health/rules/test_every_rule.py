"""Every rule of the package is used, and has a test in this folder. A training of the gallery shows it, see tests/galleries."""

import re
from pathlib import Path

import pytest

from lightning_hooks.health import rules
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import DEFAULT_RULES

TESTS = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))


def subclasses(kind):
    return [each for direct in kind.__subclasses__() for each in (direct, *subclasses(direct))]


def test_every_class_of_a_rule_is_among_the_default_rules():
    classes = [each for each in subclasses(HealthRule) if each.__module__.startswith(f"{rules.__name__}.")]
    leaves = {each for each in classes if not subclasses(each)}
    assert leaves == {type(rule) for rule in DEFAULT_RULES}, "add an object to RULES of its file"
    assert len(DEFAULT_RULES) == len({rule.name for rule in DEFAULT_RULES})


def test_every_file_of_rules_is_read():
    files = {
        path.stem for path in Path(rules.__file__).parent.glob("*.py") if "\nRULES: Final" in path.read_text(encoding="utf-8")
    }
    read = {type(rule).__module__.rpartition(".")[2] for rule in DEFAULT_RULES}
    assert files == read, "add the file to _FILES in health/rules/__init__.py"


@pytest.mark.parametrize("name", [rule.name for rule in DEFAULT_RULES])
def test_every_rule_has_a_test(name):
    assert re.search(rf"\b{name}\b", TESTS), f"test {name} in tests/health/rules/"
