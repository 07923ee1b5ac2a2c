"""The exceptions of the package, and the functions that format names and values for their messages.

HooksError
├── RuleError (ValueError)              an invalid rule, option or pattern
│   └── NoMatchError                    a pattern that matches nothing in the model
├── UnsupportedError (NotImplementedError)  a set-up without a correct result; says why and what to use instead
├── TransformError (RuntimeError)       a transform returned or did something invalid
│   └── InPlaceError                    a gradient was overwritten inside a tensor hook
├── HookError (RuntimeError)            a custom hook returned or did something invalid
├── StoppedError (RuntimeError)         another rank has stopped watching, so this rank stops too
└── HooksLeftError (AssertionError)     raised by `assert_no_hooks`
"""

from __future__ import annotations

import difflib
import itertools
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final


class HooksError(Exception):
    """Base of every exception that lightning_hooks raises deliberately."""


class RuleError(HooksError, ValueError):
    """An invalid rule, option or pattern; the message names it and the valid choices."""


class NoMatchError(RuleError):
    """A pattern matches nothing; the message lists the nearest names."""


class UnsupportedError(HooksError, NotImplementedError):
    """A set-up in which the result could not be correct; the message gives the reason and an alternative."""


class TransformError(HooksError, RuntimeError):
    """A transform returned something that cannot replace the gradient."""


class InPlaceError(TransformError):
    """A gradient was changed in place inside a tensor hook, which corrupts other branches of the graph."""


class HookError(HooksError, RuntimeError):
    """A custom hook returned or did something that would corrupt the run; the message names the hook and the target."""


class StoppedError(HooksError, RuntimeError):
    """Another rank stopped watching, so this rank stops too; with `on_error="warn"` the monitor warns instead."""


class HooksLeftError(HooksError, AssertionError):
    """A hook of this package is still on a model."""


def nearest(name: str, valid_names: Iterable[str], n: int = 3) -> list[str]:
    """The `n` valid names that are spelled most like `name`, best first.

    Args:
        name: the misspelled name.
        valid_names: the names to choose from.
        n: the maximum number of names to return.

    Example:
        >>> nearest("menu", ["mean", "std", "max"], n=1)
        ['mean']
    """
    return difflib.get_close_matches(name, list(valid_names), n=n, cutoff=0.0)


def did_you_mean(name: object, valid_names: Iterable[str], n: int = 3) -> str:
    """A suggestion of the nearest names for the end of a message; empty if `name` is not a string or no name is valid.

    Example:
        >>> did_you_mean("menu", ["mean"])
        " (did you mean 'mean'?)"
    """
    close = nearest(name, valid_names, n) if isinstance(name, str) else []
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def listed(names: Iterable[str], most: int = 10) -> str:
    """The first `most` names for a message, and the number of the remaining names.

    Example:
        >>> listed(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    all_names = list(names)
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return f"{', '.join(all_names[:most])}{more}"


class _Short(reprlib.Repr):
    """A `repr` with limits: it cuts deep nesting, long containers and long strings."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = self.maxdict = 8
        self.maxstring = self.maxother = 200
        self.maxlong = 60

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """As in the base class, which sorts the keys; here the keys keep the order of the mapping."""
        if level <= 0 and x:
            return "{...}"
        items = itertools.islice(x.items(), self.maxdict)
        pieces = [f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}" for key, value in items]
        return f"{{{', '.join([*pieces, *['...'] * (len(x) > self.maxdict)])}}}"

    def repr_int(self, x: int, level: int) -> str:
        """As in the base class, but only the size of a huge integer: Python raises when it converts a huge integer to text."""
        return super().repr_int(x, level) if x.bit_length() < 10_000 else f"<an integer of {x.bit_length()} bits>"


_SHORT: Final = _Short()


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless the number is 1.

    Example:
        >>> counted(1, "layer"), counted(3, "layer")
        ('1 layer', '3 layers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown(value: object) -> str:
    """The `repr` of a value for a message, shortened if it is long, and without secrets in addresses.

    Example:
        >>> shown({"params": "*"}), shown([0] * 1000)
        ("{'params': '*'}", '[0, 0, 0, 0, 0, 0, 0, 0, ...]')
    """
    return without_secrets(shortened(_SHORT.repr(value), 1000))


def shown_path(path: Path) -> str:
    """A path for a message: relative to the current folder if it is in it.

    Example:
        >>> shown_path(Path.cwd() / "runs" / "a"), shown_path(Path("/etc"))
        ('runs/a', '/etc')
    """
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def shortened(text: str, most: int = 4000) -> str:
    """A text of at most `most` characters; of a longer text, the beginning and the end, joined by `...`.

    Example:
        >>> shortened("x" * 1000, 20)
        'xxxxxxxxxxxxx...xxxx'
    """
    return text if len(text) <= most else f"{text[: most - most // 5 - 3]}...{text[-(most // 5) :]}"


_ADDRESS: Final = re.compile(r"(https?://)([^\s'\"/?#]*)([^\s'\"]*)", re.IGNORECASE)


def without_secrets(text: str) -> str:
    """A text in which every web address ends after its host: who knows the whole address of a webhook may post to it.

    Example:
        >>> without_secrets("notify: 'https://me:key@hooks.example.org/services/T0/B1?token=2'")
        "notify: 'https://hooks.example.org/…'"
    """
    return _ADDRESS.sub(lambda found: f"{found[1]}{found[2].rpartition('@')[2]}{'/…' if len(found[3]) > 1 else found[3]}", text)


def printable(text: str, keep: str = "") -> str:
    r"""A text for a terminal, in which every character that is not printable is written as a Python escape sequence.

    A name in a file may hold an escape sequence, which would move the cursor or change the title of the window.

    Args:
        text: may contain names that somebody else has chosen.
        keep: characters to leave unchanged, such as line breaks.

    Example:
        >>> printable("layer\x1b[31m.weight")
        'layer\\x1b[31m.weight'
    """
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)
