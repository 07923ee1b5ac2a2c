"""Rules and checks that are named: unknown names and fields are refused, changed ones are on."""

from dataclasses import dataclass

import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.named import known_name, with_changes


@dataclass(frozen=True)
class Limit:
    most: int = 3
    enabled: bool = False

    def __post_init__(self):
        if self.most < 0:
            raise RuleError(f"most must be at least 0, got {self.most}")


def test_changes_switch_it_on():
    assert with_changes(Limit(), {"most": 5}, "x") == Limit(5, enabled=True)
    assert with_changes(Limit(), {}, "x") == Limit(enabled=True) and with_changes(Limit(), True, "x") == Limit(enabled=True)
    assert (
        with_changes(Limit(enabled=True), False, "x") == Limit() and with_changes(Limit(), {"enabled": False}, "x") == Limit()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moost": 5}, "x: unknown field 'moost' .did you mean 'most'.*; there are most, enabled"),
        ({"most": -1}, "x: most must be at least 0, got -1"),
        ("on", "x must be a mapping of fields, True or False, got 'on'"),
    ],
)
def test_bad_changes(changes, message):
    with pytest.raises(RuleError, match=message):
        with_changes(Limit(), changes, "x")


def test_names():
    assert known_name("Limit", ["Limit", "Other"], "x", "rule") == "Limit"
    with pytest.raises(RuleError, match="x: there is no rule 'Limits' .did you mean 'Limit'"):
        known_name("Limits", ["Limit", "Other"], "x", "rule")
