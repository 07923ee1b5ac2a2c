"""Why no gradient reaches a parameter: its module's output is not read, or it multiplies nothing but zeros."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.layers import inputs_of, units_of
from lightning_hooks.health.roles import WEIGHTED, Roles, roles_of

_STATE: Final = re.compile(r"weight_hh(?P<part>(_l\d+(_reverse)?)?)$")
"""The name of a weight of torch that multiplies the state of a recurrent module."""
_LATER: Final = re.compile(r"weight_ih_l[1-9]\d*(_reverse)?$")
"""The name of a weight of torch that multiplies the output of an earlier layer inside a recurrent module."""
Sizes = tuple[float, float]
"""The root mean square and the share of zeros of a tensor: equal numbers are those of one tensor."""


def multiplies_zeros(evidence: Evidence, name: str) -> bool:
    """Whether all that a weight multiplies is 0: the input of its module, or the state of a recurrent one.

    Args:
        evidence: of the run, with `zero_fraction` of `input` and `abs_max` of `grad`.
        name: of a weight with a gradient of exactly 0.
    """
    roles = roles_of(evidence)
    if roles is None:
        return False
    module = roles.owners((name,))[0]
    if _STATE.search(name) and roles.role(module) == "recurrent":
        return _has_state_of_zeros(roles, _gradients(evidence), name)
    zeros = evidence.track("input", "zero_fraction")
    if zeros is None or module not in zeros.names or _LATER.search(name):
        return False
    measured = zeros.values[:, zeros.names.index(module)]
    measured = measured[~np.isnan(measured)]
    return bool(len(measured) and measured[-1] == 1)


def unused_parameters(evidence: Evidence, names: Sequence[str]) -> dict[str, str]:
    """What is to be said of the parameters of which the loss uses nothing, as far as the run shows it.

    Args:
        evidence: of the run, with `rms` and `zero_fraction` of `input` and `output`.
        names: the parameters without a gradient.

    Returns:
        The words by the name of the parameter; no words until inputs are measured, if these decide.
    """
    roles = roles_of(evidence)
    if roles is None:
        return {}
    gradients = _gradients(evidence)
    owners = dict(zip(names, roles.owners(tuple(names)), strict=True))
    unread = _unread(evidence, roles, gradients, set(owners.values()))
    said = {name: unread[owners[name]] for name in names if owners[name] in unread}
    for name in names:
        if (
            _STATE.search(name)
            and _has_state_of_zeros(roles, gradients, name)
            and not _are_all_of_zeros(roles, gradients, name)
        ):
            said[name] = "its gradient is exactly 0: only the first element of its direction is read, with a state of 0"
    return said


def _gradients(evidence: Evidence) -> dict[str, float]:
    """The largest gradient of each parameter at the last step of rows, for those that have one there."""
    grad = evidence.track("grad", "abs_max")
    if grad is None:
        return {}
    grad = evidence.of_rows(grad)
    last = dict(zip(grad.names, grad.values[-1].tolist(), strict=True)) if len(grad.values) else {}
    return {name: value for name, value in last.items() if not np.isnan(value)}


def _has_state_of_zeros(roles: Roles, gradients: dict[str, float], name: str) -> bool:
    """Whether a recurrent weight has no gradient, while the weight of the input at its side has one."""
    match = _STATE.search(name)
    beside = "" if match is None else f"{name[: match.start()]}weight_ih{match['part']}"
    return roles.role(roles.owners((name,))[0]) == "recurrent" and gradients.get(name) == 0 and gradients.get(beside, 0.0) > 0


def _are_all_of_zeros(roles: Roles, gradients: dict[str, float], name: str) -> bool:
    """Whether no recurrent weight of a module has a gradient."""
    module = roles.owners((name,))[0]
    states = [each.name for each in roles.parameters.values() if each.module == module and _STATE.search(each.name)]
    return all(gradients.get(each, 0.0) == 0 for each in states)


def _unread(evidence: Evidence, roles: Roles, gradients: dict[str, float], without: Collection[str]) -> dict[str, str]:
    """The modules without a gradient whose output no later module reads, behind modules that are trained, with words on them.

    A later module reads something else if its input is a tensor that was there before. If its input is a new tensor, made
    by an operation that is no module, it may read the output.
    """
    layers = {each.module for each in roles.parameters.values()}
    zeros = set(roles.owners(tuple(name for name, value in gradients.items() if value == 0)))
    trained = set(roles.owners(tuple(name for name, value in gradients.items() if value > 0)))
    inputs, outputs = _sizes(evidence, "input"), _sizes(evidence, "output")
    is_awaited = not inputs and "input" in evidence.tensors
    order = evidence.order if is_awaited else [name for name in evidence.order if name in inputs or name in outputs]
    data = next((inputs[name] for name in order if name in inputs), None)
    found: dict[str, str] = {}
    for begin, end in _runs(order, {*without} - trained, layers):
        run, first = order[begin:end], inputs.get(order[begin])
        is_reached = not zeros.isdisjoint(run)
        if is_reached and _may_be_added(roles, run, order[end:]):
            continue
        if is_awaited and not trained.isdisjoint(order[:begin]):
            found.update(dict.fromkeys(run, ""))
        if first is None or first == data or trained.isdisjoint(order[:begin]):
            continue
        # The output of a module that holds these ones may be made of theirs.
        others = {name: sizes for name, sizes in outputs.items() if not any(each.startswith(f"{name}.") for each in run)}
        known = {first, *(sizes[name] for name in order[:begin] for sizes in (inputs, others) if name in sizes)}
        for name in order[end:]:
            if inputs.get(name) in known:
                known.update([others[name]] if name in others else [])
            elif name in layers:
                break
        else:
            comes = "its gradient is exactly 0" if is_reached else "no gradient comes to it"
            found.update(dict.fromkeys(run, f"{comes}, and no later module reads its output"))
    return found


def _may_be_added(roles: Roles, run: Sequence[str], later: Sequence[str]) -> bool:
    """Whether the output of some layers has as many units as the next layer reads.

    If zero times this output is added to a tensor, the sum is that tensor, and the next layer seems to read it alone.
    """
    last = next((name for name in reversed(run) if roles.role(name) in WEIGHTED), "")
    following = next((name for name in later if roles.weight(name) is not None), "")
    return units_of(roles, last) == inputs_of(roles, following)


def _runs(order: Sequence[str], without: Collection[str], layers: Collection[str]) -> list[tuple[int, int]]:
    """The begin and the end of each row of layers without a gradient; modules without parameters may stand between them."""
    runs: list[tuple[int, int]] = []
    is_open = False
    for i, name in enumerate(order):
        if name in without:
            begin = runs.pop()[0] if is_open else i
            runs.append((begin, i + 1))
        is_open = name in without or (is_open and name not in layers)
    return runs


def _sizes(evidence: Evidence, tensor: str) -> dict[str, Sizes]:
    """The sizes of each row at the last step at which inputs were measured."""
    rms, zeros, inputs = evidence.track(tensor, "rms"), evidence.track(tensor, "zero_fraction"), evidence.track("input", "rms")
    if rms is None or zeros is None or inputs is None:
        return {}
    measured = np.flatnonzero(~np.isnan(inputs.values).all(axis=1))
    if not len(measured):
        return {}
    at = int(measured[-1])
    pairs = zip(rms.names, rms.values[at].tolist(), zeros.values[at].tolist(), strict=True)
    return {name: (float(f"{size:.9g}"), share) for name, size, share in pairs if not np.isnan(size)}
