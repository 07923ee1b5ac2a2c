"""Rules that users write in Python or YAML: `Watch`, `Apply` and `Hook`, with their patterns and schedules.

In a rule, None (`null` in YAML) means the default. A flag must be True or False.
"""

from lightning_hooks.rules.apply import Apply
from lightning_hooks.rules.hook import Hook
from lightning_hooks.rules.tensors import (
    FORWARD_TENSORS,
    INNER_TENSORS,
    MODULE_KINDS,
    MODULE_TENSORS,
    OPTIMIZER_KINDS,
    PARAM_KINDS,
    PARAM_TENSORS,
    parse_tensor,
)
from lightning_hooks.rules.units import Units
from lightning_hooks.rules.watch import Watch

__all__ = [
    "FORWARD_TENSORS",
    "MODULE_KINDS",
    "INNER_TENSORS",
    "MODULE_TENSORS",
    "OPTIMIZER_KINDS",
    "PARAM_KINDS",
    "PARAM_TENSORS",
    "Apply",
    "Hook",
    "Units",
    "Watch",
    "parse_tensor",
]
