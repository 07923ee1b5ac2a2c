"""The names of rows in messages: those by which a user knows parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_PARAMETRIZED: Final = re.compile(r"parametrizations\.(\w+)\.original\d*$")
"""The name of a parameter of `torch.nn.utils.parametrize`."""
_NORMED: Final = re.compile(r"((?:weight|bias)(?:_[hi]h_l\d+(?:_reverse)?)?)_(?:g|v|orig)$")
"""The name of a parameter of the functions in `torch.nn.utils`: weight norm, spectral norm and pruning."""


def shown_rows(rows: Sequence[str]) -> str:
    """The rows of a finding in words; empty if the finding is about the whole run.

    An empty name beside names of modules or parameters stands for the loss, which can be in one finding with them.

    Example:
        >>> shown_rows(["encoder.3", "encoder.4", "head"])
        'encoder.3, then 2 more'
        >>> shown_rows(["", "head.weight"])
        'the loss, then 1 more'
        >>> shown_rows(["fc.parametrizations.weight.original0", "fc.parametrizations.weight.original1"])
        'fc.weight'
    """
    names = user_names(rows)
    return f"{names[0] or 'the loss'}, then {len(names) - 1} more" if len(names) > 1 else names[0] if names else ""


def user_names(rows: Iterable[str]) -> list[str]:
    """The names by which a user knows parameters, each once; see `user_name`.

    Example:
        >>> user_names(["fc.weight_g", "fc.weight_v", "fc.bias"])
        ['fc.weight', 'fc.bias']
    """
    return [*dict.fromkeys(map(user_name, rows))]


def user_name(row: str) -> str:
    """The name by which a user knows a parameter: that of the weight which a parametrization or a weight norm computes from it.

    Example:
        >>> user_name("fc.parametrizations.weight.original1"), user_name("fc.weight_g"), user_name("fc.bias")
        ('fc.weight', 'fc.weight', 'fc.bias')
    """
    name = _PARAMETRIZED.sub(r"\1", row)
    return _NORMED.sub(r"\1", name)
