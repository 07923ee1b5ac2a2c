"""What the comparison of two records calls a difference."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.compare import RELATIVE, differences
from tests.golden.renames import Accepted, Rename

TABLE = "events/tables/./grad/max"


def record() -> dict[str, Any]:
    return {
        "processes": [
            {"warnings": ["UserWarning: watch/hooks/loss"], "hooks": {"batch 0": {"net": 2, "head": 1}}, "rows": [27, 96, 41]}
        ],
        "events": {
            "values": {
                ".": {"watch/hooks/loss": {"0": 0.5, "1": "nan"}, "watch/grad_norm/w": {"0": 1.0}, "text": {"0": "a\nb"}}
            },
            "tables": {".": {"grad/max": {"w": {"0": 2.0}}, "second/grad/max": {"w": {"0": 2.0}}}},
        },
        "journals": {"findings.jsonl": [{"event": "new", "rule": "NonFinite", "is_over": None}]},
    }


def changed(**places: Any) -> dict[str, Any]:
    """The record with other values at these places, whose keys are separated by `__`."""
    made = record()
    for place, value in places.items():
        *way, last = [int(key) if key.isdigit() else key for key in place.split("__")]
        at: Any = made
        for key in way:
            at = at[key]
        at[last] = value
    return made


def test_equal_records_have_no_difference() -> None:
    assert differences(record(), record()) == []


def test_a_changed_value_is_a_difference() -> None:
    now = record()
    now["events"]["tables"]["."]["grad/max"]["w"]["0"] = 2.0 * (1 + 2 * RELATIVE)
    assert differences(record(), now) == [f"{TABLE}/w/0: 2.0000009536743164 instead of 2.0"]
    now["events"]["tables"]["."]["grad/max"]["w"]["0"] = 2.0 * (1 + RELATIVE / 2)
    assert differences(record(), now) == []


@pytest.mark.parametrize("value", [1.0, "inf", None, True])
def test_nan_is_equal_to_nan_alone(value: Any) -> None:
    now = record()
    now["events"]["values"]["."]["watch/hooks/loss"]["1"] = value
    assert differences(record(), now) == [f"events/values/./watch/hooks/loss/1: {value!r} instead of 'nan'"]


def test_a_missing_tag_a_new_one_and_a_missing_step_are_differences() -> None:
    now = record()
    values = now["events"]["values"]["."]
    values["watch/new"] = {"0": 3.0}
    del values["watch/grad_norm/w"], values["watch/hooks/loss"]["0"]
    assert differences(record(), now) == [
        "events/values/./watch/hooks/loss/0: gone, was 0.5",
        "events/values/./watch/grad_norm/w/0: gone, was 1.0",
        "events/values/./watch/new/0: new: 3.0",
    ]


def test_a_text_shows_the_lines_that_changed() -> None:
    now = record()
    now["events"]["values"]["."]["text"]["0"] = "a\nc"
    (said,) = differences(record(), now)
    assert said.startswith("events/values/./text/0: another text") and said.endswith("    -b\n    +c")


def test_a_renamed_tag_is_none_if_the_table_of_renames_has_it() -> None:
    now = record()
    values = now["events"]["values"]["."]
    values["watch/run/loss"] = values.pop("watch/hooks/loss")
    now["processes"][0]["warnings"] = ["UserWarning: watch/run/loss"]
    assert len(differences(record(), now)) == 5  # two steps gone, two new, a text
    assert len(differences(record(), now, [Rename("watch/hooks/", "watch/run/", "prefix")])) == 1
    assert differences(record(), now, [Rename(r"\bwatch/hooks/", "watch/run/", "pattern")]) == []
    only_values = Rename(r"\bwatch/hooks/", "watch/run/", "pattern", under="events/values")
    assert differences(record(), now, [only_values]) == [
        "processes/0/warnings/0: 'UserWarning: watch/run/loss' instead of 'UserWarning: watch/hooks/loss'"
    ]


def test_a_renamed_rule_is_a_text_of_the_journal() -> None:
    now = changed(journals={"findings.jsonl": [{"event": "new", "rule": "BadNumber", "is_over": None}]})
    assert differences(record(), now, [Rename("NonFinite", "BadNumber")]) == []


@pytest.mark.parametrize("value", [2.0, 3.0])
def test_two_names_can_become_one_if_their_values_are_equal(value: float) -> None:
    old, now = record(), record()
    old["events"]["tables"]["."]["second/grad/max"]["w"]["0"] = value
    del now["events"]["tables"]["."]["second/grad/max"]
    clash = f"{TABLE}/w/0: two recorded values have this name after the renames: 2.0 and 3.0"
    found = differences(old, now, [Rename("second/", "", "prefix", under="events/tables")])
    assert found == ([] if value == 2.0 else [clash])


def test_fewer_rows_and_hooks_are_none_and_more_are_differences() -> None:
    now = record()
    now["processes"][0].update(rows=[96], hooks={"batch 0": {"net": 1}})
    assert differences(record(), now) == []
    assert differences(now, record()) == [
        "processes/0/hooks/batch 0/net: 2 hooks instead of 1",
        "processes/0/hooks/batch 0/head: 1 hooks instead of 0",
        "processes/0/rows: 164 rows instead of 96",
    ]
    now["processes"][0].update(rows=[], hooks={})
    assert differences(record(), now) == []


def test_one_row_of_a_table_fewer_in_an_event_file_is_a_difference() -> None:
    now = record()
    now["events"]["tables"]["."]["grad/max"] = {"v": {"0": 2.0}}
    assert differences(record(), now) == [f"{TABLE}/w/0: gone, was 2.0", f"{TABLE}/v/0: new: 2.0"]


def test_an_accepted_difference_is_not_told() -> None:
    now = record()
    now["journals"]["findings.jsonl"].append({"event": "end"})
    accepted = Accepted("default", r"^journals/findings\.jsonl/1/", "a fit that fails says that it ended")
    assert differences(record(), now) == ["journals/findings.jsonl/1/event: new: 'end'"]
    assert differences(record(), now, accepted=[accepted]) == []
