"""SARIF: what the standard requires, and what GitHub requires of it beyond."""

from __future__ import annotations

import json
from typing import Any

from lightning_hooks.health.outcome import Outcome, Report, RuleText
from lightning_hooks.health.sarif import sarif_of

DEAD = Outcome(
    "DeadUnits",
    "failed",
    "net.fc, then 1 more: dead.",
    "warning",
    ("net.fc", "head"),
    ("net.fc, step 20: 90 % of the units are dead",),
    ("Lower the rate.",),
    "DeadUnits/*",
    {"tensor": "output", "first_step": 20, "last_step": 29},
)
OTHERS = (
    Outcome("NonFinite", "failed", "The loss is NaN.", "error", fingerprint="NonFinite"),
    Outcome("ClippingAlways", "noted", "Clipping acts at {0} and {x}\x1b.", "note"),
    Outcome("LossSpike", "passed"),
    Outcome("UnitCollapse", "skipped", "no row has `output`"),
    Outcome("Mine", "broken", "ValueError: no"),
)
WORDS = RuleText("DeadUnits", "Units are 0.", ("Lower the rate.",), "a paper", "warning", "activations")


def run_of(*outcomes: Outcome, problem: str = "") -> dict[str, Any]:
    log = sarif_of(Report("runs/a", outcomes, (WORDS,), problem), "my model/train.py", "0.1.0")
    assert log["version"] == "2.1.0" and log["$schema"].endswith("/sarif-schema-2.1.0.json")
    json.dumps(log, allow_nan=False)
    (run,) = log["runs"]
    return run


def test_a_failure_is_a_result_with_its_rows_as_logical_locations() -> None:
    (result,) = run_of(DEAD)["results"]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("DeadUnits", 0, "warning")
    assert result["message"]["text"].splitlines() == [
        "net.fc, then 1 more: dead.",
        "net.fc, step 20: 90 % of the units are dead",
        "Next: Lower the rate.",
    ]
    (location,) = result["locations"]
    assert location["logicalLocations"] == [
        {"name": "fc", "fullyQualifiedName": "net.fc"},
        {"name": "head", "fullyQualifiedName": "head"},
    ]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20model/train.py"},  # a URI has no spaces
        "region": {"startLine": 1},
    }
    assert result["properties"] == {"tensor": "output", "first_step": 20, "last_step": 29}


def test_every_result_names_an_existing_rule_and_has_a_place_and_fingerprints() -> None:
    run = run_of(DEAD, *OTHERS)
    rules = run["tool"]["driver"]["rules"]
    names = [rule["id"] for rule in rules]
    assert names == ["DeadUnits", "NonFinite", "ClippingAlways", "LossSpike", "UnitCollapse", "Mine"]
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [
        ("DeadUnits", "warning"),
        ("NonFinite", "error"),
        ("ClippingAlways", "note"),
    ]
    for result in run["results"]:
        assert names[result["ruleIndex"]] == result["ruleId"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert result["partialFingerprints"]["lightningHooks/v1"]
    assert "logicalLocations" not in run["results"][1]["locations"][0]
    assert run["properties"] == {"run": "runs/a", "passed": ["LossSpike"]}


def test_the_fingerprint_is_the_same_in_every_run() -> None:
    (first,) = run_of(DEAD)["results"]
    later = DEAD._replace(message="Another number.", facts={"first_step": 80})
    (second,) = run_of(later)["results"]
    assert first["partialFingerprints"] == second["partialFingerprints"]
    assert first["partialFingerprints"]["lightningHooks/v1"] == "DeadUnits/*"
    (other,) = run_of(DEAD._replace(fingerprint="DeadUnits/head"))["results"]
    hashes = [each["partialFingerprints"]["primaryLocationLineHash"] for each in (first, other)]
    assert len({*hashes}) == 2 and all(each.endswith(":1") for each in hashes)


def test_rules_have_help_and_a_rule_without_words_has_its_name() -> None:
    known, unknown = run_of(DEAD, OTHERS[0])["tool"]["driver"]["rules"]
    assert known == {
        "id": "DeadUnits",
        "name": "DeadUnits",
        "shortDescription": {"text": "Units are 0."},
        "fullDescription": {"text": "Units are 0."},
        "help": {"text": "Units are 0.\nThreshold: a paper.\nWhat to try:\n- Lower the rate."},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["activations"]},
    }
    assert unknown["help"] == {"text": "The rule NonFinite."}


def test_rules_that_could_not_look_are_notifications() -> None:
    run = run_of(*OTHERS, problem="The fit has not ended.")
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"] and run_of(DEAD)["invocations"][0]["executionSuccessful"]
    assert invocation["toolConfigurationNotifications"] == [
        {
            "level": "note",
            "message": {"text": "UnitCollapse could not look: no row has `output`"},
            "associatedRule": {"id": "UnitCollapse", "index": 3},
        }
    ]
    broken, incomplete = invocation["toolExecutionNotifications"]
    assert broken["level"] == "error" and broken["message"]["text"] == "Mine: ValueError: no"
    assert incomplete == {"level": "warning", "message": {"text": "The fit has not ended."}}


def test_braces_stand_for_themselves_and_no_name_moves_a_cursor() -> None:
    assert run_of(OTHERS[1])["results"][0]["message"]["text"] == "Clipping acts at {{0}} and {{x}}\\x1b."
