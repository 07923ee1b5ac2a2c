"""Every recorded answer was given by the rules of today."""

from __future__ import annotations

from dataclasses import replace

import pytest

from galleries.rules import CHECKS, HEALTH, RECORDS, Record, digest, lines_of, refuse_outdated
from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.health.causes import CAUSES
from lightning_hooks.health.rules import DEFAULT_RULES


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.path)
def test_every_answer_was_recorded_with_the_rules_of_today(record: Record) -> None:
    lines = lines_of(record)
    assert lines
    refuse_outdated(lines, record)


def test_an_answer_of_other_rules_is_an_error_that_names_the_command() -> None:
    record = Record("health/results.jsonl", "abc", "python -m galleries.health.run")
    refuse_outdated([{"name": "mlp", "rules": "abc"}], record)
    lines = [{"name": name, "rules": "other"} for name in ("mlp", "mlp", "cnn", "gan")] + [{"name": "rnn"}]
    with pytest.raises(ValueError, match=r"of mlp, cnn, gan and 1 more\): record them anew with `python -m g"):
        refuse_outdated(lines, record)


def test_a_threshold_a_name_and_what_decides_on_a_cause_change_the_digest() -> None:
    rules = [*DEFAULT_RULES, *CAUSES]
    assert digest(reversed(rules)) == HEALTH
    assert digest(rules[1:]) != HEALTH
    assert digest([replace(rules[0], patience=rules[0].patience + 1), *rules[1:]]) != HEALTH
    assert digest([*rules[:-1], replace(CAUSES[-1], supporting=("Other",))]) != HEALTH
    assert digest([*rules[:-1], replace(CAUSES[-1], message="Other words.")]) == HEALTH
    assert digest(DEFAULT_CHECKS[1:]) != CHECKS
