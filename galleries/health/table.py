"""Writes docs/health.md from the rules, the causes and the results of a gallery run: `python -m galleries.health.table`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from galleries import markdown
from galleries.faults_page import linked
from galleries.health import peer_table
from galleries.health.catalogue import faulty, healthy
from galleries.health.training import Training
from galleries.rules import HEALTH
from lightning_hooks.health import HealthRule
from lightning_hooks.health.causes import CAUSES, CauseRule
from lightning_hooks.health.row_names import shown_rows
from lightning_hooks.health.rules import DEFAULT_RULES

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.jsonl"
PEERS = Path(__file__).parent / "peers.jsonl"
PAGE = ROOT / "docs" / "health.md"


def main() -> None:
    """Write the page."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    PAGE.write_text(recorded_page(path), encoding="utf-8")


def recorded_page(results: Path) -> str:
    """The whole page of a file of results and the recorded peers."""
    return page(_lines(results), _lines(PEERS) if PEERS.exists() else [])


def page(results: list[dict[str, Any]], peers: list[dict[str, Any]]) -> str:
    """The whole page.

    Args:
        results: the lines of results.jsonl.
        peers: those of peers.jsonl.
    """
    parts = [
        (Path(__file__).parent / "introduction.md").read_text(encoding="utf-8").rstrip(),
        "## Rules",
        "The name of a rule leads to its thresholds, their source, and what to try. A rule states a fact of structure, a "
        "fact of numbers, or a pattern, which is a note until harm is measured. Findings of severity `info` are never printed.",
        rules_table(),
        "## Causes",
        "A cause joins findings. The package knows these; a finding belongs to one of them at most. A decisive finding stands "
        "above `info`. `@` names the tensor, `>` and `<` the side of the threshold, and `+` asks that the loss or a second row "
        "shows the same.",
        causes_table(),
        "## What was said of the gallery",
        summary(results),
        "### Healthy trainings",
        healthy_table(results),
        "### Trainings with a fault",
        "*After* is the number of steps from the onset of the fault to the first finding that names it, the median over the "
        "seeds; `-` where no seed found it. A fault without harm in its training is a note, and has no cause.",
        faults_table(results),
        "### What layers cannot show",
        "These faults leave no trace in the numbers of layers, the loss, or the facts of a step. The last column says what "
        "would see them.",
        invisible_table(results),
        peer_table.section(peers, healthy(), [each for each in faulty() if each.family != "ranks"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def rules_table() -> str:
    """One row for each rule."""
    rows = [
        [
            linked(rule.name),
            _first_sentence(rule),
            rule.kind,
            str(rule.severity) if rule.enabled else "off",
        ]
        for rule in sorted(DEFAULT_RULES, key=lambda rule: (rule.family, rule.name))
    ]
    return markdown.table(["rule", "it says", "it states", "severity"], rows)


def causes_table() -> str:
    """One row for each cause."""
    rows = [
        [
            f"`{cause.name}`",
            ", ".join([*cause.required, *([f"one of {', '.join(cause.any_of)}"] if cause.any_of else [])]),
            ", ".join(cause.supporting),
            ", ".join(cause.excluding),
            _condition(cause),
        ]
        for cause in CAUSES
    ]
    return markdown.table(["cause", "decisive findings", "supporting", "excluded by", "and only if"], rows)


def _condition(cause: CauseRule) -> str:
    """The condition of a cause, from the first line of its docstring."""
    texts = [(each.__doc__ or "").split("\n\n")[0].strip() for each in (cause.condition, cause.history) if each is not None]
    return "; ".join(text.removeprefix("Whether ").removesuffix(".") for text in texts)


def summary(results: list[dict[str, Any]]) -> str:
    """The numbers of the whole gallery, those of the held half apart."""
    trainings = {each.name: each for each in [*healthy(), *faulty()]}
    seeds = sorted({each["seed"] for each in results})
    lines = [f"- Seeds: {', '.join(map(str, seeds))}; {len(results)} runs."]
    if any(each.get("rules") != HEALTH for each in results):
        said = "those of today may differ; `make gallery` records them anew."
        lines.insert(0, f"- **These answers are of earlier rules**, and {said}")
    for half, said in (("set", "of the half on which thresholds could be set"), ("held", "of the half that was held back")):
        runs = [each for each in results if trainings[each["name"]].half == half]
        sound = [each for each in runs if trainings[each["name"]].expects is None]
        sick = [each for each in runs if (e := trainings[each["name"]].expects) is not None and e.kind != "invisible"]
        alarms = sum(bool(_alarms(each)) for each in sound)
        notes = [each for each in sick if _is_note(each, trainings[each["name"]])]
        wanted = [each for each in sick if (e := trainings[each["name"]].expects) is not None and e.cause is not None]
        caused = [each for each in wanted if each not in notes]
        lines.append(
            f"- {said.capitalize()}: {alarms} of {len(sound)} healthy runs have a finding above `info`; "
            f"{sum(each['found'] for each in sick)} of {len(sick)} runs with a visible fault are named"
            f"{f' ({len(notes)} of them by a note, without harm in the loss)' if notes else ''}, "
            f"{sum(each['in_time'] for each in sick)} within 5 steps (facts) or 60 (patterns); "
            f"{sum(each['found'] and each['cause'] for each in caused)} of {len(caused)} with the right cause."
        )
    return "\n".join(lines)


def _is_note(run: Mapping[str, Any], training: Training) -> bool:
    """Whether only notes name the fault of a run, which have no cause."""
    rules = () if training.expects is None else training.expects.rules
    return run["found"] and all(severity == "info" for rule, _, severity, _ in run["findings"] if rule in rules)


def healthy_table(results: list[dict[str, Any]]) -> str:
    """One row for each healthy training."""
    rows = []
    for training in healthy():
        runs = _runs(results, training)
        said = sorted({_shown(finding) for run in runs for finding in _alarms(run)})
        noted = sorted({finding[0] for run in runs for finding in run["findings"] if finding[2] == "info"})
        rows.append([training.name, training.doc, training.half, "; ".join(said) or "nothing", ", ".join(noted)])
    return markdown.table(["training", "what it is", "half", "said", "noted as `info`"], rows)


def faults_table(results: list[dict[str, Any]]) -> str:
    """One row for each fault that layers can show."""
    rows = []
    for training in faulty():
        expected = training.expects
        runs = _runs(results, training)
        if expected is None or expected.kind == "invisible" or not runs:
            continue
        delays = sorted(run["delay"] for run in runs if run["delay"] is not None)
        named = sorted(
            {_shown(f) + " (note)" * (f[2] == "info") for r in runs for f in r["findings"] if f[0] in expected.rules}
        )
        causes = sorted({cause for run in runs for cause in run["causes"]})
        rows.append(
            [
                training.name,
                training.doc,
                training.half,
                "; ".join(named[:3]) or "-",
                str(delays[len(delays) // 2]) if delays else "-",
                f"{len(delays)} of {len(runs)}",
                ", ".join(causes) or "-",
                expected.cause or "",
            ]
        )
    return markdown.table(
        ["training", "what is wrong", "half", "named by", "after", "seeds", "causes told", "right cause"], rows
    )


def invisible_table(results: list[dict[str, Any]]) -> str:
    """One row for each fault that layers cannot show."""
    rows = []
    for training in faulty():
        if training.expects is not None and training.expects.kind == "invisible":
            said = sorted({_shown(finding) for run in _runs(results, training) for finding in _alarms(run)})
            rows.append([training.name, training.doc, "; ".join(said[:3]) or "nothing", training.expects.seen_by])
    return markdown.table(["training", "what is wrong", "said", "what would see it"], rows)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _runs(results: list[dict[str, Any]], training: Training) -> list[dict[str, Any]]:
    return [each for each in results if each["name"] == training.name]


def _alarms(run: dict[str, Any]) -> list[Any]:
    return [finding for finding in run["findings"] if finding[2] != "info"]


def _shown(finding: Any) -> str:
    where = shown_rows(finding[1])
    return f"{finding[0]}{f' at {where}' if where else ''}"


def _first_sentence(rule: HealthRule) -> str:
    """The first line of the docstring of a rule."""
    return (type(rule).__doc__ or "").strip().split("\n\n")[0].replace("\n", " ").strip()


if __name__ == "__main__":
    main()
