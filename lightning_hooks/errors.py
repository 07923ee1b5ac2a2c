"""The exceptions of the package, and what messages say of names and values: suggestions, lists, names for a terminal.

HooksError
├── RuleError (ValueError)              an invalid rule, option or pattern
│   └── NoMatchError                    a pattern that matches nothing in the model
├── UnsupportedError (NotImplementedError)  a set-up without a correct result; says why and what to use instead
├── TransformError (RuntimeError)       a transform returned or did something invalid
│   └── InPlaceError                    a gradient was overwritten inside a tensor hook
├── HookError (RuntimeError)            a custom hook returned or did something invalid
├── StoppedError (RuntimeError)         another rank has stopped watching, so this one does too
└── HooksLeftError (AssertionError)     raised by `assert_no_hooks`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
    """Another rank stopped watching, so this one does too; with `on_error="warn"` it becomes the monitor's warning."""


class HooksLeftError(HooksError, AssertionError):
    """A hook of this package is still on a model."""


def nearest(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """The `n` names of `known` that are spelled most like `name`, best first.

    Args:
        name: the misspelled name.
        known: the valid names.
        n: the maximum number of names to return.

    Example:
        >>> nearest("menu", ["mean", "std", "max"], n=1)
        ['mean']
    """
    return difflib.get_close_matches(name, list(known), n=n, cutoff=0.0)


def did_you_mean(name: object, known: Iterable[str], n: int = 3) -> str:
    """A suggestion of the nearest names for the end of a message; empty if there are none, or if `name` is no string.

    Example:
        >>> did_you_mean("menu", ["mean"])
        " (did you mean 'mean'?)"
    """
    close = nearest(name, known, n) if isinstance(name, str) else []
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def shown(value: object, most: int = 200) -> str:
    """The `repr` of a value for a message: its beginning if it is long, its class if it has none.

    Example:
        >>> shown("a" * 99, most=5)
        "'aaaa…"
    """
    try:
        text = repr(value)
    except Exception:  # an integer of more than 4300 digits, or a class of the user's
        return f"{'an integer of too many digits' if isinstance(value, int) else f'an object of {type(value).__name__}'}"
    return text if len(text) <= most else f"{text[:most]}…"


def listed(names: Iterable[str], most: int = 10) -> str:
    """Names for a message: the first of them, and how many more there are.

    Example:
        >>> listed(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{', '.join(every[:most])}{more}"


def printable(text: str, keep: str = "") -> str:
    r"""A text for a terminal: what is no printable character is written as in Python code.

    A name in a file may hold an escape sequence, which would move the cursor or change the title of the window.

    Args:
        text: of names that somebody else may have chosen.
        keep: characters that stay, such as line breaks between lines.

    Example:
        >>> printable("layer\x1b[31m.weight")
        'layer\\x1b[31m.weight'
    """
    return "".join(each if each.isprintable() or each in keep else ascii(each)[1:-1] for each in text)
