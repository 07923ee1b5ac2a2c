"""Compare two records of a set-up. Both are plain data, so nothing of the package is needed.

What may change: a module or parameter may have fewer hooks in a step, and the tables may have fewer rows together. Everything
else that is new, gone or different is a difference.

Two numbers are equal within `RELATIVE` or `ABSOLUTE`. The models train in float64, in which kernels for other instruction sets
and statistics that are merged in another order differ by about 1e-15. Event files hold float32: a number near the middle of two
float32 may be rounded to either of them, and these differ by up to 2**-23. `RELATIVE` is twice that. `ABSOLUTE` serves means
that are 0 except for rounding errors, which are about 1e-17.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tests.golden.renames import Accepted, Rename

RELATIVE: Final = 2.0**-22
ABSOLUTE: Final = 1e-15
Place = tuple[str, ...]


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], renames: Iterable[Rename] = (), accepted: Iterable[Accepted] = ()
) -> list[str]:
    """What is different in a new record, a line or a few for each place; empty if nothing is.

    Args:
        old: the record that was kept.
        new: that of now.
        renames: applied in order to all names and texts of the old record.
        accepted: differences of this set-up that are no news.
    """
    before, clashes = _renamed(old, [*renames])
    after = dict(_leaves(new))
    known = [*accepted]
    found = {**dict(_compare(before, after)), **clashes}
    return [
        f"{'/'.join(place)}: {said}"
        for place, said in found.items()
        if not any(re.search(each.place, "/".join(place)) for each in known)
    ]


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Each place of nested data with what is there: a number, a text, None, or an empty container."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _leaves(each, (*place, key))
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from _leaves(each, (*place, str(number)))
    else:
        yield place, value


def _renamed(old: Any, renames: list[Rename]) -> tuple[dict[Place, Any], dict[Place, str]]:
    """The leaves of the old record under their new names, and the places at which two old values that differ come together."""
    leaves: dict[Place, Any] = {}
    clashes: dict[Place, str] = {}
    for place, value in _leaves(old):
        for rename in renames:
            if "/".join(place).startswith(rename.under):
                place = tuple(map(rename, place))
                value = rename(value) if isinstance(value, str) else value
        if place in leaves and not _equal(leaves[place], value):
            clashes[place] = f"two recorded values have this name after the renames: {leaves[place]!r} and {value!r}"
        leaves[place] = value
    return leaves, clashes


def _compare(old: Mapping[Place, Any], new: Mapping[Place, Any]) -> Iterator[tuple[Place, str]]:
    for place in dict.fromkeys([*old, *new]):
        kind = place[2] if place[0] == "processes" and len(place) > 2 else ""
        if kind == "rows":
            continue
        if kind == "hooks":
            before, after = (_count(leaves.get(place, 0)) for leaves in (old, new))
            if after > before:
                yield place, f"{after} hooks instead of {before}"
        elif place not in new:
            yield place, f"gone, was {_shown(old[place])}"
        elif place not in old:
            yield place, f"new: {_shown(new[place])}"
        elif not _equal(old[place], new[place]):
            yield place, _change(old[place], new[place])
    for process in dict.fromkeys(place[1] for place in [*old, *new] if place[0] == "processes"):
        before, after = (
            sum(_count(rows) for place, rows in leaves.items() if place[:3] == ("processes", process, "rows"))
            for leaves in (old, new)
        )
        if after > before:
            yield ("processes", process, "rows"), f"{after} rows instead of {before}"


def _count(value: Any) -> int:
    """A number of hooks or rows; 0 for an empty container."""
    return value if isinstance(value, int) else 0


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, bool) or isinstance(new, bool) or not isinstance(old, int | float) or not isinstance(new, int | float):
        return type(old) is type(new) and bool(old == new)
    return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _change(old: Any, new: Any) -> str:
    if isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "recorded", "now", lineterm="", n=0)
        return "\n    ".join(["another text", *lines])
    return f"{_shown(new)} instead of {_shown(old)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:500]}…"
