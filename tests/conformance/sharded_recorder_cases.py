"""What runs on each rank with sharded parameters and a recorder; `test_sharded_recorder.py` says what must come of it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn

from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor, assert_no_hooks, instrument
from lightning_hooks.engine.recording.late_recorder import LateRecorder
from lightning_hooks.recorder.files import to_json
from tests.callbacks.models import trainer_of
from tests.conformance._tools import loader, randn
from tests.conformance.product_cases import bits

RANK = int(os.environ.get("LOCAL_RANK", "0"))
STEPS = 6


class Net(LightningModule):
    """An MLP whose parameters are sharded.

    Args:
        out: the outputs: 4 give even shards, 3 uneven ones, and of 1 the second rank holds nothing.
        bad: the step after which the last element of the last shard becomes NaN; None for a healthy training.
    """

    def __init__(self, out: int = 4, bad: int | None = None) -> None:
        super().__init__()
        self.bad = bad
        self.body = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, out))

    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard

        for layer in (self.body[0], self.body[3], self.body):
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.body(batch).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01, foreach=False)
        optimizer.register_step_post_hook(self.spoil)
        return optimizer

    def spoil(self, *args: Any) -> None:
        if self.bad is not None and self.trainer.global_step == self.bad and RANK == 1:
            self.body[0].weight.to_local().detach()[-1, -1] = torch.nan


class Parallel(Net):
    """The same under tensor parallelism: shards of columns and rows, copies, and gradients that are summands."""

    def configure_model(self) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
        from torch.distributed.tensor.placement_types import Shard

        plan = {
            "0": ColwiseParallel(output_layouts=Shard(0)),
            "1": SequenceParallel(sequence_dim=0),
            "3": RowwiseParallel(input_layouts=Shard(0)),
        }
        parallelize_module(self.body, self.device_mesh["tensor_parallel"], plan)


def fit(root: Path, model: Net, *callbacks: Callback) -> Net:
    """Train on two ranks, with `Parallel` on the same batches."""
    parallel = isinstance(model, Parallel)
    sizes = {"data_parallel_size": 1 if parallel else 2, "tensor_parallel_size": 2 if parallel else 1}
    strategy = ModelParallelStrategy(process_group_backend="gloo", **sizes)
    options: dict[str, Any] = {"strategy": strategy, "devices": 2, "use_distributed_sampler": False, "logger": False}
    batches = randn(STEPS, 2, 4, 6, seed=3)[:, 0 if parallel else RANK].float()
    try:
        trainer_of(root, *callbacks, **options).fit(model, loader(*batches))
    finally:
        assert_no_hooks(model)
    return model


def made(make: Callable[[], Net]) -> Net:
    torch.manual_seed(0)
    return make()


def recorded(root: Path, make: Callable[[], Net], *, late: bool = False, beside: bool = False) -> dict[str, Any]:
    """The weights without and with a recorder, and its record."""
    bare = bits(fit(root, made(make)))
    recorder = FlightRecorder(logdir=root / "record", weights=True)
    health = HealthMonitor(loggers=[], every_n_steps=1)
    others = [StatsMonitor(loggers=[]), health] if beside else []
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
        if late:  # as on a GPU
            patch.setattr("lightning_hooks.callbacks._flights.recorder_for", lambda *args: LateRecorder(*args[:3]))
        watched = fit(root, made(make), *others, recorder)
    torch.distributed.barrier()
    record = recorder.record
    return {
        "bits": [bare, bits(watched)],
        "record": None if record is None else json.loads(to_json(record)),
        "files": sorted(path.name for path in (root / "record").rglob("*.json")),
        "findings": [finding.rule for finding in health.findings],
    }


def healthy(root: Path) -> dict[str, Any]:
    nets: dict[str, Callable[[], Net]] = {
        "even": Net,
        "uneven": partial(Net, 3),
        "empty": partial(Net, 1),
        "parallel": Parallel,
    }
    found = {}
    for name, make in nets.items():
        for late in (False, True):
            found[f"{name}{', late' * late}"] = recorded(root / name, make, late=late)
        found[f"{name}, beside"] = recorded(root / name, make, beside=True)
    return found


def bad_shard(root: Path) -> dict[str, Any]:
    return {
        f"{name}{', late' * late}": recorded(root / f"{name}{late}", make, late=late)
        for name, make in {"sharded": partial(Net, bad=3), "parallel": partial(Parallel, bad=3)}.items()
        for late in (False, True)
    }


def plain_loop(root: Path) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        redirect_stdout(io.StringIO()),
        instrument(
            model, [StatsMonitor(), health := HealthMonitor(), FlightRecorder()], optimizer=optimizer, folder=root
        ) as watched,
    ):
        for batch in randn(STEPS, 4, 6, seed=3).float():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            watched.note_loss(loss)
            loss.backward()
            optimizer.step()
    torch.distributed.barrier()
    told = json.loads((root / "summary.json").read_text())
    return {"findings": [finding.rule for finding in health.findings], "could not": told["could_not_run"]["DeadUnits"]}
