"""Modules under `torch.compile`, where hooks on modules cannot be relied on."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch import nn

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.select import Target


def refuse_compiled(model: nn.Module, targets: Iterable[Target[nn.Module]], where: str) -> None:
    """Refuse hooks on modules inside a compiled one: after the first trace torch ignores them without a word.

    Args:
        model: the root.
        targets: the modules that a rule means.
        where: the option, for the message.

    Raises:
        UnsupportedError: with the first such module and the way out.
    """
    inside: dict[int, str] = {}
    for name, module in model.named_modules():
        if _is_compiled(module):
            for part in module.modules():
                inside.setdefault(id(part), name or "the model itself")
    for target in targets:
        if id(target.value) in inside:
            raise UnsupportedError(
                f"{where}: {target.name!r} is compiled ({inside[id(target.value)]}), and torch ignores hooks on compiled "
                "modules without a word. Watch params, which works, or watch the modules in a run without torch.compile"
            )


def _is_compiled(module: nn.Module) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # not loaded, nothing can be compiled; loading it takes a while
    return (
        (dynamo is not None and isinstance(module, dynamo.OptimizedModule))
        or getattr(module, "_compiled_call_impl", None) is not None
        or getattr(module, "_compiler_ctx", None) is not None  # what Lightning keeps of a compiled LightningModule
    )
