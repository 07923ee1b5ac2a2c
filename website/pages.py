"""The pages of `lightning-hooks explain`, collected from the declarations of rules, causes, checks and errors.

`python -m website.pages` writes them into the package. A test compares the file with what is declared.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lightning_hooks import errors
from lightning_hooks.checks.catalogue import checks_by_name
from lightning_hooks.explained.pages import KINDS, PATH, TITLES, Page, Section, as_json
from lightning_hooks.health.cause_rule import CauseRule, Entry
from lightning_hooks.health.cause_words import CONSEQUENCES, MEANINGS
from lightning_hooks.health.causes import CAUSES
from lightning_hooks.health.criterion import Criterion
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rule import Compared, ReferenceRule
from lightning_hooks.health.reference.rules import COMPARED
from lightning_hooks.health.reference.words import FALSE_ALARM, TOLERANCES, WORDS
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import DEFAULT_RULES, rules_by_name
from lightning_hooks.recorder.cause_words import CAUSE_WORDS, CauseWords, cause_name

_KIND_WORDS: Final = {
    "structure": "The rule states a fact of structure: membership, modes, settings or the order of the loop.",
    "numbers": "The rule states a fact of numbers that were measured.",
    "pattern": "The rule states a pattern that also occurs in healthy training. Its findings are information until the loss of "
    "the run shows harm while the pattern holds.",
}
_CONFIDENCE: Final = {
    "certain": "The cause is certain where it is told: facts say so.",
    "likely": "The cause is likely where it is told.",
    "possible": "The cause is possible where it is told, and likely if findings of two rules agree.",
}
_COMMON_FIELDS: Final = {"severity", "patience", "warmup", "every_n_steps", "enabled", "compared", "tolerances", "reference"}


class _Parts:
    """What is known of one name, by kind, until it is a page."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.family = ""
        self.paragraphs: dict[str, list[str]] = {title: [] for title in TITLES}
        self.points: dict[str, list[str]] = {title: [] for title in TITLES}

    def add(self, kind: str, parts: Iterable[tuple[str, Sequence[str], Sequence[str]]]) -> None:
        if kind not in self.kinds:
            self.kinds.append(kind)
        for title, paragraphs, points in parts:
            self.paragraphs[title] += [each for each in paragraphs if each and each not in self.paragraphs[title]]
            self.points[title] += [each for each in points if each and each not in self.points[title]]

    def page(self, name: str) -> Page:
        sections = tuple(Section(title, tuple(self.paragraphs[title]), tuple(self.points[title])) for title in TITLES)
        summary = _first_sentence(sections[0].paragraphs[0])
        return Page(name, tuple(sorted(self.kinds, key=KINDS.index)), self.family, summary, sections)


def collected() -> dict[str, Page]:
    """All pages by name: rules, then causes, checks, comparisons and errors."""
    found: dict[str, _Parts] = {}
    for rule in DEFAULT_RULES:
        parts = found.setdefault(rule.name, _Parts())
        parts.family = rule.family
        parts.add("rule", _of_rule(rule))
    for cause in CAUSES:
        found.setdefault(cause.name, _Parts()).add("cause", _of_cause(cause, is_alone=cause.name not in rules_by_name()))
    for verdict, words in CAUSE_WORDS.items():
        found.setdefault(cause_name(verdict), _Parts()).add("cause", _of_record(words))
    for check in checks_by_name().values():
        has_rule = check.name in rules_by_name()
        found.setdefault(check.name, _Parts()).add("check", _of_check(check, has_rule=has_rule))
    for compared in COMPARED:
        found.setdefault(compared.name, _Parts()).add("comparison", _of_comparison(compared))
    for kind in _error_types():
        found.setdefault(kind.__name__, _Parts()).add("error", _of_error(kind))
    return {name: parts.page(name) for name, parts in found.items()}


def _of_rule(rule: HealthRule) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    paragraphs, described = _docstring(type(rule))
    yield TITLES[0], paragraphs, ()
    yield TITLES[1], (rule.consequence,), ()
    yield TITLES[2], (_KIND_WORDS[rule.kind], *_when(rule), *_reads(rule), _source(rule.source)), _thresholds(rule, described)
    yield TITLES[3], (), rule.next_steps
    yield TITLES[4], (rule.false_alarm,), ()
    field = next((each for each in rule.option_names if each not in _COMMON_FIELDS), "patience")
    yield (
        TITLES[5],
        (),
        (
            f'Accept the finding at some rows with `HealthMonitor(accept=["{rule.name}/encoder.*"])`, or everywhere with '
            f'`accept=["{rule.name}"]`.',
            f'Change a field with `HealthMonitor(rules={{"{rule.name}": {{"{field}": {getattr(rule, field)!r}}}}})`.',
            f'Switch the rule off with `HealthMonitor(rules={{"{rule.name}": False}})`.',
        ),
    )


def _when(rule: HealthRule) -> Iterator[str]:
    looks = "at every step" if rule.every_n_steps == 1 else f"every {rule.every_n_steps} steps"
    lasts = "one step is enough" if rule.patience == 1 else f"{rule.patience} measured steps in a row are needed"
    yield (
        f"A finding has the severity {rule.severity} (`severity`). The rule looks {looks} (`every_n_steps`), and {lasts} "
        "(`patience`)."
    )
    if rule.warmup:
        yield f"Nothing counts before step {rule.warmup} (`warmup`)."


def _reads(rule: HealthRule) -> Iterator[str]:
    if rule.looks_for:
        yield "The rule is told what the package sees of the code around the model. It reads no number of a device in a hook."
    statistics: dict[str, list[str]] = {}
    for tensor, name in rule.needs:
        statistics.setdefault(tensor, []).append(f"`{name}`")
    if statistics:
        read = [f"{_joined(names)} of `{tensor}`" if tensor else _joined(names) for tensor, names in statistics.items()]
        yield f"It reads {'; '.join(read)}."


def _of_check(check: Any, *, has_rule: bool) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    paragraphs, described = _docstring(type(check))
    rule = rules_by_name().get(check.name)
    if has_rule:
        yield TITLES[2], (f"On one batch, `lightning-hooks check` looks for the same fault. {paragraphs[0]}",), ()
    else:
        yield TITLES[0], paragraphs, ()
        yield TITLES[1], (check.consequence,), ()
        yield TITLES[4], (check.false_alarm,), ()
    needs = [{"optimizer": "an optimizer", "loss": "a loss"}[each] for each in check.needs]
    needed = f"Without {_joined(needs)} the check is skipped." if needs else ""
    source = _source(check.source) if rule is None or rule.source != check.source else ""
    hidden = f"One batch does not show {check.not_shown}." if check.not_shown else ""
    enabled = (
        "" if check.enabled else f'The check is off by default; `check(..., checks={{"{check.name}": True}})` turns it on.'
    )
    fields = _thresholds(check, described)
    if rule is not None:
        known = _thresholds(rule, _docstring(type(rule))[1])
        fields = [f"On one batch: {each}" for each in fields if each not in known]
    yield TITLES[2], (needed, source, hidden, enabled), fields
    if not has_rule:
        yield TITLES[2], ("It looks at one batch, and everything is put back afterwards.",), ()
    yield TITLES[3], (), check.next_steps
    yield (
        TITLES[5],
        (),
        (
            f'Accept the result of the check with `lightning-hooks check --config FILE --accept "{check.name}/encoder.*"`, or '
            f'with `check(..., accept=["{check.name}"])`.',
            f'Switch the check off with `check(..., checks={{"{check.name}": False}})`.',
        ),
    )


def _of_cause(cause: CauseRule, *, is_alone: bool) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    message = _without_places(cause.message)
    if cause.name in MEANINGS:
        yield TITLES[0], (MEANINGS[cause.name], "A message says which of these sentences holds."), (message,)
    else:
        yield TITLES[0], (message if is_alone else f"The cause of the same name says: {message}",), ()
    yield TITLES[1], (CONSEQUENCES[cause.name],) if is_alone else (), ()
    yield (
        (TITLES[2], (), (_basis(cause),))
        if is_alone
        else (TITLES[2], (f"The name is that of a cause too. {_basis(cause)}",), ())
    )
    yield TITLES[3], (), cause.next_steps
    yield TITLES[4], () if cause.alternatives else (_of_its_findings(cause),), cause.alternatives
    names = sorted({entry.rule for entry in (*cause.required_entries, *cause.any_of_entries)})
    yield (
        TITLES[5],
        (f"A cause is told only with its findings, so accept these: {_joined([f'`{each}`' for each in names])}.",),
        (),
    )


def _of_record(words: CauseWords) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """The cause that a flight record names."""
    yield TITLES[0], (words.meaning,), ()
    yield TITLES[1], (words.consequence,), ()
    yield (
        TITLES[2],
        (
            "A flight record says so, which is written in the step in which a number stopped being finite. The cause is "
            "certain if the step was run again and its operation is known, else likely. It rests on a finding of `NonFinite`.",
        ),
        (),
    )
    yield TITLES[3], (), (*words.next_steps, "Read `record.md` in the folder `flight_record` of the run.")
    yield TITLES[4], ("The number itself was measured. Only where it came from can be wrong, if the cause is likely.",), ()
    yield TITLES[5], ("A cause is told only with its findings, so accept this one: `NonFinite`.",), ()


def _basis(cause: CauseRule) -> str:
    """Which findings a cause rests on, in a sentence or two."""
    required = _joined([*map(_shown_entry, cause.required_entries)]) if cause.required else ""
    chosen = _joined([*map(_shown_entry, cause.any_of_entries)], "or") if cause.any_of else ""
    noun = "findings" if len(cause.required) > 1 else "a finding"
    both = f"{required} and one of {chosen}" if required and chosen else required or chosen
    text = f"It rests on {noun} of {both}."
    extra = " The numbers of the run must fit as well." if cause.history or cause.condition else ""
    return f"{text}{extra} {_CONFIDENCE[cause.confidence]}"


def _shown_entry(entry: Entry) -> str:
    tensor = f" at `{entry.tensor}`" if entry.tensor else ""
    side = {">": " above its limit", "<": " below its limit", None: ""}[entry.side]
    return f"`{entry.rule}`{tensor}{side}"


def _of_its_findings(cause: CauseRule) -> str:
    names = dict.fromkeys(entry.rule for entry in (*cause.required_entries, *cause.any_of_entries))
    return f"The cause is as right as its findings: see {_joined([f'`{each}`' for each in list(names)[:3]])}."


def _of_comparison(compared: Compared) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    words, rule = WORDS[compared.name], ReferenceRule.of(compared, Reference())
    yield TITLES[0], (words.meaning,), ()
    yield TITLES[1], (words.consequence,), ()
    yield (
        TITLES[2],
        (
            "The run is compared with the good runs of `HealthMonitor(reference=...)` or `lightning-hooks compare GOOD RUN`, "
            "up to the last step of these.",
            *_when(rule),
            _source(compared.source),
        ),
        [f"`{name}` = {value!r}: {TOLERANCES[name]}" for name, value in compared.tolerances.items()],
    )
    yield TITLES[3], (), compared.next_steps
    yield TITLES[4], (FALSE_ALARM,), ()
    yield (
        TITLES[5],
        (),
        (
            f'Accept the finding with `HealthMonitor(reference=..., accept=["{compared.name}"])` or '
            f"`lightning-hooks compare GOOD RUN --accept {compared.name}`.",
            f'Switch the comparison off with `HealthMonitor(reference=..., rules={{"{compared.name}": False}})`.',
        ),
    )


def _error_types() -> list[type[errors.HooksError]]:
    kinds = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.HooksError)]
    return kinds


def _of_error(kind: type[errors.HooksError]) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    values: Mapping[str, Any] = vars(kind)
    yield TITLES[0], _docstring(kind)[0], ()
    yield TITLES[1], (values["consequence"],), ()
    bases = [f"`{base.__name__}`" for base in kind.__mro__[1:] if base is errors.HooksError or base.__module__ != "builtins"]
    builtin = next(base.__name__ for base in kind.__mro__[1:] if base.__module__ == "builtins")
    yield TITLES[2], (f"It is a kind of {_joined([*bases, f'`{builtin}`'])}, and `except` of any of these catches it.",), ()
    yield TITLES[3], (), values["next_steps"]
    yield TITLES[4], (values["false_alarm"],), ()
    yield TITLES[5], (f"An error cannot be accepted. Catch it with `except lightning_hooks.errors.{kind.__name__}`.",), ()


def _docstring(described: type) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of a docstring in front of its sections, and the description of each argument."""
    text, _, rest = inspect.cleandoc(described.__doc__ or "").partition("\nArgs:\n")
    arguments: dict[str, str] = {}
    for match in re.finditer(r"^ {4}(\w+): ((?:.|\n {8})+)", rest.partition("\n\n")[0], re.MULTILINE):
        arguments[match[1]] = " ".join(match[2].split())
    body = re.split(r"\n(?:Attributes|Example|Raises):\n", text)[0]
    return [" ".join(each.split()) for each in body.split("\n\n") if each.strip()], arguments


def _thresholds(criterion: Criterion, described: Mapping[str, str]) -> list[str]:
    own = [name for name in criterion.option_names if name not in _COMMON_FIELDS]
    return [f"`{name}` = {getattr(criterion, name)!r}: {described[name]}" for name in own]


def _source(text: str) -> str:
    if text == "a definition: no threshold":
        return "There is no threshold: the condition is a definition."
    return f"Source of the thresholds: {text}." if text else ""


def _without_places(message: str) -> str:
    """The message of a cause without the places and steps of one run.

    Example:
        >>> _without_places("The ranks differ: {where} differs between them since step {step}.")
        'The ranks differ: a part of the model differs between them.'
    """
    text = message.replace(": then {where}, since step {step}", "").replace("the module of {where}", "a module")
    text = re.sub(r", first seen in \{where\}", "", text)
    text = re.sub(r": \{where\}(?: first)?(?:, (?:since|at|by)? ?(?:step )?\{step\})?(?: first)?\.$", ".", text)
    text = re.sub(r",? (?:since|at|by) step \{step\}(?: first)?", "", text)
    text = text.replace("{where}", "a part of the model")
    return text[:1].upper() + text[1:]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", text)[0]


def _joined(names: Sequence[str], last: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


if __name__ == "__main__":
    PATH.write_text(as_json(collected()), encoding="utf-8")
    print(f"wrote {PATH}")
