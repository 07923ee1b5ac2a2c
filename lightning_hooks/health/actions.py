"""Actions: what happens when a finding is new. Which actions belong to which finding is data; this file knows no run."""

from __future__ import annotations

import re
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

    Example:
        >>> Action("notify", "https://hooks.example.org/services/T0/B1")
        Action(kind='notify', argument='https://hooks.example.org/…')
    """

    kind: str
    argument: Any = None

    def __repr__(self) -> str:
        argument = without_addresses({self.kind: self.argument})[self.kind]
        return f"{type(self).__name__}(kind={self.kind!r}, argument={argument!r})"


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
            raise RuleError(
                f"actions must map severities or rules to actions, as {{'critical': 'stop'}}, got {_shown(actions)}"
            )
        names = [severity.value for severity in Severity] + [*rules]
        for key in actions:
            if not isinstance(key, str) or (rules and key not in names):
                raise RuleError(f"actions: {shown(key)} is neither a severity nor a rule{did_you_mean(key, names)}")
        return cls(default | {key: _read_list(value, f"actions[{key!r}]") for key, value in actions.items()})

    def of(self, finding: Finding) -> tuple[Action, ...]:
        """The actions for a finding."""
        return self.by_key.get(finding.rule, self.by_key[finding.severity.value])


def without_addresses(actions: Any) -> Any:
    """Actions as a user writes them, in which each URL of a webhook ends after its host.

    Example:
        >>> without_addresses({"critical": ["stop", {"notify": "https://hooks.example.org/services/T0/B1"}]})
        {'critical': ['stop', {'notify': 'https://hooks.example.org/…'}]}
    """
    if isinstance(actions, Mapping):
        return {key: _host_of(value) if key == "notify" else without_addresses(value) for key, value in actions.items()}
    if isinstance(actions, (list, tuple)):
        hidden = [*map(without_addresses, actions)]
        return tuple(hidden) if isinstance(actions, tuple) else hidden
    return actions


def _shown(actions: Any) -> str:
    return shown(without_addresses(actions))


def _host_of(address: Any) -> Any:
    """An address up to its host, with `…` for the rest; an address may lack `https://` by mistake."""
    parts = re.fullmatch(r"([\w+.-]+://)?([^/?#]*)(.*)", address, re.DOTALL) if isinstance(address, str) else None
    if parts is None:
        return address
    return f"{parts[1] or ''}{parts[2].rpartition('@')[2]}{'/…' if len(parts[3]) > 1 else parts[3]}"


def _read_list(value: Any, where: str) -> tuple[Action, ...]:
    if isinstance(value, (str, Mapping)) or callable(value):
        return (_read(value, where),)
    if not isinstance(value, Sequence):
        raise RuleError(f"{where} must be an action or a list of actions, got {_shown(value)}")
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
        raise RuleError(f"{where} must name one action, as {{'focus': {_FOCUS}}}, got {_shown(value)}; give several as a list")
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
        raise RuleError(f"{where} must be the URL of a webhook, https://…, got {shown(_host_of(value))}")
    if "@" in urlsplit(value).netloc:
        raise RuleError(f"{where} must be a URL without a user name and a password, got {shown(_host_of(value))}")
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
