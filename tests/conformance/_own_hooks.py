"""A hook of a user's own of every kind: each notes what it is given, and those that may change something do.

All changes are linear, so what comes of the parts of a batch adds up to what comes of the whole.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_hooks import CustomHooks, Hook

FLOWS_FORWARD = ("forward_pre", "forward")
FLOWS_BACK = ("full_backward_pre", "full_backward", "output_grad", "input_grad", "node_pre", "node")


def ramp(tensor: Tensor) -> Tensor:
    """Another factor for each column: an optimizer that does not see the scale of a gradient sees this."""
    return tensor * torch.arange(1, tensor.shape[-1] + 1, device=tensor.device, dtype=tensor.dtype)


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class OwnHooks(CustomHooks):
    """One hook of each kind.

    Args:
        first: a module; its weight and its bias are changed too.
        last: a module behind it.
        param_grad: whether the gradient of the weight is changed in backward.
    """

    def __init__(self, first: str, last: str, *, param_grad: bool = True) -> None:
        self.seen: dict[str, list[float]] = {}
        note = self.note

        def zero(param: Tensor) -> None:
            note("post_accumulate_grad", whole(param.grad))
            param.grad.zero_()  # type: ignore[union-attr]

        rules = [
            Hook(lambda m, args: (note("forward_pre", args[0]) * 1.5,), kind="forward_pre", modules=last),
            Hook(lambda m, args, out: ramp(note("forward", out)), kind="forward", modules=first),
            Hook(lambda m, out: (ramp(note("full_backward_pre", out[0])),), kind="full_backward_pre", modules=last),
            Hook(lambda m, into, out: (ramp(note("full_backward", into[0])),), kind="full_backward", modules=last),
            Hook(lambda grad: ramp(note("output_grad", grad)), kind="output_grad", modules=first),
            Hook(lambda grad: ramp(note("input_grad", grad)), kind="input_grad", modules=last),
            Hook(lambda out: (ramp(note("node_pre", out[0])),), kind="node_pre", modules=first),
            Hook(lambda into, out: void(note("node", out[0])), kind="node", modules=first),
            Hook((lambda t: note("pack", t), lambda t: note("unpack", t)), kind="saved_tensors", modules=first),
            Hook(zero, kind="post_accumulate_grad", params=f"{first}.bias"),
            Hook(lambda *args: void(note("optimizer_step_pre")), kind="optimizer_step_pre"),
            Hook(lambda *args: void(note("optimizer_step_post")), kind="optimizer_step_post"),
        ]
        if param_grad:
            rules.append(Hook(lambda grad: ramp(note("param_grad", grad)), kind="param_grad", params=f"{first}.weight"))
        super().__init__(rules)

    def note(self, kind: str, tensor: Any = 0.0) -> Any:
        """Keep the sum of the elements."""
        self.seen.setdefault(kind, []).append(float(torch.as_tensor(tensor).detach().double().sum()))
        return tensor


def void(given: Any) -> None:
    """A hook that returns nothing."""


def weights_of(model: LightningModule) -> dict[str, list[float]]:
    return {name: whole(parameter).detach().flatten().tolist() for name, parameter in model.named_parameters()}


def assert_sums(ranks: list[dict[str, list[float]]], alone: dict[str, list[float]], rel: float) -> None:
    """The calls of each rank are those of one process, and what they were given adds up to what it was given there.

    With a mean loss a gradient that flows on a rank is that of its own, smaller batch: as many times larger as there are ranks.
    """
    for kind, values in alone.items():
        assert [len(rank[kind]) for rank in ranks] == [len(values)] * len(ranks), kind
        if kind in FLOWS_FORWARD + FLOWS_BACK:
            factor = len(ranks) if kind in FLOWS_BACK else 1
            sums = [sum(parts) for parts in zip(*(rank[kind] for rank in ranks), strict=True)]
            assert sums == pytest.approx([factor * value for value in values], rel=rel, abs=1e-6), kind
