"""The row of the loss: measured at every backward, as the module returned it, whatever divides or scales it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from lightning_hooks import HealthMonitor, StatsMonitor, StepView, Watch, read_run
from lightning_hooks.dashboard.diff import diff
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.overview import overview
from lightning_hooks.rules.prefix import name_of
from tests.callbacks.models import Net, ValNet, data, trainer_of
from tests.conformance.test_precision import Overflows, scaler
from tests.consumers import Keeps

RULES = [Watch(params="*.weight", tensors="grad", stats="norm")]


class Noted(Net):
    """Keeps the losses of its batches in float64."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(float(loss.detach().double()))
        return loss


class ByHand(Noted):
    """Two losses in each batch, which the module differentiates itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        for factor in (1.0, 3.0):
            x, y = batch
            loss = factor * nn.functional.mse_loss(self(x), y)
            self.losses.append(float(loss.detach().double()))
            self.manual_backward(loss)
        optimizer.step()


def losses_of(views: list[StepView]) -> list[float]:
    return [float(view.values("mean", view.rows.of("loss")[0])[0]) for view in views]


def means(losses: list[float], size: int) -> list[float]:
    return [sum(losses[at : at + size]) / len(losses[at : at + size]) for at in range(0, len(losses), size)]


@pytest.mark.parametrize(("module", "size"), [(Noted, 1), (Noted, 3), (ByHand, 2)])
def test_the_loss_of_a_step_is_the_mean_over_its_backwards(tmp_path: Path, module: Any, size: int) -> None:
    model, keeps = module(), Keeps()
    options = {} if module is ByHand else {"accumulate_grad_batches": size}
    trainer_of(tmp_path, StatsMonitor(RULES, consumers=[keeps]), **options).fit(model, data(6))
    assert losses_of(keeps.views) == pytest.approx(means(model.losses, size), rel=1e-6)
    assert [view.summaries["run/loss"] for view in keeps.views] == losses_of(keeps.views)


def test_the_loss_has_no_loss_scale_and_an_infinite_one_is_counted(tmp_path: Path) -> None:
    keeps, plain = Keeps(), Keeps()
    make = lambda: Overflows(batches=(2,))  # noqa: E731
    torch.manual_seed(0)
    trainer_of(tmp_path, StatsMonitor(RULES, consumers=[keeps]), plugins=scaler()).fit(make(), data(4))
    torch.manual_seed(0)
    trainer_of(tmp_path, StatsMonitor(RULES, consumers=[plain])).fit(make(), data(4))
    assert losses_of(keeps.views)[:2] == pytest.approx(losses_of(plain.views)[:2], rel=2e-2)  # in half precision
    nonfinite = [float(view.values("nonfinite", view.rows.of("loss")[0])[0]) for view in keeps.views]
    assert nonfinite == [0.0, 0.0, 1.0, 0.0]
    assert [view.facts.loss_scale for view in keeps.views if view.facts] == [1024.0, 1024.0, 1024.0, 512.0]


def test_a_validation_within_the_fit_measures_no_loss(tmp_path: Path) -> None:
    keeps = Keeps()
    rules = [Watch(modules="body.0", tensors="output", stats="mean")]
    monitor = StatsMonitor(rules, stages=["train", "validate"], consumers=[keeps])
    trainer_of(tmp_path, monitor).fit(ValNet(), data(2), data(2))
    stages = {view.stage: view for view in keeps.views}
    assert "run/loss" in stages["train"].summaries and "loss" not in stages["validate"].rows.tensors


def test_only_watched_steps_have_a_loss(tmp_path: Path) -> None:
    keeps, model = Keeps(), Noted()
    trainer_of(tmp_path, StatsMonitor(RULES, every_n_steps=2, consumers=[keeps])).fit(model, data(6))
    assert losses_of(keeps.views) == pytest.approx(model.losses[1::2], rel=1e-6)


def test_the_loss_and_the_facts_of_steps_can_be_read_again(tmp_path: Path) -> None:
    keeps = Keeps()

    def scheduled(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.5)

    class Scheduled(Net):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.body[0].bias.requires_grad_(batch_idx != 3)

    logger = TensorBoardLogger(tmp_path)
    model = Scheduled(scheduled)
    trainer_of(tmp_path, StatsMonitor(RULES, consumers=[keeps]), logger=logger).fit(model, data(5))
    run = read_run(logger.log_dir)
    views = [*run.views()]
    assert losses_of(views) == pytest.approx(losses_of(keeps.views), rel=1e-6)
    assert run.scalars["watch/run/loss"][1] == pytest.approx(losses_of(views), rel=1e-6)
    assert [view.facts for view in views] == [view.facts for view in keeps.views]
    assert [view.structure for view in views] == [view.structure for view in keeps.views]
    facts = [view.facts for view in views if view.facts is not None]
    assert [each.optimizers[0].groups[0].lr for each in facts] == [0.1, 0.1, 0.05, 0.05, 0.025]
    assert {each.optimizers[0].groups[0].weight_decay for each in facts} == {0.5}
    assert [each.frozen for each in facts] == [(), (), (), ("body.0.bias",), ()]
    assert [each.last_step for each in facts] == [5] * 5
    assert views[0].structure is not None
    assert [(each.name, each.role) for each in views[0].structure.modules] == [
        ("body", "container"),
        ("body.0", "linear"),
        ("body.1", "activation"),
        ("body.2", "dropout"),
        ("body.3", "linear"),
    ]


def test_facts_are_one_object_while_nothing_changes(tmp_path: Path) -> None:
    keeps = Keeps()
    trainer_of(tmp_path, StatsMonitor(RULES, consumers=[keeps]), max_epochs=2).fit(Net(), data(3))
    assert len({id(view.facts) for view in keeps.views}) == 1 and keeps.views[0].facts is not None


def test_an_optimizer_that_holds_parameters_of_another_model(tmp_path: Path) -> None:
    keeps, other = Keeps(), nn.Linear(2, 2)

    class Stranger(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([*self.body[0].parameters(), *other.parameters()], lr=0.1)

    trainer_of(tmp_path, StatsMonitor(RULES, consumers=[keeps])).fit(Stranger(), data(1))
    assert keeps.views[0].facts is not None
    (group,) = keeps.views[0].facts.optimizers[0].groups
    assert group.params == ("body.0.weight", "body.0.bias") and group.strangers == 2


@pytest.mark.parametrize("make", [lambda: StatsMonitor(RULES), HealthMonitor], ids=["stats", "health alone"])
def test_the_loss_is_wherever_a_person_looks(tmp_path: Path, make: Any) -> None:
    def fit(name: str, factor: float) -> tuple[Any, Path]:
        torch.manual_seed(0)
        logger, monitor, model = TensorBoardLogger(tmp_path, name=name), make(), Noted()
        model.body[3].weight.data *= factor
        trainer_of(tmp_path, monitor, logger=logger).fit(model, data(6))
        return monitor, Path(logger.log_dir)

    monitor, folder = fit("a", 1.0)
    prefix = monitor.prefix
    run = read_run(folder)
    assert monitor.latest["run/loss"] == pytest.approx(run.scalars[f"{prefix}run/loss"][1][-1], rel=1e-6)
    assert f"{prefix}run/loss" in overview(LocalRun(folder))["run"]
    found = diff(folder, fit("b", 2.0)[1])
    assert any(part.tensor == f"{name_of(prefix)}loss" and part.name == "loss" and part.step == 0 for part in found.parts)
    assert f"\n  {name_of(prefix)}loss: mean " in str(found)
