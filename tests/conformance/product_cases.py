"""What runs on each of four ranks: products of parallelism and options. `test_products.py` says what must come of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch, assert_no_hooks
from lightning_hooks.stats import ranks
from lightning_hooks.stats.statistics import NAMES
from lightning_hooks.transforms import ClipByValue, Scale
from tests.callbacks.models import trainer_of
from tests.conformance._tools import Book, loader, randn

WORLD, BATCH, FEATURES, STEPS = 4, 8, 6, 2
PARALLEL = {"ddp": (4, 1), "fsdp2": (4, 1), "tp": (1, 4), "ddp_tp": (2, 2), "fsdp2_tp": (2, 2)}
"""The sizes of the data-parallel and of the tensor-parallel groups."""
OPTIONS = ("plain", "accumulation", "bf16-mixed", "checkpointing", "compile")
CASES = [f"{parallel}|{option}" for parallel in PARALLEL for option in OPTIONS]


class Block(nn.Module):
    """7 features cannot be divided by four, so that shards are uneven; 8 can, as tensor parallelism needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down, self.norm = nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 7), nn.LayerNorm(7)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.down(self.act(self.up(x))))


class Net(LightningModule):
    """A regression with a mean loss, whose block is sharded, split, checkpointed or compiled."""

    def __init__(self, parallel: str | None = None, option: str = "plain") -> None:
        super().__init__()
        self.parallel, self.option = parallel, option
        self.block = Block()
        self.head = nn.Linear(7, 3)

    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        parallel = self.parallel or "ddp"
        if parallel.endswith("tp"):
            mesh = self.device_mesh["tensor_parallel"]
            parallelize_module(self.block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if parallel.startswith("fsdp2"):
            mesh = self.device_mesh["data_parallel"]
            for layer in (self.block, self.head):
                fully_shard(layer, mesh=mesh)
        if self.option == "compile" and self.parallel:
            self.block.compile(backend="aot_eager")

    def on_after_backward(self) -> None:
        if self.parallel == "ddp_tp":  # DDP itself knows no DTensors
            group = self.device_mesh["data_parallel"].get_group()
            for parameter in self.parameters():
                average(parameter, group)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        checkpointed = self.option == "checkpointing" and self.parallel
        hidden = checkpoint(self.block, x, use_reentrant=False) if checkpointed else self.block(x)
        return nn.functional.mse_loss(self.head(hidden).float() if x.dtype == torch.float32 else self.head(hidden), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, foreach=False)


def average(parameter: nn.Parameter, group: Any) -> None:
    """As DDP averages gradients over replicas."""
    gradient: Any = parameter.grad
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    dist.all_reduce(local, group=group)
    local /= group.size()


def whole_batches(dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    """What all ranks see together."""
    x, y = randn(STEPS, BATCH, FEATURES, seed=3), randn(STEPS, BATCH, 3, seed=4)
    return [(a.to(dtype), b.to(dtype)) for a, b in zip(x, y, strict=True)]


def watch() -> list[Watch]:
    stats = [name for name in NAMES if name != "ratio"]
    return [
        Watch(modules="*", select="leaves", tensors=["input", "output", "input_grad", "output_grad"], stats=stats),
        Watch(params="*", tensors=["param", "grad", "final_grad", "update"], stats=list(NAMES)),
    ]


def net(parallel: str | None = None, option: str = "plain") -> Net:
    torch.manual_seed(0)
    return Net(parallel, option)


def fit(root: Path, parallel: str, option: str, *callbacks: Callback) -> Net:
    replicas, shares = PARALLEL[parallel]
    rank = int(os.environ["RANK"]) // shares
    part = slice(rank * BATCH // replicas, (rank + 1) * BATCH // replicas)
    dtype = torch.float32 if option == "bf16-mixed" else torch.float64
    strategy: Any = DDPStrategy(process_group_backend="gloo")
    if parallel != "ddp":
        strategy = ModelParallelStrategy(data_parallel_size=replicas, tensor_parallel_size=shares, process_group_backend="gloo")
    model = net(parallel, option).to(dtype)
    trainer = trainer_of(
        root,
        *callbacks,
        strategy=strategy,
        devices=WORLD,
        use_distributed_sampler=False,
        precision="bf16-mixed" if option == "bf16-mixed" else "32-true",
        accumulate_grad_batches=2 if option == "accumulation" else 1,
    )
    trainer.fit(model, loader(*[(x[part], y[part]) for x, y in whole_batches(dtype)]))
    assert_no_hooks(model)
    return model


def bits(model: nn.Module) -> str:
    """A hash of every number that this rank holds."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        local = value.to_local() if hasattr(value, "to_local") else value
        digest.update(local.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def product(root: Path, parallel: str, option: str) -> dict[str, Any]:
    """The weights with and without a monitor, and what the monitor wrote."""
    ranks.GATHERED = -1  # type: ignore[misc]
    bare = None if option == "compile" else bits(fit(root, parallel, option))  # compiling takes long
    monitor = StatsMonitor(watch(), max_scalars=10**6)
    book = Book(monitor)
    watched = bits(fit(root, parallel, option, monitor, book))
    written = {
        "rows": {str(step): rows for step, rows in book.rows.items()},
        "histograms": {str(s): {tag: list(map(float, h)) for tag, h in named.items()} for s, named in book.histograms.items()},
    }
    return {
        "same": bare in (None, watched),
        "digest": hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest(),
        "written": written if dist.get_rank() == 0 else None,
    }


def reporting() -> tuple[StatsMonitor, GradientTransforms]:
    """Rules on all parameters, of which some are sharded and others not, that are given what a rank holds."""
    rules = [Apply([Scale(0.5), ClipByValue(min=-1e-2, max=1e-2)], params="*")]
    return StatsMonitor([Watch(params="*", tensors=["grad", "final_grad"], stats="norm")]), GradientTransforms(rules)


def reports(root: Path) -> dict[str, Any]:
    """What transforms report, by parallelism."""
    out = {}
    for parallel in PARALLEL:
        monitor, rules = reporting()
        fit(root, parallel, "plain", monitor, rules)
        out[parallel] = monitor.latest
    return out


def _case(parallel: str, option: str) -> Callable[[Path], dict[str, Any]]:
    return lambda root: product(root, parallel, option)


for _name in CASES:
    globals()[_name] = _case(*_name.split("|"))
