"""What health rules need becomes fields of watch rules that a monitor accepts."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from lightning_hooks import Watch
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.health.watching import RARELY, START, fields_of_watch

FIRST_STEPS = {"every": 1, "last": START - 1}


def needing(*pairs):
    @dataclass(frozen=True, kw_only=True)
    class Needing(HealthRule):
        needs: ClassVar[tuple[tuple[str, str], ...]] = pairs

    return Needing


def brief(rules, **options):
    """(target, tensor, statistics, schedule) of each watch rule."""
    return [
        ("modules" if "modules" in each else "params", *each["tensors"], each["stats"], each.get("every_n_steps"))
        for each in fields_of_watch(rules, **options)
    ]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ((("grad", "abs_max"),), [("params", "grad", ["norm"], None), ("params", "grad", ["norm"], FIRST_STEPS)]),
        (
            (("update", "ratio"),),
            [("params", "update", ["norm", "ratio"], None), ("params", "update", ["norm", "ratio"], FIRST_STEPS)],
        ),
        ((("output", "dead_units"),), [("modules", "output", ["dead_units"], None)]),
        (
            (("output", "dead_units"), ("output", "std")),
            [
                ("modules", "output", ["dead_units"], None),
                ("modules", "output", ["norm"], None),
                ("modules", "output", ["norm"], FIRST_STEPS),
            ],
        ),
        (
            (("grad", "cosine"), ("grad", "norm")),
            [("params", "grad", ["norm", "cosine"], None), ("params", "grad", ["norm", "cosine"], FIRST_STEPS)],
        ),
        ((("input", "mean"),), [("modules", "input", ["norm"], RARELY)]),
        ((("", "run/grad_norm"), ("loss", "nonfinite")), []),
    ],
    ids=["moments", "ratio", "units alone", "units and moments", "another accumulator", "rare tensor", "no tensor"],
)
def test_needs_become_watch_rules(pairs, expected):
    assert brief([needing(*pairs)()], from_start=True) == expected
    later = [each for each in expected if each[-1] != FIRST_STEPS]
    assert brief([needing(*pairs)()]) == later


def test_needs_of_several_rules_are_watched_once_and_those_of_rules_that_are_off_are_not():
    grad, update = needing(("grad", "norm")), needing(("update", "norm"))
    assert brief([grad(), grad(), update(enabled=False)]) == brief([grad()])


def test_beside_a_monitor_only_what_it_does_not_watch_is_added():
    assert brief([needing(("grad", "norm"))()], beside=True) == []
    assert brief([needing(("grad", "cosine"))()], beside=True) == [("params", "grad", ["cosine"], RARELY)]
    assert brief([needing(("input", "mean"))()], beside=True) == [("modules", "input", ["norm"], RARELY)]


def test_a_costly_statistic_is_watched_until_the_last_step_at_which_a_rule_needs_it():
    short, long = needing(("grad", "cosine")), needing(("grad", "cosine"))
    short.needs_until, long.needs_until = 40, 200
    until = {"every": RARELY, "last": 200}
    for order in ([short(), long()], [long(), short()]):
        assert brief(order, beside=True) == [("params", "grad", ["cosine"], until)]
    rules = [short(), long()]
    cosines = [each[-1] for each in brief(rules, from_start=True) if "cosine" in each[2]]
    assert cosines == [until, FIRST_STEPS]
    assert brief([*rules, needing(("grad", "cosine"))()], beside=True) == [("params", "grad", ["cosine"], RARELY)]


@pytest.mark.parametrize("beside", [False, True])
def test_the_needs_of_all_default_rules_are_valid_watch_rules(beside):
    listed = fields_of_watch(DEFAULT_RULES, beside=beside)
    assert listed and all(isinstance(Watch(**fields), Watch) and fields["strict"] is False for fields in listed)


def test_a_tensor_that_a_rule_needs_from_the_start_is_watched_at_each_of_the_first_steps():
    class Early(needing(("input", "rms"))):
        needs_start = ("input",)

    expected = [("modules", "input", ["norm"], RARELY), ("modules", "input", ["norm"], FIRST_STEPS)]
    assert brief([Early()]) == brief([Early()], beside=True) == expected
