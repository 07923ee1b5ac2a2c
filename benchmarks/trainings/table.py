"""The published page: what is said of healthy trainings and of faults, from the lines of a folder of results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.markdown import table
from benchmarks.trainings.fitting import REPEATS
from benchmarks.trainings.mutators import MUTATORS, RUNGS
from benchmarks.trainings.peer_table import section
from benchmarks.trainings.planning import is_healthy
from benchmarks.trainings.spec import REPORTING
from benchmarks.trainings.verdicts import FACTS, Rung, alarms, calls_healthy, is_too_long, rung_of
from benchmarks.trainings.wilson import per_thousand, percent

PROTOCOL: Final = Path(__file__).parent / "PROTOCOL.md"
Lines = Mapping[str, Mapping[str, Any]]


def page(recorded: Lines, judged: Lines, peers: Lines | None = None, protocol: str = "PROTOCOL.md") -> str:
    """The page of a folder.

    Args:
        recorded: the lines of recorded jobs.
        judged: the judgements, by the same keys.
        peers: the lines of other packages.
        protocol: the way from the page to PROTOCOL.md.
    """
    drawn = [line for line in recorded.values() if not line["fault"] and not line["repeat"]]
    healthy = [line for line in drawn if is_healthy(line) and "error" not in judged.get(line["key"], {"error": ""})]
    rungs = [
        rung_of(line, judged[line["key"]], recorded)
        for line in recorded.values()
        if line["fault"] and "causes" in judged.get(line["key"], {}) and not is_too_long(line)
    ]
    parts = [
        "# Verdicts on drawn trainings",
        _origin(drawn, judged, protocol),
        "## Healthy trainings",
        _alarm_summary(healthy, judged),
        _alarm_table(healthy, judged),
        "## Faults",
        _fault_summary(rungs),
        _fault_table(rungs),
        _fault_list({each.fault for each in rungs}),
        "### Harmful rungs of which nothing is said",
        _silent_table(rungs),
        section(peers or {}, recorded, judged),
        "## What was drawn and discarded",
        _drawn_table(drawn, "family", lambda line: [line.get("family", "none")]),
        _drawn_table(drawn, "trick", lambda line: line.get("tricks") or ["none"]),
        _errors(recorded, judged),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _origin(drawn: Sequence[Mapping[str, Any]], judged: Lines, protocol: str) -> str:
    seeds = [line["seed"] for line in drawn]
    digests = next(((each["rules"], each["code"]) for each in judged.values() if "rules" in each), ("none", "none"))
    which = "report" if seeds and seeds[0] in REPORTING else "may set thresholds"
    extent = f"{min(seeds)} to {max(seeds)}" if seeds else "none"
    return (
        f"Seeds {extent}, which {which}. Rules `{digests[0]}`, code `{digests[1]}`. "
        f"[The protocol]({protocol}) defines every word and number of this page, which "
        "`python -m benchmarks.trainings table FOLDER --into PAGE` writes."
    )


def _alarm_summary(healthy: Sequence[Mapping[str, Any]], judged: Lines) -> str:
    said = [alarms(judged[line["key"]]) for line in healthy]
    patterns = sum(any(each.rule not in FACTS for each in told) for told in said)
    count = sum(map(bool, said))
    return (
        f"Of {len(healthy)} healthy trainings, {count} get a finding above `info`: **{per_thousand(count, len(healthy))} of "
        f"1,000**, with Wilson's interval of 95 %. Without those of which only facts were told: "
        f"{per_thousand(patterns, len(healthy))}. The last line of "
        f"{percent(sum(calls_healthy(judged[line['key']]) for line in healthy), len(healthy))} begins with *Healthy*."
    )


def _alarm_table(healthy: Sequence[Mapping[str, Any]], judged: Lines) -> str:
    by_rule: dict[str, list[str]] = {}
    for line in healthy:
        for rule in dict.fromkeys(each.rule for each in alarms(judged[line["key"]])):
            by_rule.setdefault(rule, []).append(line["key"])
    order = sorted(by_rule, key=lambda rule: (rule in FACTS, -len(by_rule[rule]), rule))
    rows = [
        [
            f"`{rule}`",
            "fact" if rule in FACTS else "pattern",
            per_thousand(len(by_rule[rule]), len(healthy)),
            _few(by_rule[rule]),
        ]
        for rule in order
    ]
    return table(["rule", "kind", "of 1,000 healthy trainings", "seeds"], rows) if rows else ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _fault_summary(rungs: Sequence[Rung]) -> str:
    if not rungs:
        return "No faults were recorded."
    harmful = [each for each in rungs if each.is_harmful]
    visible = [each for each in harmful if MUTATORS[each.fault].is_visible]
    caused = [each for each in visible if each.has_cause is not None]
    noted, healthy = sum(each.is_noted for each in visible), sum(each.is_healthy for each in harmful)
    return "\n".join(
        [
            f"- {len(rungs)} rungs of {len({each.fault for each in rungs})} faults; {len(harmful)} are harmful.",
            f"- Of harmful rungs of visible faults, **{percent(sum(each.is_named for each in visible), len(visible))}** are "
            f"named, and **{percent(sum(bool(each.has_cause) for each in caused), len(caused))}** get a right cause.",
            f"- Of all harmful rungs, {percent(sum(each.is_named for each in harmful), len(harmful))} are named, "
            f"{percent(sum(bool(each.has_cause) for each in harmful), len(harmful))} get a right cause, and something is "
            f"said of {percent(sum(each.is_told for each in harmful), len(harmful))}.",
            f"- A rule that names the fault has at least a note in {percent(noted, len(visible))} of harmful rungs of visible "
            f"faults. **{percent(healthy, len(harmful))}** of all harmful rungs end with the line that begins with *Healthy*, "
            "because their loss shows that they have learned.",
        ]
    )


def _fault_table(rungs: Sequence[Rung]) -> str:
    rows = []
    for name, mutator in MUTATORS.items():
        mine = [each for each in rungs if each.fault == name]
        if not mine:
            continue
        harmful = [each for each in mine if each.is_harmful]
        delays = [each.delay for each in harmful if each.delay is not None]
        leads = [each.lead for each in harmful if each.lead is not None]
        placed = [each.in_place for each in harmful if each.is_named and each.in_place is not None]
        caused = [each.has_cause for each in harmful if each.has_cause is not None]
        changed = [each.has_changed for each in harmful if each.has_changed is not None]
        ladder = [_counts([each for each in mine if each.rung == rung]) for rung in range(RUNGS)]
        rows.append(
            [
                f"`{name}`",
                percent(sum(map(bool, changed)), len(changed)) if mutator.is_visible else "not yet",
                *ladder,
                percent(sum(each.is_told for each in harmful), len(harmful)),
                percent(sum(each.is_named for each in harmful), len(harmful)),
                percent(sum(map(bool, placed)), len(placed)),
                percent(sum(map(bool, caused)), len(caused)),
                f"{median(delays):.0f}" if delays else "–",
                f"{median(leads):.0f}" if leads else "–",
            ]
        )
    heads = ["fault", "visible", *(f"rung {rung + 1}" for rung in range(RUNGS))]
    heads += ["found", "named", "right layer", "right cause", "steps until named", "steps before divergence"]
    words = (
        "*Visible*: in how many harmful rungs the row or fact has changed that must. In the columns of rungs stand the numbers "
        "of those that are named / found / harmful / drawn. *Found* means that anything was said."
    )
    return f"{words}\n\n{table(heads, rows)}" if rows else ""


def _fault_list(names: Collection[str]) -> str:
    rows = []
    for name, mutator in MUTATORS.items():
        shows, rules, causes = mutator.answer
        must = " of ".join(reversed(shows)) or "nothing yet"
        severities = ", ".join(f"{each:g}" for each in mutator.rungs)
        if name in names:
            rows.append([f"`{name}`", mutator.doc, severities, must, ", ".join(rules) or "–", ", ".join(causes) or "–"])
    heads = ["fault", "what is wrong", "severities", "must change", "named by", "right causes"]
    return f"### What each fault is\n\n{table(heads, rows)}" if rows else ""


def _counts(step: Sequence[Rung]) -> str:
    """How many of the trainings of one rung are named, found, harmful and drawn."""
    harmful = [each for each in step if each.is_harmful]
    counts = (sum(each.is_named for each in harmful), sum(each.is_told for each in harmful), len(harmful), len(step))
    return "/".join(map(str, counts))


def _silent_table(rungs: Iterable[Rung]) -> str:
    silent = Counter((each.fault, each.rung + 1) for each in rungs if each.is_harmful and not each.is_told)
    rows = [[f"`{fault}`", rung, count] for (fault, rung), count in sorted(silent.items())]
    return table(["fault", "rung", "trainings"], rows) if rows else "There are none."


def _drawn_table(drawn: Sequence[Mapping[str, Any]], what: str, names: Any) -> str:
    reasons = sorted({line["discarded"] for line in drawn if line.get("discarded")})
    counts: dict[str, Counter[str]] = {}
    for line in drawn:
        for name in names(line):
            outcome = "error" if line.get("error") else line.get("discarded") or "healthy"
            counts.setdefault(name, Counter())[outcome] += 1
    columns = ["healthy", *reasons, "error"]
    rows = [[name, sum(each.values()), *(each[column] for column in columns)] for name, each in sorted(counts.items())]
    return table([what, "drawn", *columns], rows) if rows else ""


def _errors(recorded: Lines, judged: Lines) -> str:
    failed = [f"- `{line['key']}`: {line['error']}" for line in recorded.values() if line.get("error") and not line["fault"]]
    failed += [f"- `{line['key']}`, judging: {line['error']}" for line in judged.values() if "error" in line]
    faulty = [line for line in recorded.values() if line["fault"]]
    late = sum(map(is_too_long, faulty))
    lacking = sum("error" in line and "rows" not in line and not is_too_long(line) for line in faulty)
    failed += [f"- {lacking} faulty trainings could not be recorded."] if lacking else []
    failed += [f"- {late} faulty trainings took too long, and count neither as harmful nor as harmless."] if late else []
    return "\n".join(["## Errors", "", *failed]) if failed else f"Each spread is that of {REPEATS} repetitions. No job failed."
