"""What a fit tells the page of its rows."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader

from lightning_hooks import StatsMonitor, Watch
from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.runs import LocalRuns


class Crossed(LightningModule):
    """Runs its modules in another order than it defines them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)
        self.first = nn.Linear(4, 3)

    def training_step(self, batch, batch_idx):
        return self.last(torch.relu(self.first(batch))).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Validated(Crossed):
    def validation_step(self, batch, batch_idx):
        self.training_step(batch, batch_idx)


def rows(folder, tensor, prefix=""):
    api = Api(LocalRuns(folder))
    source = LocalRuns(folder).open(".")
    stat = next(stat for name, stat in source.tables() if name == prefix + tensor)
    _, nodes = api.nodes(source, prefix + tensor, stat)
    return [node.as_json(source.about(), {}) for node in nodes if node.row is not None]


def test_types_shapes_and_the_order_of_execution(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    watch = [
        Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=["norm"]),
        Watch(params="*", tensors=["grad"], stats=["norm"]),
    ]
    trainer = Trainer(
        max_steps=3,
        logger=logger,
        callbacks=[StatsMonitor(watch=watch, prefix="my/")],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        accelerator="cpu",
    )
    trainer.fit(Crossed(), DataLoader(torch.randn(24, 4), batch_size=8))
    outputs = rows(tmp_path, "output", "my/")
    assert [(row["name"], row["type"], row["shape"]) for row in outputs] == [
        ("first", "Linear", [8, 3]),
        ("last", "Linear", [8, 2]),
    ]
    assert [row["name"] for row in rows(tmp_path, "output_grad", "my/")] == ["first", "last"]
    grads = rows(tmp_path, "grad", "my/")
    assert [(row["name"], row["shape"]) for row in grads] == [
        ("first.weight", [3, 4]),
        ("first.bias", [3]),
        ("last.weight", [2, 3]),
        ("last.bias", [2]),
    ]
    assert {row["type"] for row in grads} == {"Linear"}


def test_what_one_monitor_tells_stays_when_another_of_its_prefix_tells_of_other_rows(tmp_path):
    monitors = [
        StatsMonitor([Watch(modules="*", select="leaves", tensors="output", stats="norm")]),
        StatsMonitor([Watch(params="*", tensors="grad", stats="norm")]),
    ]
    trainer = Trainer(
        max_steps=1,
        logger=TensorBoardLogger(tmp_path, name="", version=""),
        callbacks=monitors,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        accelerator="cpu",
    )
    trainer.fit(Crossed(), DataLoader(torch.randn(8, 4), batch_size=8))
    assert [(row["name"], row["shape"]) for row in rows(tmp_path, "output")] == [("first", [8, 3]), ("last", [8, 2])]
    grads = [(row["name"], row["shape"]) for row in rows(tmp_path, "grad")]
    assert grads == [("first.weight", [3, 4]), ("first.bias", [3]), ("last.weight", [2, 3]), ("last.bias", [2])]


@pytest.mark.parametrize("fits", [True, False])
def test_a_run_without_training_steps(tmp_path, fits):
    watch = [Watch(modules="*", select="leaves", tensors="output", stats="norm")]
    trainer = Trainer(
        max_epochs=1,
        num_sanity_val_steps=0,
        logger=TensorBoardLogger(tmp_path, name="", version=""),
        callbacks=[StatsMonitor(watch=watch, stages="validate")],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        accelerator="cpu",
    )
    data = DataLoader(torch.randn(16, 4), batch_size=8)
    if fits:
        trainer.fit(Validated(), data, data)
    else:
        trainer.validate(Validated(), data, verbose=False)
    outputs = [(row["name"], row["type"], row["shape"]) for row in rows(tmp_path, "val_output")]
    assert outputs == [("first", "Linear", [8, 3]), ("last", "Linear", [8, 2])]
