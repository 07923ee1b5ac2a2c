"""Writes the results of the gallery into docs/check.md, between two markers: `python -m galleries.checks.table`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from galleries import markdown
from galleries.checks.case import Pattern
from galleries.checks.catalogue import faulty, healthy
from galleries.checks.judge import Said, naming
from galleries.checks.peer import fits

FOLDER = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "check.md"
BEGIN, END = "<!-- The gallery writes from here: python -m galleries.checks.run -->", "<!-- to here. -->"

_NOT_ASKED: Final = {"said": [], "error": "torchtest2 has not been asked yet"}


def main() -> None:
    """Write the part of the page that is between the markers."""
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), section(*recorded(), held())), encoding="utf-8")


def recorded() -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of `check` and of torchtest2, by the name of the pattern."""
    ours, theirs = (_lines(FOLDER / name) for name in ("results.jsonl", "peer.jsonl"))
    return ours, {name: _NOT_ASKED for name in ours} | theirs


def held() -> list[dict[str, Any]]:
    """What `check` says of the healthy trainings of the health gallery."""
    return [json.loads(line) for line in (FOLDER / "held.jsonl").read_text(encoding="utf-8").splitlines()]


def replaced(page: str, text: str) -> str:
    """A page with other text between its markers."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"docs/check.md must hold {BEGIN!r} once and {END!r} once, behind it")
    before, after = page[: page.index(BEGIN)], page[page.index(END) :]
    return f"{before}{BEGIN}\n\n{text}\n\n{after}"


def section(ours: dict[str, Any], theirs: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """All that the gallery says, in Markdown.

    Args:
        ours: the lines of results.jsonl, by the name of the pattern.
        theirs: those of peer.jsonl.
        others: those of held.jsonl.
    """
    parts = [summary(ours, theirs, others), "### Models with a bug", bugs_table(ours, theirs)]
    parts += ["### Healthy models", healthy_table(ours, theirs)]
    return "\n\n".join(parts)


def summary(ours: dict[str, Any], theirs: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """The numbers of models that were named, and of those of which something was said without a reason."""
    bugs, sound = faulty(), healthy()
    named = [bug for bug in bugs if _named(bug, ours)]
    exact = [bug for bug in named if _grave(bug, ours)]
    refused = [each for each in [*bugs, *sound] if theirs[each.name]["error"]]
    alarmed = [each for each in sound if ours[each.name]["alarms"] or ours[each.name]["error"]]
    their_named = [bug for bug in bugs if _their_named(bug, theirs)]
    copies = [bug for bug in bugs if bug.peer]
    failing = [each for each in sound if any(status == "fail" for _, status, _ in theirs[each.name]["said"])]
    warned = [each for each in sound if theirs[each.name]["said"] and each not in failing]
    overfit = [each for each in warned if {name for name, _, _ in theirs[each.name]["said"]} == {"overfit_batch"}]
    version = next(line["version"] for line in theirs.values() if "version" in line)
    fits = [line["changed_in_fit"] for line in ours.values() if line["changed_in_fit"] is not None]
    restored = sum(not line["changed"] for line in ours.values())
    return "\n".join(
        [
            f"- `check` names {len(named)} of {len(bugs)} bugs, {len(exact)} with the expected status. Of the "
            f"{len(copies)} that are versions of the examples in the documentation of torchtest2, it names "
            f"{sum(bug in named for bug in copies)}.",
            f"- Of {len(sound)} healthy models, `check` says something of {len(alarmed)}.",
            f"- Of {len(others)} healthy trainings of the [health gallery](health.md), it says something of "
            f"{sum(bool(line['alarms']) for line in others)}{_counts(others)}.",
            f"- {restored} of {len(ours)} models are bit for bit as before it. {sum(not each for each in fits)} of {len(fits)} "
            "fits end with the same weights, optimizers and generators with and without "
            "`HealthMonitor(check_first_batch=True)`.",
            f"- torchtest2 {version}, with its default checks, names {len(their_named)} bugs. It fails {len(failing)} healthy "
            f"models and warns of {len(warned)} more, of {len(overfit)} of these only because its 200 steps do not overfit "
            f"the batch. {len(refused)} models it cannot run. That it names a bug is judged generously, by a table of "
            "checks that can mean the same, and without the place.",
        ]
    )


def bugs_table(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """One row for each bug."""
    rows = []
    for bug in faulty():
        named = _named(bug, ours)
        rest = sorted({each.check for each in _alarms(ours[bug.name])} - {each.check for each in named})
        rows.append([bug.name, bug.doc, _shown(named) or "-", ", ".join(rest), _their_cell(bug, theirs)])
    return markdown.table(["model", "what is wrong", "named by", "also said", "torchtest2"], rows)


def healthy_table(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """One row for each healthy model."""
    rows = []
    for model in healthy():
        said = _shown(_alarms(ours[model.name])) or ours[model.name]["error"] or "nothing"
        peer = theirs[model.name]
        their = ", ".join(f"{name}: {status}" for name, status, _ in peer["said"]) or (
            "cannot run" if peer["error"] else "nothing"
        )
        rows.append([model.name, model.doc, said, ", ".join(ours[model.name]["skipped"]), their])
    return markdown.table(["model", "what it is", "said", "skipped", "torchtest2"], rows)


def _counts(lines: Sequence[dict[str, Any]]) -> str:
    """How often each alarm was given."""
    counts = Counter(f"`{check}`: {status}" for line in lines for check, status in line["alarms"])
    return "".join(f" ({alarm}, {count} times)" for alarm, count in sorted(counts.items()))


def _lines(path: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["name"]: line for line in lines}


def _alarms(line: dict[str, Any]) -> list[Said]:
    return [Said(each["check"], each["status"], tuple(each["rows"]), each["message"]) for each in line["alarms"]]


def _named(bug: Pattern, ours: dict[str, Any]) -> list[Said]:
    assert bug.expected is not None
    return naming(bug.expected, _alarms(ours[bug.name]))


def _grave(bug: Pattern, ours: dict[str, Any]) -> bool:
    assert bug.expected is not None
    return any(each.status == bug.expected.status for each in _named(bug, ours))


def _their_named(bug: Pattern, theirs: dict[str, Any]) -> list[str]:
    assert bug.expected is not None
    return [f"{name}: {status}" for name, status, _ in theirs[bug.name]["said"] if fits(bug.expected, name)]


def _their_cell(bug: Pattern, theirs: dict[str, Any]) -> str:
    line = theirs[bug.name]
    others = ", ".join(name for name, _, _ in line["said"])
    nothing = "cannot run" if line["error"] else "-"
    return ", ".join(_their_named(bug, theirs)) or (f"other: {others}" if others else nothing)


def _shown(said: Sequence[Said]) -> str:
    return "; ".join(f"`{each.check}`: {each.status}{_place(each.rows)}" for each in said)


def _place(rows: Sequence[str]) -> str:
    names = [f"`{row}`" for row in rows if row]
    return f" at {', '.join(names[:2])}{f' and {len(names) - 2} more' if len(names) > 2 else ''}" if names else ""


if __name__ == "__main__":
    main()
