"""Strategies with which some rules cannot be right: refused with the reason and the way out, never wrong without a word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from lightning.pytorch import Trainer

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.rules import parse_tensor

# By name: Lightning's two packages have a class each, and DeepSpeed's cannot be imported where it is not installed.
_CUT_UP: Final = {
    "FSDPStrategy": "FSDP flattens parameters and gradients and leaves each rank a slice of them, often an empty one: their "
    "statistics would be those of slices, a norm that of one rank, and hooks on them never fire",
    "DeepSpeedStrategy": "DeepSpeed keeps gradients, and with ZeRO stage 3 parameters, in buffers of its own: when the "
    "optimizer steps, .grad is empty or a slice, and a change of it is not used",
}
_WAY_OUT: Final = "use ModelParallelStrategy (FSDP2) or DDPStrategy; rules on modules work here"


def refuse_unsupported(trainer: Trainer, rules: Iterable[tuple[str, Any, Iterable[str]]]) -> None:
    """Refuse rules that could not be right with the strategy of a trainer.

    Args:
        trainer: whose strategy.
        rules: each with how a message names it, and the tensors that it is about.

    Raises:
        UnsupportedError: a rule on parameters where the strategy cuts these up; one on gradients that flow through modules
            where the loss is scaled out of our sight.
    """
    names = [kind.__name__ for kind in type(trainer.strategy).__mro__]
    cut_up = next((name for name in names if name in _CUT_UP), None)
    if cut_up is None:
        return
    scaled = cut_up == "DeepSpeedStrategy" and str(trainer.precision).startswith("16")
    for where, rule, tensors in rules:
        if getattr(rule, "params", None) is not None:
            raise UnsupportedError(
                f"{where}.params: with {cut_up} a rule on parameters cannot be right. {_CUT_UP[cut_up]}; {_WAY_OUT}"
            )
        flowing = [tensor for tensor in tensors if parse_tensor(tensor)[0] in ("input_grad", "output_grad")]
        if scaled and flowing:
            raise UnsupportedError(
                f"{where}: {flowing[0]!r} with DeepSpeedStrategy in 16 bits is multiplied by a loss scale that DeepSpeed keeps "
                "to itself; use precision='bf16-mixed', or watch 'input' and 'output'"
            )
