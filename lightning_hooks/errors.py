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
from typing import Any, ClassVar, Final


class HooksError(Exception):
    """Base of every exception that lightning_hooks raises deliberately."""

    consequence: ClassVar[str] = "Going on would give wrong numbers or another training than the one that was asked for."
    next_steps: ClassVar[tuple[str, ...]] = (
        "Catch `HooksError` to catch every error that the package raises on purpose.",
        "Read the message: it names the value and what would be right.",
    )
    false_alarm: ClassVar[str] = (
        "An exception of another class from inside the package is a bug: report it with the traceback and `lightning-hooks "
        "info`."
    )


class RuleError(HooksError, ValueError):
    """An invalid rule, option or pattern; the message names it and the valid choices."""

    consequence: ClassVar[str] = "A misspelled name or a wrong type would watch something else than you meant, or nothing."
    next_steps: ClassVar[tuple[str, ...]] = (
        "Use one of the choices that the message lists.",
        "In YAML, quote values that look like numbers or booleans and are not.",
    )
    false_alarm: ClassVar[str] = (
        "The value is checked before anything is hooked, so that no training is lost. A valid value that is refused is a bug."
    )


class NoMatchError(RuleError):
    """A pattern matches nothing; the message lists the nearest names."""

    consequence: ClassVar[str] = "A rule that matches nothing would silently log nothing for the whole run."
    next_steps: ClassVar[tuple[str, ...]] = (
        "Print the names of the model with `lightning-hooks match package.Module`.",
        "If the rule is for several models, give the monitor `strict=False`, which warns instead.",
    )
    false_alarm: ClassVar[str] = (
        "A module that is created only during the fit does not exist yet when patterns are resolved. Use `strict=False` for it."
    )


class UnsupportedError(HooksError, NotImplementedError):
    """A set-up in which the result could not be correct; the message gives the reason and an alternative."""

    consequence: ClassVar[str] = "The measurement would be wrong, or the training would change, without any sign of it."
    next_steps: ClassVar[tuple[str, ...]] = (
        "Use the alternative that the message names.",
        "Look the set-up up in docs/support.md, which lists what is supported and what is not.",
    )
    false_alarm: ClassVar[str] = (
        "A set-up may have become supported in a newer version of torch. Report it with the output of `lightning-hooks info`."
    )


class TransformError(HooksError, RuntimeError):
    """A transform returned something that cannot replace the gradient."""

    consequence: ClassVar[str] = (
        "A gradient with another shape, dtype or device, or a value that is no number, would break the step or train "
        "something else."
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "Return a tensor of the same shape, dtype and device from the transform.",
        "Look at the argument of the transform that the message names.",
    )
    false_alarm: ClassVar[str] = (
        "The error is about what was returned, not about what was meant: it is raised at the first wrong tensor only."
    )


class InPlaceError(TransformError):
    """A gradient was changed in place inside a tensor hook, which corrupts other branches of the graph."""

    consequence: ClassVar[str] = (
        "Other branches of the graph may hold the same memory, so that they get the changed gradient too."
    )
    next_steps: ClassVar[tuple[str, ...]] = ("Return a new tensor: `gradient.mul(0.5)` in place of `gradient.mul_(0.5)`.",)
    false_alarm: ClassVar[str] = (
        "Memory that only this branch holds would not be harmed, but a hook cannot know that. There is no option that allows "
        "it."
    )


class HookError(HooksError, RuntimeError):
    """A custom hook returned or did something that would corrupt the run; the message names the hook and the target."""

    consequence: ClassVar[str] = "What the hook returned would replace tensors of the model with others that do not fit."
    next_steps: ClassVar[tuple[str, ...]] = (
        "Return None from a hook that only looks.",
        "Return as many tensors as the hook was given, each of the same shape, from a hook that changes them.",
    )
    false_alarm: ClassVar[str] = (
        "A hook that returns a value by accident, such as the result of its last expression, is told too: let it return None."
    )


class StoppedError(HooksError, RuntimeError):
    """Another rank stopped watching, so this rank stops too; with `on_error="warn"` the monitor warns instead."""

    consequence: ClassVar[str] = (
        "The ranks exchange their numbers at each watched step. A rank that went on alone would wait for ever."
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for the error of the other rank: it is the first one in time.",
        "Let the training go on without the monitor by `on_error='warn'`.",
    )
    false_alarm: ClassVar[str] = "This rank is not at fault. The error is the news of another one."


class HooksLeftError(HooksError, AssertionError):
    """A hook of this package is still on a model."""

    consequence: ClassVar[str] = "A hook that is left costs time in each call, and is copied with the model."
    next_steps: ClassVar[tuple[str, ...]] = (
        "Leave the `with instrument(...)` block, or call `close()`, before `assert_no_hooks(model)`.",
        "Report it as a bug if all runs have ended.",
    )
    false_alarm: ClassVar[str] = (
        "Inside of a run hooks are on the model on purpose. Hooks in compiled code stay, and are not counted."
    )


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


def enumerated(words: Iterable[str]) -> str:
    """All words as in a sentence.

    Example:
        >>> enumerated(["a"]), enumerated(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


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
