"""Accumulation: one row a step, exact over all its micro-batches; rules with `when="backward"` see each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch
from lightning_hooks.transforms import Scale
from tests.callbacks import _tiny
from tests.callbacks.models import Net, adamw, data, plain_sgd, trainer_of
from tests.conformance._tools import three_runs


# Every two of the three meet.
@pytest.mark.parametrize(
    ("accumulate", "optimizer", "clip"),
    [(1, plain_sgd, None), (1, adamw, 0.05), (2, plain_sgd, 0.05), (2, adamw, None), (3, plain_sgd, None), (3, adamw, 0.05)],
)
def test_every_number_of_a_window_of_micro_batches(tmp_path: Path, accumulate: int, optimizer: Any, clip: float | None) -> None:
    runs = three_runs(
        tmp_path,
        lambda: Net(optimizer),
        lambda: data(7, 5),
        max_epochs=2,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
    )
    windows = [len(calls["body.0.weight"]) for calls in runs.spies["backward"].seen.values()]
    assert windows == 2 * ([accumulate] * (7 // accumulate) + [7 % accumulate] * (7 % accumulate > 0))


class Normalized(Net):
    """Its training step normalizes a weight first, as methods with prototypes do."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.no_grad():
            weight = self.body[0].weight
            weight.copy_(torch.nn.functional.normalize(weight, dim=1))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_the_training_step_does_to_a_parameter_is_no_part_of_its_update(tmp_path: Path, accumulate: int) -> None:
    """Lightning runs it inside the optimizer's step."""
    three_runs(tmp_path, Normalized, lambda: data(4), accumulate_grad_batches=accumulate)


@pytest.mark.parametrize("stage", ["step", "backward"])
def test_a_factor_at_either_stage_scales_the_step_of_every_window(tmp_path: Path, stage: str) -> None:
    """With plain SGD half of every gradient is half of the learning rate."""

    def run(rate: float, *callbacks: Any) -> Net:
        torch.manual_seed(0)
        model = Net(lambda parameters: torch.optim.SGD(parameters, lr=rate))
        torch.manual_seed(1)
        trainer_of(tmp_path, *callbacks, accumulate_grad_batches=3).fit(model, data(7, 5))
        return model

    halved = run(0.1, GradientTransforms([Apply(Scale(0.5), params="*", when=stage)]))
    for name, value in run(0.05).state_dict().items():
        assert torch.equal(halved.state_dict()[name], value), name


class CutShort(_tiny.Line):
    """Its first epoch ends within a window."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 2 and self.current_epoch == 0 else None


@pytest.mark.parametrize("accumulate", [2, 3])
def test_a_window_that_an_epoch_cuts_short_is_in_no_row(tmp_path: Path, accumulate: int) -> None:
    """Lightning clears the gradients of the window at the next epoch's first batch."""
    book, model = _tiny.Keeper(), CutShort()
    rules = [Watch(modules="layer", tensors="input", stats="mean"), Watch(params="*", tensors="grad", stats="mean")]
    batches = _tiny.loader([1.0, 1.0], [2.0, 2.0], [6.0, 6.0])
    options = {"accumulate_grad_batches": accumulate, "max_epochs": 2, "logger": book}
    _tiny.make(tmp_path, StatsMonitor(rules), **options).fit(model, batches)
    windows = {2: [1.5, 1.5, 6.0], 3: [3.0]}[accumulate]
    assert [line["input_mean/layer"] for line in book.lines.values()] == windows
    gradients = [line["grad_mean/layer.weight"] for line in book.lines.values()]
    assert model.w == pytest.approx([-sum(gradients)] * 2)
