"""The section "Beside other packages" of docs/health.md, from the lines of peers.jsonl."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from galleries import markdown
from galleries.health.peer_alarms import WORST, alarms, fitting
from galleries.health.training import Training

Line = dict[str, Any]

ATTACHED = {
    "torchmortem": "`Autopsy(model, optimizer=…)` around the fit and `step(loss=loss.item())` after each step, as in its "
    "README, with its default sampling; it says what it found when the run is over",
    "torch-audit": "an `Auditor` of every step in a callback like that of its `examples/demo_lightning.py`",
    "HealthMonitor alone": "lightning-hooks, `callbacks=[HealthMonitor()]`",
    "HealthMonitor beside StatsMonitor": "lightning-hooks, `callbacks=[StatsMonitor(), HealthMonitor()]`",
}

READING = """\
An *alarm* is a statement that the package itself calls a warning or worse. Hints on speed and memory (TA200 to TA203 and
TA400 of torch-audit) are not counted. An alarm *fits* a fault if its kind is mapped to a rule or a cause that the gallery
expects of the fault, and if it was given at the onset of the fault or later. The map was written from the documentation of
the packages, not from results (`galleries/health/peer_alarms.py`). No package has to name the right layer here. A fault
with a fitting alarm is *found*, any other is *missed*. An *error* is a check of the package that raised, or an exception
that ended the fit.

The faults and their expectations were written for the rules of lightning-hooks. The other packages also look for things
that this gallery does not have, so these numbers say how they do on this gallery and no more."""

OWN = ("HealthMonitor alone", "HealthMonitor beside StatsMonitor")
"""Those whose kinds are health rules, which the tables above have."""


def section(lines: list[Line], healthy: Sequence[Training], faulty: Sequence[Training]) -> str:
    """The whole section; empty if nothing is recorded."""
    if not lines:
        return ""
    newest = {(line["peer"], line["name"]): line for line in lines}
    peers = {
        name: [line for (peer, _), line in newest.items() if peer == name] for name in dict.fromkeys(peer for peer, _ in newest)
    }
    return "\n\n".join(
        [
            "## Beside other packages",
            _introduction(peers, healthy, faulty),
            _totals(peers, healthy, faulty),
            "### What each said of the faults",
            "Alarms that fit the fault; *other* where every alarm was of another kind, `-` where there was none.",
            _faults(peers, faulty),
            "### How often each kind was said",
            "The numbers of trainings in which an alarm of the kind was given, at any step.",
            _kinds({name: lines for name, lines in peers.items() if name not in OWN}, healthy, faulty),
        ]
    )


def _introduction(peers: dict[str, list[Line]], healthy: Sequence[Training], faulty: Sequence[Training]) -> str:
    every = [line for lines in peers.values() for line in lines]
    names = {line["name"] for line in every}
    sound, sick = (sum(training.name in names for training in trainings) for trainings in (healthy, faulty))
    rounds = sorted({len(line["cpu"]) for line in every})
    times = "once" if rounds == [1] else f"{' or '.join(map(str, rounds))} times"
    attached = [f"- **{name}** ({_versions(lines)}): {ATTACHED.get(name, 'attached')}." for name, lines in peers.items()]
    ran = (
        "`make gallery PEERS=1` runs other packages on the same trainings, in an environment of its own, at seed 0: "
        f"{sound} of {len(healthy)} healthy trainings and {sick} of {len(faulty)} with a fault that have one process, "
        f"with torch {every[-1]['torch']} and Lightning {every[-1]['lightning']}."
    )
    cost = (
        "*Cost* is the CPU time of the whole fit divided by that of the bare fit in the same process: the median over the "
        f"trainings, in brackets the quartiles. Each was run {times}, with one thread, on a machine that had other work. The "
        "numbers are approximate. They are high because most models are tiny, with steps of a few milliseconds."
    )
    return "\n\n".join([ran, "\n".join(attached), READING, cost])


def _totals(peers: dict[str, list[Line]], healthy: Sequence[Training], faulty: Sequence[Training]) -> str:
    rows = []
    for name, lines in peers.items():
        of = {line["name"]: line for line in lines}
        sound = [of[training.name] for training in healthy if training.name in of]
        visible = [(of[each.name], each) for each in faulty if each.name in of and not _is_invisible(each)]
        others = [(of[each.name], each) for each in faulty if each.name in of and _is_invisible(each)]
        found = sum(bool(fitting(*each)) for each in visible)
        low, middle, high = _quartiles([line["ratio"] for line in lines])
        rows.append(
            [
                name,
                _of(found, visible),
                str(len(visible) - found),
                _of(sum(bool(alarms(line)) for line, _ in visible), visible),
                _of(sum(bool(fitting(*each)) for each in others), others),
                _of(sum(bool(alarms(line)) for line in sound), sound),
                _of(sum(any(each.severity in WORST for each in alarms(line)) for line in sound), sound),
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
                str(sum(bool(line["error"] or line["failures"]) for line in lines)),
            ]
        )
    heads = ["package", "faults found", "missed", "any alarm on a fault", "found of what layers cannot show"]
    heads += ["healthy trainings with an alarm", "with one above a warning", "cost", "runs with an error"]
    return markdown.table(heads, rows)


def _faults(peers: dict[str, list[Line]], faulty: Sequence[Training]) -> str:
    of = {(name, line["name"]): line for name, lines in peers.items() for line in lines}
    rows = []
    for training in faulty:
        if any((name, training.name) in of for name in peers):
            cells = [_cell(of.get((name, training.name)), training) for name in peers]
            rows.append([training.name, *cells, "no trace in layers" if _is_invisible(training) else ""])
    return markdown.table(["training", *peers, ""], rows)


def _cell(line: Line | None, training: Training) -> str:
    if line is None:
        return "not run"
    kinds = list(dict.fromkeys(each.kind for each in fitting(line, training)))
    return ", ".join(kinds) or ("other" if alarms(line) else "-")


def _kinds(peers: dict[str, list[Line]], healthy: Sequence[Training], faulty: Sequence[Training]) -> str:
    trainings = {each.name: each for each in [*healthy, *faulty]}
    rows = []
    for name, lines in peers.items():
        on: dict[str, Counter[str]] = {"healthy": Counter(), "faulty": Counter(), "fits": Counter()}
        for line in lines:
            training = trainings[line["name"]]
            on["healthy" if training.expects is None else "faulty"].update({each.kind for each in alarms(line)})
            on["fits"].update({each.kind for each in fitting(line, training)})
        for kind in sorted(on["healthy"] | on["faulty"], key=lambda kind: (-on["healthy"][kind], kind)):
            rows.append([name, kind, *(str(on[column][kind]) for column in ("healthy", "faulty", "fits"))])
    return markdown.table(["package", "kind", "healthy trainings", "trainings with a fault", "of these, where it fits"], rows)


def _versions(lines: list[Line]) -> str:
    return ", ".join(sorted({line["version"] for line in lines}))


def _is_invisible(training: Training) -> bool:
    return training.expects is not None and training.expects.kind == "invisible"


def _of(count: int, whole: Sequence[Any]) -> str:
    return f"{count} of {len(whole)}"


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return low, middle, high
