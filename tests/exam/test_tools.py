"""Trainings as tools make them: an optimizer within backward, weight norms, a teacher beside a student."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor, check
from lightning_hooks.health.text import as_text, blocks_of
from tests.callbacks.models import trainer_of
from tests.exam._trainings import Batch, cross_entropy, digits, drawn, fit, perceptron, train

# -- weight norms ----------------------------------------------------------------------------------------------------------


class Cut(nn.Module):
    """Cuts the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm], ids=["new", "old"])
def test_a_weight_behind_a_weight_norm_is_said_once(norm: Any) -> None:
    """Three layers have two parameters in the place of each weight. A user knows three weights."""
    torch.manual_seed(0)
    layers = [norm(nn.Linear(64, 64, bias=False)) for _ in range(3)]
    model = nn.Sequential(nn.Flatten(), *layers, Cut(), nn.Linear(64, 10))
    said = train(model, torch.optim.Adam(model.parameters(), 1e-3), drawn(digits(), 30, 64))
    (finding,), (cause,) = said.findings, said.causes
    assert finding.message == "1.weight, then 2 more: the optimizer holds it and gets no gradient (since the start)."
    assert cause.message.startswith("No gradient reaches 1.weight, then 2 more: something cuts the graph")
    alone = as_text(block for block in blocks_of([], said.findings)).splitlines()
    assert [line[8:16] for line in alone if "step 0: " in line] == ["1.weight", "2.weight", "3.weight"]
    result = check(model, next(drawn(digits(), 1, 64)), loss=nn.functional.cross_entropy)["NoGradient"]
    assert result.message.startswith("1.weight, 2.weight, 3.weight: no gradient comes in ")


# -- an optimizer within backward ------------------------------------------------------------------------------------------

CONSUMED = "it has no gradient when the optimizer steps, and changes all the same: its gradient is consumed within backward."


def _step_within_backward(model: nn.Module) -> None:
    optimizers = {parameter: torch.optim.Adam([parameter], 1e-3) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)


def test_an_optimizer_that_steps_within_backward() -> None:
    """The loop's own optimizer finds no gradient. The weights change all the same, so nobody clears gradients too early."""
    model = perceptron(64, 64, 10)
    _step_within_backward(model)
    said = train(model, torch.optim.SGD(model.parameters(), 1e-3), drawn(digits(), 60, 64))
    assert said.losses[-1] < 0.8 * said.losses[0]
    assert said.alarms == [] and said.causes == []
    assert [each.message for each in said.findings] == [f"1.bias, then 3 more: {CONSUMED}"]


class WithinBackward(LightningModule):
    """Trains with torch's own optimizers within backward, and gives Lightning one that finds nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron(64, 64, 64, 10)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return cross_entropy(self.net, *batch)

    def configure_optimizers(self) -> Any:
        from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward

        _apply_optimizer_in_backward(torch.optim.Adam, self.net.parameters(), {"lr": 1e-3})
        return torch.optim.SGD(self.parameters(), 1e-3)


def test_optimizers_of_torch_within_backward(tmp_path: Path) -> None:
    module, monitor = WithinBackward(), HealthMonitor()
    data = DataLoader(TensorDataset(*digits()), 64)
    said = fit(trainer_of(tmp_path, monitor, max_epochs=-1, max_steps=60), monitor, module, data)
    assert said.alarms == [] and said.causes == []
    assert [each.rule for each in said.findings] == ["GradientsConsumed"]
