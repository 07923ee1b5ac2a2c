"""Whether the parts that were compiled when the package was installed are to be used.

The environment variable LIGHTNING_HOOKS_KERNEL chooses: `native` (an error where they are absent), `reference` for plain torch,
NumPy and Python; unset takes what is there.
"""

from __future__ import annotations

import os

from lightning_hooks.errors import RuleError

VARIABLE = "LIGHTNING_HOOKS_KERNEL"


def wanted() -> str:
    """`native`, `reference`, or nothing for what is there.

    Raises:
        RuleError: the variable holds anything else.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "native", "reference"):
        raise RuleError(f"{VARIABLE}={value!r}: there are 'native' and 'reference'; leave it unset to take what is there")
    return value
