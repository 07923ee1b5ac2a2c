"""The first operator at which two runs of a step differ, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from lightning_hooks.engine.recording.fingerprints import OperatorRun, shape_of

_MOST: Final = 4000
"""The number of operators of each run behind the first other operator that are searched for common ones."""
_RANDOM: Final = (
    "It draws random numbers: the state of a generator differs, so seed it, or restore its state before each of the two runs"
)
_UNINITIALISED: Final = "which is memory that nothing has initialised, as torch.empty returns it"
_NOT_DETERMINISTIC: Final = (
    "On one machine, it is then not deterministic, as sums whose order changes are: torch.use_deterministic_algorithms(True) "
    "replaces such an operator, or names it. On two machines, versions or devices, their kernels round otherwise"
)


_Alone = tuple[int, OperatorRun | None, OperatorRun | None]
"""An operator that only one run has: its number in that run, and None in place of the other run."""


@dataclass(frozen=True)
class FirstDifference:
    """The first operator at which two runs differ.

    Args:
        number: its position among the operators of the first run, from 1.
        one: as it ran in the first run; None if only the second run has it.
        other: as it ran in the second run; None if only the first run has it.
        skipped: the operators before it that only one of the runs has.
        text: what differs, in one paragraph.
    """

    number: int
    one: OperatorRun | None
    other: OperatorRun | None
    skipped: int
    text: str


def first_difference(one: Sequence[OperatorRun], other: Sequence[OperatorRun]) -> FirstDifference | None:
    """The first operator that read or gave other bits in a second run; None if there is none.

    Operators are aligned by their order and their names, so that two implementations can be compared, too: those that only one
    of them has are skipped, if operators behind them agree by name again. If all common ones are equal to the last bit, the
    first that only one run has is named.

    Args:
        one: the operators of the first run.
        other: those of the second run.
    """
    skipped = 0
    first_alone: _Alone | None = None
    equal = 0
    for number, a, b in _aligned(one, other):
        if a is None or b is None:
            skipped += 1
            first_alone = first_alone or (number, a, b)
        elif (a.inputs, a.numbers, a.outputs) == (b.inputs, b.numbers, b.outputs) or _same_bits(a, b):
            equal += 1
        else:
            told = _told(number, a, b, is_alike=first_alone is None)
            return FirstDifference(number, a, b, skipped, " ".join(filter(None, [_before(equal), _only(first_alone), told])))
    if first_alone is None:
        return None
    text = f"All {equal} operators that both runs have are equal to the last bit. {_only(first_alone)}"
    return FirstDifference(*first_alone, skipped - 1, text)


def _aligned(
    one: Sequence[OperatorRun], other: Sequence[OperatorRun]
) -> Iterator[tuple[int, OperatorRun | None, OperatorRun | None]]:
    """The operators of both runs that belong together, each with its number; None in place of one that the other run lacks."""
    common = 0
    for a, b in zip(one, other, strict=False):
        if a.operator != b.operator:
            break
        common += 1
        yield common, a, b
    rest, of_other = one[common : common + _MOST], other[common : common + _MOST]
    matcher = SequenceMatcher(None, [each.operator for each in rest], [each.operator for each in of_other], autojunk=False)
    for _, begin, end, start, stop in matcher.get_opcodes():
        is_common = [each.operator for each in rest[begin:end]] == [each.operator for each in of_other[start:stop]]
        if is_common:
            for i, (a, b) in enumerate(zip(rest[begin:end], of_other[start:stop], strict=True)):
                yield common + begin + i + 1, a, b
            continue
        for i, a in enumerate(rest[begin:end]):
            yield common + begin + i + 1, a, None
        for i, b in enumerate(of_other[start:stop]):
            yield common + start + i + 1, None, b


def _same_bits(a: OperatorRun, b: OperatorRun) -> bool:
    """Whether two operators read and gave the same bits and numbers, whatever their arguments are called."""
    return (
        a.numbers == b.numbers and a.outputs == b.outputs and [bits for _, bits in a.inputs] == [bits for _, bits in b.inputs]
    )


def _before(equal: int) -> str:
    if equal < 2:
        return "The first operator is equal to the last bit." if equal else ""
    return f"The first {equal} operators of both runs are equal to the last bit."


def _only(alone: _Alone | None) -> str:
    """What only one run has, as a sentence; empty if that is nothing."""
    if alone is None:
        return ""
    number, a, b = alone
    run = a or b
    return "" if run is None else f"Only the {'first' if a else 'second'} run has its operator {number}, {_place(run)}."


def _told(number: int, a: OperatorRun, b: OperatorRun, is_alike: bool) -> str:
    """What differs at an operator; `is_alike` says that both runs have the same operators before it."""
    place = f"Operator {number}, {_place(a)},"
    names = [name for (name, bits), (_, others) in zip(a.inputs, b.inputs, strict=False) if bits != others]
    if names or len(a.inputs) != len(b.inputs):
        raw = [name for name in names if name in a.uninitialised or name in b.uninitialised]
        if raw:
            return f"{place} read other numbers in {', '.join(raw)}, {_UNINITIALISED}."
        of = ", ".join(names) or "its arguments"
        why = (
            "No operator before it gave other results: the batch, a weight or a buffer differs, or a view of them"
            if is_alike
            else "What only one run has before it is the reason, or a view of other elements"
        )
        return f"{place} is the first that both have and that reads other numbers, in {of}. {why}.{_other_line(a, b)}"
    if a.numbers != b.numbers:
        ours = [each for each in a.numbers if each not in b.numbers]
        theirs = [each for each in b.numbers if each not in a.numbers]
        return (
            f"{place} was called with {', '.join(ours) or 'no other value'} in the first run and with "
            f"{', '.join(theirs) or 'no other value'} in the second.{_other_line(a, b)}"
        )
    why = _RANDOM if a.is_random else _NOT_DETERMINISTIC
    shape = " and ".join(dict.fromkeys(shape_of(x) for x, y in zip(a.outputs, b.outputs, strict=False) if x != y))
    return f"{place} read the same bits and gave others ({shape}). {why}.{_other_line(a, b)}"


def _place(run: OperatorRun) -> str:
    node = f", backward of {run.node}" if run.node else ""
    module = run.call.module or ("the model itself" if run.call.type else "code outside all modules")
    kind = f" ({run.call.type}), call {run.call.number + 1}" if run.call.type else ""
    line = f", at {run.line.source}: `{run.line.text}`" if run.line else ""
    return f"{run.operator}{node} in {module}{kind}{line}"


def _other_line(a: OperatorRun, b: OperatorRun) -> str:
    """Where the second run is, if that is another line."""
    return f" In the second run it is in {_place(b).partition(' in ')[2]}." if a.line != b.line else ""
