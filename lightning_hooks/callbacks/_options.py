"""What the options of a monitor may be."""

from __future__ import annotations

from typing import Any

from lightning_hooks.errors import RuleError, did_you_mean


def check_options(scalars: list[Any], max_scalars: Any, prefix: Any, on_error: Any, max_overhead: Any) -> None:
    """Refuse what cannot be meant; each argument is the option of its name.

    Raises:
        RuleError: with what would be right.
    """
    for i, pattern in enumerate(scalars):
        if not isinstance(pattern, str):
            raise RuleError(f"scalars[{i}] must be a string, got {pattern!r}")
    if isinstance(max_scalars, bool) or not isinstance(max_scalars, int) or max_scalars < 0:
        raise RuleError(f"max_scalars must be an integer of at least 0, got {max_scalars!r}")
    if not isinstance(prefix, str):
        raise RuleError(f"prefix must be a string, got {prefix!r}")
    if on_error not in ("raise", "warn"):
        hint = did_you_mean(str(on_error), ["raise", "warn"], 1)
        raise RuleError(f"on_error must be 'raise' or 'warn', got {on_error!r}{hint}")
    number = isinstance(max_overhead, (int, float)) and not isinstance(max_overhead, bool)
    if max_overhead is not None and not (number and 0 < max_overhead < 1):
        raise RuleError(f"max_overhead must be a share above 0 and below 1, or None, got {max_overhead!r}")
