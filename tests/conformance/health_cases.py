"""What runs on each rank with a `HealthMonitor`; `test_health.py` says what must come of it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor, nn

from lightning_hooks import HealthMonitor, StatsMonitor, assert_no_hooks
from lightning_hooks.health import Finding
from tests import late_copies
from tests.callbacks.models import trainer_of
from tests.conformance._tools import loader, randn
from tests.conformance.product_cases import bits
from tests.engine.lookouts.faulty import STEPS as FAULTY_STEPS
from tests.engine.lookouts.faulty import Faulty, faulty_batch

RANK = int(os.environ.get("LOCAL_RANK", "0"))
BATCH, FEATURES = 4, 6  # of one rank
SAID = ("Healthy", "No problem found", "Not healthy", "WARNING", "CRITICAL")
"""How the lines begin that a `HealthMonitor` prints."""
FIRST_BATCHES = [("automatic", False, False), ("manual", True, False), ("exchanging", False, True), ("both", True, True)]
"""Name, whether optimization is manual, and whether the step exchanges a tensor, of the fits whose first batch is checked."""
AMONG = {"alone": False, "beside": True}
"""Whether a `StatsMonitor` is beside the `HealthMonitor`, by the name of the case."""


class Net(LightningModule):
    """A regression that learns; 7 hidden features cannot be divided by two, so that shards are uneven."""

    def __init__(self, sharded: bool = False, unused: bool = False) -> None:
        super().__init__()
        self.sharded = sharded
        self.body = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, 3))
        if unused:
            self.spare = nn.Linear(FEATURES, 3)

    def configure_model(self) -> None:
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            for layer in (self.body[0], self.body[2], self.body):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.body(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01, foreach=False)


class Forgotten(Net):
    """The optimizer does not hold the last layer: on every rank, or on one alone."""

    def __init__(self, rank: int | None = None) -> None:
        super().__init__()
        self.rank = rank

    def configure_optimizers(self) -> Any:
        forgets = self.rank in (None, RANK)
        return torch.optim.SGD((self.body[0] if forgets else self.body).parameters(), lr=0.1)


class Sick(Net):
    """The loss of the last rank alone is not finite from a batch on."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * float("inf") if batch_idx >= 3 and RANK == 1 else loss


class Perturbed(Net):
    """The weights of the last layer change on the last rank alone."""

    @torch.no_grad()
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3 and RANK == 1:
            self.body[2].weight += 0.01


class Random(Net):
    """A batch norm and dropout, and if it exchanges, a tensor of the other rank in the loss."""

    def __init__(self, manual: bool = False, exchanges: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = not manual
        self.exchanges = exchanges
        self.body = nn.Sequential(nn.Linear(FEATURES, 7), nn.BatchNorm1d(7), nn.Dropout(), nn.Linear(7, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.exchanges:
            loss = loss + 0.0 * self.all_gather(batch[0].mean()).sum()
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss


class FaultyData(LightningModule):
    """Other data on each rank, with the faults of `test_everywhere`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Faulty()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = faulty_batch(batch_idx, seed=RANK)
        loss: Tensor = self.net(x)["loss"]
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-9)


class Fails(Forgotten):
    """The training step of the last rank alone raises."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 20 and RANK == 1:
            raise ValueError("on this rank only")
        return super().training_step(batch, batch_idx)


def batches(steps: int) -> Any:
    """The half of each batch that this rank sees; the targets can be learned."""
    x, weights = randn(steps, 2, BATCH, FEATURES, seed=3)[:, RANK].float(), randn(FEATURES, 3, seed=4).float()
    return loader(*[(each, each @ weights) for each in x])


def fit(folder: Path, make: Callable[[], LightningModule], steps: int, *callbacks: Callback, **options: Any) -> Any:
    """Train on two ranks; the model and its Trainer."""
    torch.manual_seed(0)
    model = make()
    strategy = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=20), **options.pop("ddp", {}))
    settings = {"strategy": strategy, "devices": 2, "use_distributed_sampler": False, **options}
    trainer = trainer_of(folder, *callbacks, **settings)
    try:
        trainer.fit(model, batches(steps))
    finally:
        assert_no_hooks(model)
    return model, trainer


def monitors(beside: bool, **options: Any) -> tuple[HealthMonitor, list[Callback]]:
    monitor = HealthMonitor(loggers=[] if beside else "all", **options)
    return monitor, [StatsMonitor(loggers=[]), monitor] if beside else [monitor]


def bits_of(folder: Path, make: Callable[[], LightningModule], **options: Any) -> dict[str, str]:
    """A hash of the weights without a monitor, with one alone, and beside another."""
    found = {"bare": bits(fit(folder, make, 12, **options)[0])}
    for name, beside in AMONG.items():
        found[name] = bits(fit(folder, make, 12, *monitors(beside)[1], **options)[0])
    return found


class Notes(Callback):
    """The steps at which checkpoints are saved."""

    def __init__(self) -> None:
        self.saved: list[int] = []

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.saved.append(trainer.global_step)


def told(folder: Path, make: Callable[[], LightningModule], steps: int, beside: bool, **actions: Any) -> dict[str, Any]:
    """What a fit found, printed and did on this rank."""
    calls: list[Any] = []

    def note(finding: Finding) -> None:
        calls.append([finding.rule, list(finding.rows), finding.first_step, finding.last_step])

    actions = {severity: ["warn", note] for severity in ("warning", "critical")} | {k: [*v, note] for k, v in actions.items()}
    monitor, callbacks = monitors(beside, actions=actions)
    notes, logger = Notes(), TensorBoardLogger(folder, name="run", version=0)
    error, out, trainer = "", io.StringIO(), None
    with redirect_stdout(out), redirect_stderr(out):
        try:
            _, trainer = fit(folder, make, steps, *callbacks, notes, logger=logger)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return {
        "calls": calls,
        "findings": [finding.to_dict() for finding in monitor.findings],
        # The words on the first number that is not finite are those of each rank, which notes its own calls.
        "causes": [[cause.name, cause.first_step, *cause.numbers] for cause in monitor.causes],
        "line": monitor.summary["line"],
        "printed": [line for line in out.getvalue().splitlines() if line.startswith(SAID)],
        "saved": notes.saved,
        "stopped": None if trainer is None else trainer.global_step,
        "error": error,
        "folder": str(logger.log_dir),
    }


def each(folder: Path, *args: Any, **actions: Any) -> dict[str, Any]:
    """What is told by a monitor alone, and by one beside another."""
    return {name: told(folder / name, *args, beside, **actions) for name, beside in AMONG.items()}


# -- cases -----------------------------------------------------------------------------------------------------------------


def same_bits(root: Path) -> dict[str, Any]:
    return {
        "plain": bits_of(root, Net),
        "accumulation": bits_of(root, Net, accumulate_grad_batches=2),
        "unused": bits_of(root, lambda: Net(unused=True), ddp={"find_unused_parameters": True}),
    }


def first_batch(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, manual, exchanges in FIRST_BATCHES:
        make = partial(Random, manual, exchanges)
        monitor = HealthMonitor(loggers=[], check_first_batch=True)
        bare = bits(fit(root, make, 6)[0])
        checked = bits(fit(root, make, 6, monitor)[0])
        report = monitor.check_report
        found[name] = {
            "bits": [bare, checked],
            "report": None if report is None else {each.check: [each.status, each.message] for each in report},
            "notes": None if report is None else list(report.notes),
        }
    calls: list[Any] = []
    actions = {"NotInOptimizer": ["stop", lambda finding: calls.append([finding.fingerprint, finding.first_step])]}
    monitor = HealthMonitor(loggers=[], check_first_batch=True, actions=actions)
    _, trainer = fit(root, Forgotten, 6, monitor)
    found["fault"] = {"calls": calls, "stopped": trainer.global_step, "findings": [each.to_dict() for each in monitor.findings]}
    return found


def healthy(root: Path) -> dict[str, Any]:
    return {"beside": told(root, Net, 104, True)}


def forgotten(root: Path) -> dict[str, Any]:
    return each(root, Forgotten, 30)


def acts(root: Path) -> dict[str, Any]:
    return each(root, Sick, 20, NonFinite=["checkpoint", "stop"])


def replicas(root: Path) -> dict[str, Any]:
    return each(root, Perturbed, 120, ReplicasDiffer=["stop"])


def forgotten_on_one_rank(root: Path) -> dict[str, Any]:
    found = {}
    for how in ("at once", "late"):
        with pytest.MonkeyPatch.context() as patch:
            if how == "late":
                late_copies.install(patch)
            for rank in range(2):
                name = f"{how}, rank {rank}"
                found[name] = told(root / name, partial(Forgotten, rank), 12, True, NotInOptimizer=["checkpoint", "stop"])
    return found


def faulty_data(root: Path) -> dict[str, Any]:
    return {"bits": bits_of(root, FaultyData), "told": told(root, FaultyData, FAULTY_STEPS, True)}


def fails(root: Path) -> dict[str, Any]:
    return told(root, Fails, 40, True)


def sharded(root: Path) -> dict[str, Any]:
    def make() -> Net:
        return Net(sharded=True)

    def strategy() -> Any:
        return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")

    found: dict[str, Any] = {"bare": bits(fit(root, make, 12, strategy=strategy())[0])}
    for name, beside in AMONG.items():
        monitor, callbacks = monitors(beside)
        found[name] = bits(fit(root, make, 12, *callbacks, strategy=strategy())[0])
        found[f"findings {name}"] = [finding.to_dict() for finding in monitor.findings]
    return found
