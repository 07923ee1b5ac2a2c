"""Actions: what happens when a finding is new. Which actions belong to which finding is data; this file knows no run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.rule import Severity
from lightning_hooks.rules.calling import check_takes
from lightning_hooks.rules.importing import import_object

PLAIN: Final = ("log", "warn", "stop", "checkpoint", "raise")
WITH_ARGUMENT: Final = ("call", "notify", "focus")
_FOCUS: Final = 50  # steps


@dataclass(frozen=True)
class Action:
    """One thing to do.

    Args:
        kind: `log` (the finding is in the files of the run, as every finding), `warn` (also in the terminal), `stop` (stop the
            fit), `checkpoint` (save one, named after the finding), `raise` (end the fit with an error), `call`, `notify` (post
            to a webhook), or `focus` (measure at every step for a while).
        argument: the function of `call`, the URL of `notify`, the number of steps of `focus`; else None.
    """

    kind: str
    argument: Any = None


@dataclass(frozen=True)
class Actions:
    """The actions for each rule or severity; those of a rule take precedence.

    Args:
        by_key: the name of a rule, or a severity, to the actions.

    Example:
        >>> Actions.read({"critical": ["warn", "stop"], "LossSpike": "log"}).by_key["critical"]
        (Action(kind='warn', argument=None), Action(kind='stop', argument=None))
    """

    by_key: Mapping[str, tuple[Action, ...]]

    @classmethod
    def read(cls, actions: Any, rules: Sequence[str] = ()) -> Actions:
        """The actions that a user wrote: a mapping from severities and names of rules to an action or a list of actions.

        Args:
            actions: the mapping; None for the default, which warns.
            rules: the names of the rules; with none, every name is allowed.

        Raises:
            RuleError: an unknown rule, severity or action.
        """
        default = {"info": (Action("log"),), "warning": (Action("warn"),), "critical": (Action("warn"),)}
        if actions is None:
            return cls(default)
        if not isinstance(actions, Mapping):
            raise RuleError(f"actions must map severities or rules to actions, as {{'critical': 'stop'}}, got {shown(actions)}")
        names = [severity.value for severity in Severity] + [*rules]
        for key in actions:
            if not isinstance(key, str) or (rules and key not in names):
                raise RuleError(f"actions: {shown(key)} is neither a severity nor a rule{did_you_mean(key, names)}")
        return cls(default | {key: _read_list(value, f"actions[{key!r}]") for key, value in actions.items()})

    def of(self, finding: Finding) -> tuple[Action, ...]:
        """The actions for a finding."""
        return self.by_key.get(finding.rule, self.by_key[finding.severity.value])


def _read_list(value: Any, where: str) -> tuple[Action, ...]:
    if isinstance(value, (str, Mapping)) or callable(value):
        return (_read(value, where),)
    if not isinstance(value, Sequence):
        raise RuleError(f"{where} must be an action or a list of actions, got {shown(value)}")
    return tuple(_read(each, f"{where}[{i}]") for i, each in enumerate(value))


def _read(value: Any, where: str) -> Action:
    if callable(value):
        value = {"call": value}
    if value == "focus":
        value = {"focus": _FOCUS}
    if isinstance(value, str) and value in PLAIN:
        return Action(value)
    kind, argument = _named(value, where) if isinstance(value, Mapping) else (value, None)
    if isinstance(kind, str) and kind in WITH_ARGUMENT:
        if not isinstance(value, Mapping):
            raise RuleError(f"{where}: {kind!r} needs an argument: {{{kind!r}: {_EXAMPLES[kind]}}}")
        return Action(kind, _READERS[kind](argument, f"{where}.{kind}"))
    if isinstance(kind, str) and kind in PLAIN:
        if argument in (None, True):
            return Action(kind)
        advice = "omit the action if it is not wanted" if argument is False else f"write {kind!r}"
        raise RuleError(f"{where}.{kind} takes no argument, got {shown(argument)}; {advice}")
    hint = did_you_mean(kind, [*PLAIN, *WITH_ARGUMENT])
    raise RuleError(f"{where}: unknown action {shown(kind)}{hint}; there are {', '.join((*PLAIN, *WITH_ARGUMENT))}")


def _named(value: Mapping[Any, Any], where: str) -> tuple[Any, Any]:
    """The only key of a mapping, and its value."""
    if len(value) != 1:
        raise RuleError(f"{where} must name one action, as {{'focus': {_FOCUS}}}, got {shown(value)}; give several as a list")
    return next(iter(value.items()))


def _read_call(value: Any, where: str) -> Callable[[Finding], object]:
    called = import_object(value, where) if isinstance(value, str) else value
    if not callable(called):
        raise RuleError(f"{where} must be a function or its import path, got {shown(value)}")
    check_takes(called, where, "finding")
    function: Callable[[Finding], object] = called
    return function


def _read_url(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _is_url(value):
        raise RuleError(f"{where} must be the URL of a webhook, https://…, got {shown(value)}")
    return value


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_server = bool(parts.hostname) and parts.port != 0
    # urlsplit() raises if the brackets of an IPv6 address do not pair, `port` if it is not a number from 0 to 65535.
    except ValueError:
        return False
    return parts.scheme in ("https", "http") and has_server and text.isprintable() and " " not in text


def _read_steps(value: Any, where: str) -> int:
    if type(value) is not int or value < 1:
        raise RuleError(f"{where} must be a number of steps, at least 1, got {shown(value)}")
    return value


_READERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {"call": _read_call, "notify": _read_url, "focus": _read_steps}
_EXAMPLES: Final = {"call": "'my_project.on_finding'", "notify": "'https://…'", "focus": _FOCUS}
