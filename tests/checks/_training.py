"""Small trainings for the tests of checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks import CheckResult, check

CROSS_ENTROPY = nn.CrossEntropyLoss()


def batch(samples: int = 12, features: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(1)
    labels = torch.arange(samples) % classes
    return torch.randn(samples, features, generator=chance), labels


def net(*more: nn.Module, width: int = 8, outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, outputs), *more)


def result_of(name: str, model: nn.Module, given: Any = None, loss: Any = CROSS_ENTROPY, **options: Any) -> CheckResult:
    """The result of one check; the optimizer is SGD on all parameters unless the options have another one."""
    if "optimizer" not in options:
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    changes = options.pop("fields", {})
    return check(model, batch() if given is None else given, loss=loss, checks=[{name: changes}], **options)[name]
