"""The exceptions of the package, and the one way it suggests a better name.

HooksError
├── RuleError (ValueError)              a rule, option or pattern that cannot be meant
│   └── NoMatchError                    a pattern that matches nothing in the model
├── UnsupportedError (NotImplementedError)  a set-up that cannot be served correctly; says why and the way out
├── TransformError (RuntimeError)       a transform returned, or did, something it must not
│   └── InPlaceError                    a gradient was overwritten inside a tensor hook
├── HookError (RuntimeError)            a user's own hook returned, or did, something it must not
├── StoppedError (RuntimeError)         another rank has stopped watching, so this one does too
└── HooksLeftError (AssertionError)     raised by `assert_no_hooks`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HooksError(Exception):
    """Base of every exception that lightning_hooks raises on purpose."""


class RuleError(HooksError, ValueError):
    """A rule, an option or a pattern that cannot be meant; the message names it and what would be right."""


class NoMatchError(RuleError):
    """A pattern that matches nothing; the message holds the nearest names and the way out."""


class UnsupportedError(HooksError, NotImplementedError):
    """A set-up in which the result could not be right, refused with the reason and the alternative."""


class TransformError(HooksError, RuntimeError):
    """A transform returned something that cannot take the gradient's place."""


class InPlaceError(TransformError):
    """A gradient was changed in place inside a tensor hook, which corrupts sibling branches of the graph."""


class HookError(HooksError, RuntimeError):
    """A user's own hook returned, or did, something that would corrupt the run; the message names the hook and the place."""


class StoppedError(HooksError, RuntimeError):
    """Another rank has stopped watching, so this one does too; a monitor with `on_error="warn"` turns it into its warning."""


class HooksLeftError(HooksError, AssertionError):
    """A hook of this package is still on a model."""


def nearest(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """The `n` names of `known` that are spelled most like `name`, best first.

    Args:
        name: what was written.
        known: what there is.
        n: how many to return at most.

    Example:
        >>> nearest("menu", ["mean", "std", "max"], n=1)
        ['mean']
    """
    return difflib.get_close_matches(name, list(known), n=n, cutoff=0.0)


def did_you_mean(name: str, known: Iterable[str], n: int = 3) -> str:
    """A half-sentence that offers the nearest names, or nothing where there are none.

    Example:
        >>> did_you_mean("menu", ["mean"])
        " (did you mean 'mean'?)"
    """
    close = nearest(name, known, n)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
