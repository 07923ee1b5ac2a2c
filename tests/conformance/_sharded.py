"""Runs with sharded parameters (FSDP2) on the CPU; as a script, one of two ranks, which writes what it saw as JSON.

python -m tests.conformance._sharded FOLDER CASE…
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import Apply, GradientTransforms, HooksError, StatsMonitor, StepConsumer, StepView, Watch, assert_no_hooks
from lightning_hooks.engine.watching.snapshots import Snapshots
from lightning_hooks.stats.units.statistics import NAMES as UNIT_STATS
from lightning_hooks.transforms import (
    EMA,
    AdaptiveClip,
    AddDecayedWeights,
    AddNoise,
    Centralize,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    Context,
    Orthogonalize,
    Scale,
    SkipStep,
    TopK,
    Transform,
    TrustRatio,
)
from tests.conformance._own_hooks import OwnHooks

STATS = ["mean", "std", "norm", "min", "max", "abs_mean", "zero_fraction", "nonfinite", "p50"]


def greatest(tensor: Tensor) -> Tensor:
    return tensor.abs().max()


def fails_here(tensor: Tensor) -> Tensor:
    """Fails on the first of two ranks alone, between gatherings in which both must take part."""
    if torch.distributed.get_rank() == 0 and tensor.numel() == 35:
        raise ValueError("on this rank only")
    return tensor.sum()


class TowardsZero(Transform):
    """Reads the parameters without saying so."""

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        return [tensor + param for tensor, param in zip(tensors, context.params, strict=True)]


class SaysSo(TowardsZero):
    needs_params = True


class Sharded(LightningModule):
    """7 and 5 features: neither can be divided by two, so that shards are uneven."""

    def __init__(self, shards: bool) -> None:
        super().__init__()
        self.shards = shards
        self.body = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))

    def configure_model(self) -> None:
        if self.shards:
            from torch.distributed.fsdp import fully_shard

            mesh = self.device_mesh["data_parallel"]
            for layer in (self.body[0], self.body[2]):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.body, mesh=mesh)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.body(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01, foreach=False)


def monitor(*extra: Any) -> StatsMonitor:
    return StatsMonitor(
        [
            Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=STATS),
            Watch(params="*", tensors=["param", "grad", "final_grad"], stats=[*STATS, greatest]),
            Watch(params="*", tensors=["update", "state.exp_avg_sq", "state.step"], stats=[*STATS, "ratio"]),
            Watch(params="*", tensors="grad", stats=["norm", "cosine"], group_by={"all": "*"}),
            *extra,
        ]
    )


def units() -> list[Callback]:
    kept = UnitsOfRank()
    rules = [
        Watch(modules=["body.0", "body.2"], tensors=["output", "output_grad"], units="auto", every_n_steps=1),
        Watch(modules="extra", tensors="output", units="auto", every_n_steps=1),
    ]
    return [kept, StatsMonitor(rules, consumers=[kept.consumer])]


def applying(*transforms: Any, **where: Any) -> list[Callback]:
    return [GradientTransforms([Apply(list(transforms), **{"params": "*", **where})]), monitor()]


CASES: dict[str, Any] = {
    "watching": lambda: [monitor()],
    "a global norm": lambda: applying(ClipByGlobalNorm(0.01)),
    "each element": lambda: applying(Scale(0.5), ClipByValue(max=0.01)),
    "norms of a tensor": lambda: applying(ClipByNorm(0.02), TrustRatio()),
    "rows and matrices": lambda: applying(AdaptiveClip(0.01), Centralize(), TopK(0.5), Orthogonalize(), params="*.weight"),
    "state and chance": lambda: applying(EMA(), AddNoise(0.01)),
    "a skipped step": lambda: applying(SkipStep(if_norm_above=1e-9)),
    "flowing": lambda: [GradientTransforms([Apply(Scale(0.5), modules="body.0")]), monitor()],
    "parameters read": lambda: applying(SaysSo()),
    "parameters read unasked": lambda: applying(TowardsZero()),
    "gatherings": lambda: [
        GradientTransforms(
            [
                Apply(ClipByNorm(0.02), params="body.0.weight"),
                Apply(TrustRatio(), params="body.2.weight"),
                Apply([Scale(0.5), AddDecayedWeights(0.1)], params="*.bias"),
            ]
        ),
        Gatherings(),
    ],
    "own hooks": lambda: [OwnHooks("body.0", "body.2", param_grad=False), monitor()],
    "own hooks on gradients": lambda: [OwnHooks("body.0", "body.2")],
    "backward": lambda: applying(Scale(0.5), when="backward"),
    "a failure": lambda: [
        StatsMonitor([Watch(params="*", tensors=["param", "update"], stats=["mean", fails_here, greatest])], on_error="warn")
    ],
    "a failure to copy": lambda: [
        CannotCopy(),
        StatsMonitor([Watch(params="*", tensors="update", stats=["mean", greatest])], on_error="warn"),
    ],
    "metrics": lambda: [StatsMonitor([Watch(params="*", tensors="param", stats=["mean", "torchmetrics.SumMetric"])])],
    "units": units,
    "micro-batches": lambda: [monitor(Watch(params="*", tensors="grad", stats="noise_scale"))],
}


class CannotCopy(Callback):
    """On the first of two ranks alone there is no memory for copies of parameters."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        def take(*of: Any) -> Any:
            if trainer.global_rank == 0:
                raise MemoryError("on this rank only")
            return self.kept(*of)

        self.kept, Snapshots.take = Snapshots.take, take  # type: ignore[assignment, method-assign]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        Snapshots.take = self.kept  # type: ignore[method-assign]


class Gatherings(Callback):
    """Which gradients and parameters are gathered from all ranks, and how often."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from torch.distributed.tensor import DTensor

        self.kept = DTensor.full_tensor
        counts, gather = self.counts, DTensor.full_tensor

        def full_tensor(tensor: Any, *args: Any, **options: Any) -> Tensor:
            at = tensor.to_local().data_ptr()
            for name, parameter in pl_module.named_parameters():
                for what, held in (("param", parameter), ("grad", parameter.grad)):
                    if held is not None and held.to_local().data_ptr() == at:
                        counts[f"{what} of {name}"] = counts.get(f"{what} of {name}", 0) + 1
            return gather(tensor, *args, **options)

        DTensor.full_tensor = full_tensor

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from torch.distributed.tensor import DTensor

        DTensor.full_tensor = self.kept


class UnitsOfRank(Callback):
    """What each step measured: the tensors of this rank, and the statistics of units that the monitor published.

    The last of two ranks alone calls the module `extra`.
    """

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.values: list[dict[str, dict[str, float]]] = []
        self.consumer = UnitValues(self.values)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pl_module.extra = nn.Identity()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        def keep(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Tensor) -> None:
                kept = self.tensors[-1]
                kept[f"output/{name}"] = output.tolist()
                output.register_hook(lambda grad: kept.update({f"output_grad/{name}": grad.tolist()}))
                if name == "body.0" and trainer.global_rank == trainer.world_size - 1:
                    kept["output/extra"] = pl_module.extra(output).tolist()  # type: ignore[operator]

            return hook

        for name in ("body.0", "body.2"):
            pl_module.get_submodule(name).register_forward_hook(keep(name))

    def on_train_batch_start(self, *args: Any) -> None:
        self.tensors.append({})


class UnitValues(StepConsumer):
    """Appends the statistics of units of each step to a list."""

    def __init__(self, values: list[dict[str, dict[str, float]]]) -> None:
        self.values = values

    def consume(self, view: StepView) -> None:
        step: dict[str, dict[str, float]] = {}
        for tensor in ("output", "output_grad"):
            for stat in UNIT_STATS:
                series = view.stat(tensor, stat)
                for name, value in zip(series.names, series.values.tolist(), strict=True):
                    step.setdefault(f"{tensor}/{name}", {})[stat] = value
        self.values.append(step)


class Keep(Callback):
    """Every record, and the parameters at the end."""

    def __init__(self) -> None:
        self.records: list[dict[str, float]] = []
        self.weights: dict[str, list[float]] = {}

    def on_before_zero_grad(self, trainer: Any, pl_module: LightningModule, optimizer: Any) -> None:
        for callback in trainer.callbacks:
            if isinstance(callback, StatsMonitor) and callback.latest:
                self.records.append(callback.latest)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, parameter in pl_module.named_parameters():
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            self.weights[name] = whole.detach().flatten().tolist()


def main(folder: str, *cases: str) -> None:
    """Run the cases one after the other, and write what they saw by their names."""
    torch.set_num_threads(1)
    rank = int(os.environ["LOCAL_RANK"])
    found = {case: run(case, Path(folder), 2, rank) for case in cases}
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(found))
    torch.distributed.barrier()  # leave together: one that is left alone may be aborted
    sys.stdout.flush()
    # What was to be seen is written. torch's threads do not always outlive the ordinary end of a process (`terminate called
    # without an active exception`), in which nothing of ours takes part.
    os._exit(0)


def run(case: str, folder: Path, ranks: int, rank: int) -> dict[str, Any]:
    """Train 4 steps, one batch of 8 rows together, on one process or sharded over two."""
    torch.manual_seed(0)
    model, keep = Sharded(ranks > 1), Keep()
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 7, generator=generator) for _ in range(4)]
    mine = [batch.chunk(ranks)[rank] for batch in batches]
    strategy: Any = "auto"
    if ranks > 1:
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    callbacks = [*CASES[case](), keep]
    trainer = Trainer(
        default_root_dir=folder,
        callbacks=callbacks,
        accelerator="cpu",
        devices=ranks,
        strategy=strategy,
        max_epochs=1,
        logger=False,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    error = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trainer.fit(model, DataLoader(mine, batch_size=None))
        except HooksError as refused:
            error = f"{type(refused).__name__}: {refused}"
    assert_no_hooks(model)
    latest = next((c.latest for c in callbacks if isinstance(c, StatsMonitor)), {})
    counts = next((c.counts for c in callbacks if isinstance(c, Gatherings)), {})
    hooks = next((c.seen for c in callbacks if isinstance(c, OwnHooks)), {})
    of_units = next(({"tensors": c.tensors, "values": c.values} for c in callbacks if isinstance(c, UnitsOfRank)), {})
    return {
        "records": [*keep.records, latest],
        "weights": keep.weights,
        "error": error,
        "gathered": counts,
        "hooks": hooks,
        "units": of_units,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
