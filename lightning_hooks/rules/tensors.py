"""The names of tensors and of kinds of torch hooks in rules."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from lightning_hooks.errors import RuleError, did_you_mean, shown

CHANGED_TENSORS: Final = ("input", "output", "input_grad", "output_grad")
"""The tensors of modules that `Apply` can change."""
INNER_TENSORS: Final = {"inner_input_grad": "input_grad", "inner_output_grad": "output_grad"}
"""Maps each gradient of a backward pass other than that of the loss to the same gradient of the loss."""
MODULE_TENSORS: Final = (*CHANGED_TENSORS, *INNER_TENSORS)
PARAM_TENSORS: Final = ("param", "grad", "final_grad", "update", "state")
FORWARD_TENSORS: Final = ("input", "output")
MODULE_KINDS: Final = (
    "forward_pre",
    "forward",
    "full_backward_pre",
    "full_backward",
    "input_grad",
    "output_grad",
    "node_pre",
    "node",
    "saved_tensors",
)
PARAM_KINDS: Final = ("param_grad", "post_accumulate_grad")
OPTIMIZER_KINDS: Final = ("optimizer_step_pre", "optimizer_step_post")
_PATH = re.compile(r"(?P<tensor>[a-z_]+)(?P<path>(\[-?\d+\]|\.[A-Za-z_]\w*)*)")


@lru_cache(maxsize=1024)
def parse_tensor(tensor: str) -> tuple[str, str]:
    """Split the name of a tensor into its kind and the path to one part of a nested output.

    Example:
        >>> parse_tensor("output.hidden[0]")
        ('output', '.hidden[0]')
    """
    match = _PATH.fullmatch(tensor)
    return (match["tensor"], match["path"]) if match else (tensor, "")


def check_tensor(tensor: Any, of_module: bool, where: str) -> None:
    """Raise if a rule on modules (`of_module`) or on parameters cannot watch a tensor of this name."""
    allowed: tuple[str, ...]
    tensors_of_other: tuple[str, ...]
    allowed, tensors_of_other = (MODULE_TENSORS, PARAM_TENSORS) if of_module else (PARAM_TENSORS, MODULE_TENSORS)
    base, path = parse_tensor(str(tensor))
    owner, other = ("modules", "params") if of_module else ("params", "modules")
    if base in allowed and (of_module or bool(path) == (base == "state")):
        return
    if not of_module and base == "state":
        raise RuleError(f"{where}: 'state' needs a key of the optimizer's state, as in 'state.exp_avg_sq'; got {shown(tensor)}")
    allowed = tuple("state.<key>" if name == "state" else name for name in allowed)
    if base in tensors_of_other:
        raise RuleError(f"{where}: {tensor!r} is a tensor of {other}; a rule on {owner} has {', '.join(allowed)}")
    raise RuleError(
        f"{where}: unknown tensor {tensor!r}{did_you_mean(tensor, allowed, 2)}; a rule on {owner} has {', '.join(allowed)}"
    )
