"""What a user says: rules, the patterns and schedules in them, and reading them from Python or YAML."""

from lightning_hooks.rules.definitions import (
    FORWARD_TENSORS,
    MODULE_KINDS,
    MODULE_TENSORS,
    OPTIMIZER_KINDS,
    PARAM_KINDS,
    PARAM_TENSORS,
    Apply,
    Hook,
    Watch,
    parse_tensor,
)

__all__ = [
    "FORWARD_TENSORS",
    "MODULE_KINDS",
    "MODULE_TENSORS",
    "OPTIMIZER_KINDS",
    "PARAM_KINDS",
    "PARAM_TENSORS",
    "Apply",
    "Hook",
    "Watch",
    "parse_tensor",
]
