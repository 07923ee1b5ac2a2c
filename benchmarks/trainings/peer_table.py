"""What other packages say of the same trainings, beside what this one says, from the lines of a folder of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import table
from benchmarks.trainings.mutators import MUTATORS
from benchmarks.trainings.verdicts import alarms, rung_of
from benchmarks.trainings.wilson import percent
from galleries.health import peer_alarms

Line = Mapping[str, Any]


def section(peers: Mapping[str, Line], recorded: Mapping[str, Line], judged: Mapping[str, Line]) -> str:
    """The section; empty if no other package has run.

    Args:
        peers: the lines of other packages.
        recorded: those of all recorded jobs.
        judged: the judgements of these.
    """
    if not peers:
        return ""
    keys = [key for key in dict.fromkeys(line["job"] for line in peers.values()) if "findings" in judged.get(key, {})]
    healthy, faulty = ([key for key in keys if bool(recorded[key]["fault"]) is is_faulty] for is_faulty in (False, True))
    rungs = {key: rung_of(recorded[key], judged[key], recorded) for key in faulty}
    ours = [
        "lightning-hooks",
        percent(sum(bool(alarms(judged[key])) for key in healthy), len(healthy)),
        percent(sum(rungs[key].is_told for key in faulty), len(faulty)),
        percent(sum(rungs[key].is_named for key in faulty), len(faulty)),
        0,
    ]
    rows = [ours]
    for name in dict.fromkeys(line["peer"] for line in peers.values()):
        mine = {line["job"]: line for line in peers.values() if line["peer"] == name}
        rows.append(_row(mine, [key for key in healthy if key in mine], [key for key in faulty if key in mine], recorded))
    heads = ["package", "healthy trainings with an alarm", "harmful rungs with any alarm", "with one that fits", "errors"]
    return "\n\n".join(
        [
            "## Beside other packages",
            f"On {len(healthy)} of the healthy trainings and {len(faulty)} harmful rungs of visible faults. An alarm is a "
            "statement that the package itself calls a warning or worse; hints on speed and memory are not counted. It *fits* "
            "if its kind is mapped, in `galleries/health/peer_alarms.py`, to a rule or a cause that names the fault.",
            table(heads, rows),
        ]
    )


def _row(mine: Mapping[str, Line], healthy: Sequence[str], faulty: Sequence[str], recorded: Mapping[str, Line]) -> list[Any]:
    line = next(iter(mine.values()))
    told = [key for key in faulty if peer_alarms.alarms(mine[key])]
    return [
        f"{line['peer']} {line.get('version', '')}".strip(),
        percent(sum(bool(peer_alarms.alarms(mine[key])) for key in healthy), len(healthy)),
        percent(len(told), len(faulty)),
        percent(sum(_fits(mine[key], recorded[key]) for key in told), len(faulty)),
        sum(bool(each.get("error") or each.get("failures")) for each in mine.values()),
    ]


def _fits(line: Line, job: Line) -> bool:
    """Whether an alarm that was still given at the onset is of a kind that names the fault."""
    answer = MUTATORS[job["fault"]].answer
    kinds = [peer_alarms.KINDS.get(each.kind) for each in peer_alarms.alarms(line) if each.last >= job["onset"]]
    return any(fit is not None and (fit.rules & {*answer.rules} or fit.causes & {*answer.causes}) for fit in kinds)
