"""The default rules of a monitor, and the histograms that no rule names."""

from __future__ import annotations

from typing import Final

from torch import nn

from lightning_hooks.rules.watch import UnwrittenWatch
from lightning_hooks.stats import kernels

DEFAULT_WATCH: Final = (
    UnwrittenWatch(modules="*", select="layers", tensors=("output", "output_grad"), strict=False),
    UnwrittenWatch(params="*", tensors=("param", "grad", "update"), strict=False),
)


def draws_by_default(model: nn.Module) -> bool:
    """Whether rules without `stats` measure histograms of this model: a kernel counts them where its parameters are.

    On a CUDA device without Triton, and on other devices, plain torch counts, which takes many launches for each tensor.

    Example:
        >>> draws_by_default(nn.Linear(2, 1))
        True
    """
    return all(parameter.device.type == "cpu" or kernels.on_device(parameter) is not None for parameter in model.parameters())
