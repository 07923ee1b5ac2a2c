"""The head of a run: with what it was trained, as short facts. Each says where it is from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_hooks.dashboard.facts import is_count, json_object
from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.errors import counted


def run_head(run: RunSource) -> list[dict[str, str]]:
    """The facts that the event file of a run states, each as `term`, `text` and `note` (where it is from; may be empty)."""
    indices = run.row_indices()
    prefixes = dict.fromkeys(["", *(str(each.get("prefix", "")) for each in indices)])
    texts = next(filter(None, map(run.saved_facts, prefixes)), [])
    first, last = _ends(texts)
    facts = [
        ("Optimizer", _optimizers(first.get("members")), ""),
        ("Rate", *_rates(first.get("rates"), last.get("rates"))),
        ("Batch", *_batch(run.about(), first.get("accumulate"), run.ranks())),
        ("Precision", *_precision(first.get("precision"), indices)),
        ("Parameters", *_parameters(indices, first.get("frozen"))),
        ("Duration", _duration(run.times()), "from the first event to the last one"),
    ]
    return [{"term": term, "text": text, "note": note} for term, text, note in facts if text]


def _ends(texts: Sequence[tuple[int, str]]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The facts of the first step, and the last ones that state rates. Most texts state nothing else, so few are parsed."""
    first = json_object([texts[0][1]]) if texts else {}
    last = next((text for _, text in reversed(texts) if '"rates"' in text), None)
    return first, first if last is None else json_object([last])


def _optimizers(members: Any) -> str:
    """For example `AdamW, 2 groups`."""
    said = []
    for each in members if isinstance(members, list) else ():
        if isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and isinstance(each[1], list):
            said.append(each[0] if len(each[1]) == 1 else f"{each[0]}, {len(each[1])} groups")
    return "; ".join(said)


def _rates(first: Any, last: Any) -> tuple[str, str]:
    """The rate of the first group at the first step and at the last one, with the number of groups that it stands for."""
    begin, end = [*_numbers(first)], [*_numbers(last)]
    if not begin:
        return "", ""
    text = f"{begin[0]:.4g}" if not end or begin[0] == end[0] else f"{begin[0]:.4g} to {end[0]:.4g}"
    others = len({*begin}) - 1
    return text, f"of the first group; {counted(others, 'other rate')} at the first step" if others > 0 else ""


def _numbers(rates: Any) -> Iterator[float]:
    """The rates of all groups of all optimizers, from `[[[rate, decay], …], …]`."""
    for groups in rates if isinstance(rates, list) else ():
        for group in groups if isinstance(groups, list) else ():
            if isinstance(group, list) and group and isinstance(group[0], int | float) and math.isfinite(group[0]):
                yield group[0]


def _batch(about: Mapping[str, Any], accumulate: Any, ranks: int) -> tuple[str, str]:
    """The first dimension of the output of the module that ran first, times the batches of a step and the ranks."""
    ordered = [(each["order"], name, each["shape"]) for name, each in about.items() if "order" in each and each.get("shape")]
    if not ordered:
        return "", ""
    _, name, shape = min(ordered)
    batches = f" × {accumulate} batches" if is_count(accumulate) and accumulate > 1 else ""
    return f"{shape[0]:,}{batches}{f' × {ranks} ranks' if ranks > 1 else ''}", f"the first dimension of the output of {name}"


def _precision(precision: Any, indices: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    if isinstance(precision, str):
        return precision, "of the Trainer"
    dtypes = dict.fromkeys(each[3] for each in _listed(indices) if isinstance(each[3], str))
    return ", ".join(dtypes), "of the parameters"


def _parameters(indices: Sequence[Mapping[str, Any]], frozen: Any) -> tuple[str, str]:
    """The number of elements of all parameters, and of those that are frozen at the first step."""
    sizes = {each[0]: math.prod(each[2]) for each in _listed(indices)}
    if not sizes:
        return "", ""
    names = frozen if isinstance(frozen, list) else []
    idle = sum(sizes.get(name, 0) for name in names if isinstance(name, str))
    return f"{sum(sizes.values()):,}{f', {idle:,} of them frozen' if idle else ''}", f"in {len(sizes):,} tensors"


def _listed(indices: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """The parameters `[name, module, shape, dtype, …]` of the first row index that lists any."""
    for index in indices:
        structure = index.get("structure")
        listed = structure.get("parameters") if isinstance(structure, Mapping) else None
        found = [each for each in listed if _is_parameter(each)] if isinstance(listed, list) else []
        if found:
            return found
    return []


def _is_parameter(each: Any) -> bool:
    is_long = isinstance(each, list) and len(each) > 3 and isinstance(each[0], str)
    return is_long and isinstance(each[2], list) and all(map(is_count, each[2]))


def _duration(times: tuple[float, float] | None) -> str:
    """For example `2 h 5 min`.

    Example:
        >>> _duration((0.0, 7530.0)), _duration((0.0, 61.0)), _duration((0.0, 3.24)), _duration(None)
        ('2 h 5 min', '1 min 1 s', '3.2 s', '')
    """
    if times is None:
        return ""
    seconds = max(times[1] - times[0], 0.0)
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    parts = [f"{whole // size % most} {unit}" for (unit, size), most in zip(units, (10**9, 24, 60, 60), strict=True)]
    begin = next(i for i, part in enumerate(parts) if not part.startswith("0 "))
    return " ".join(part for part in parts[begin : begin + 2] if not part.startswith("0 "))
