"""What runs on each rank of the data-parallel rows; `test_ddp.py` says what must come of it."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from examples.singular_value import LargestSingularValue
from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    GradientTransforms,
    HooksError,
    RunContext,
    StatsMonitor,
    StepConsumer,
    StepView,
    Watch,
    assert_no_hooks,
    instrument,
)
from lightning_hooks.stats.units.statistics import NAMES as UNIT_STATS
from lightning_hooks.transforms import AddNoise, Context, Scale, SkipStep, Transform
from tests import late_copies
from tests.callbacks.models import trainer_of
from tests.conformance._own_hooks import OwnHooks, weights_of
from tests.conformance._tools import Book, Spy, everything, loader, randn

BATCH, FEATURES = 4, 6  # of one rank


class Net(LightningModule):
    """A regression with a mean loss."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.body(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class ValNet(Net):
    """With a validation step."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.body(batch[0])


def net(dropout: float = 0.0) -> Net:
    torch.manual_seed(0)
    return Net(dropout)


def whole_batches(steps: int, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    """What all ranks see together."""
    x, y = randn(steps, 2 * BATCH, FEATURES, seed=3), randn(steps, 2 * BATCH, 3, seed=4)
    return [(a.to(dtype), b.to(dtype)) for a, b in zip(x, y, strict=True)]


def rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def mine(steps: int, dtype: torch.dtype = torch.float32) -> Any:
    """The half of each batch that this rank sees."""
    part = slice(rank() * BATCH, (rank() + 1) * BATCH)
    return loader(*[(x[part], y[part]) for x, y in whole_batches(steps, dtype)])


def fit(root: Path, model: LightningModule, data: Any, *callbacks: Callback, **options: Any) -> Any:
    settings = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False, **options}
    trainer = trainer_of(root, *callbacks, **settings)
    trainer.fit(model, data)
    assert_no_hooks(model)
    return trainer


def bits(model: nn.Module) -> str:
    """A hash of every number of a model."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def written(book: Book) -> dict[str, Any]:
    return {
        "rows": {str(step): rows for step, rows in book.rows.items()},
        "histograms": {str(s): {tag: list(map(float, h)) for tag, h in named.items()} for s, named in book.histograms.items()},
    }


# -- cases -----------------------------------------------------------------------------------------------------------------


def numbers(root: Path, accumulate: int = 1, **options: Any) -> dict[str, Any]:
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    data = mine(4, torch.float64)
    fit(root, net(), data, monitor, book, precision="64-true", accumulate_grad_batches=accumulate, **options)
    return written(book)


def histograms_at_some_steps(root: Path) -> dict[str, Any]:
    monitor = StatsMonitor(histogram_every_n_steps=2)
    book = Book(monitor)
    fit(root, net(), mine(4), monitor, book)
    return {str(step): {tag: float(counts.sum()) for tag, counts in named.items()} for step, named in book.histograms.items()}


def numbers_accumulated(root: Path) -> dict[str, Any]:
    return numbers(root, 2)


def numbers_static_graph(root: Path) -> dict[str, Any]:
    from lightning.pytorch.strategies import DDPStrategy

    return numbers(root, strategy=DDPStrategy(static_graph=True, gradient_as_bucket_view=True))


def watching_changes_nothing(root: Path) -> dict[str, Any]:
    def run(*callbacks: Callback) -> str:
        model = net(dropout=0.5)
        torch.manual_seed(10 + rank())
        fit(root, model, mine(5), *callbacks, accumulate_grad_batches=2)
        return bits(model)

    watched = run(StatsMonitor(everything(), max_scalars=10**6))
    spies = [Apply(Spy(), params="*"), Apply(Spy(), params="*", when="backward"), Apply(Spy(), modules="*")]
    return {"bare": run(), "watched": watched, "changed": run(GradientTransforms(spies), StatsMonitor(everything()))}


class Calls(Callback):
    """Counts, for each batch, the collectives that lightning_hooks starts."""

    COLLECTIVES: ClassVar = (
        *("all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object", "all_reduce", "barrier", "reduce"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "scatter", "reduce_scatter", "all_to_all"),
    )

    def __init__(self) -> None:
        self.counts: dict[str, list[str]] = {}
        self.at = "start"
        self.originals = {name: getattr(dist, name) for name in self.COLLECTIVES if hasattr(dist, name)}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.at = str(batch_idx)
        self.counts[self.at] = []

    def on_train_end(self, *args: Any) -> None:
        self.at = "end"

    def __enter__(self) -> Calls:
        for name, function in self.originals.items():
            setattr(dist, name, self._counted(name, function))
        return self

    def __exit__(self, *args: Any) -> None:
        for name, function in self.originals.items():
            setattr(dist, name, function)

    def _counted(self, name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            frame: Any = sys._getframe(1)
            while frame is not None and not frame.f_globals.get("__name__", "").startswith("lightning_hooks."):
                frame = frame.f_back
            if frame is not None:
                self.counts.setdefault(self.at, []).append(name)
            return function(*args, **kwargs)

        return call


def collectives(root: Path) -> dict[str, Any]:
    out = {}
    for every, accumulate in ((1, 1), (3, 1), (1, 2)):
        with Calls() as calls:
            monitor = StatsMonitor(everything(), every_n_steps=every)
            rules = GradientTransforms([Apply(AddNoise(0.1), params="*"), Apply(Scale(0.5), modules="*")])
            fit(root, net(), mine(6), calls, monitor, rules, accumulate_grad_batches=accumulate)
        out[f"{every},{accumulate}"] = [len(calls.counts[str(batch)]) for batch in range(6)]
    return out


def random(root: Path) -> dict[str, Any]:
    out = {}
    for stage in ("step", "backward"):
        torch.manual_seed(100 + rank())  # ranks that were seeded apart
        model, seen = Net(), Spy()
        rules = GradientTransforms([Apply([AddNoise(0.1), seen], params="*", when=stage)])
        fit(root, model, mine(20), rules, StatsMonitor())
        given = [t.tolist() for named in seen.seen.values() for tensors in named.values() for t in tensors]
        out[stage] = {"weights": bits(model), "given": hashlib.sha256(repr(given).encode()).hexdigest()}
    return out


def random_in_a_loop(root: Path) -> dict[str, Any]:
    """The same in a plain loop, with torch's own DDP."""
    out = {}
    for stage in ("step", "backward"):
        model = net()
        replica = nn.parallel.DistributedDataParallel(model.body)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(100 + rank())  # ranks that were seeded apart
        seen = Spy()
        with instrument(
            replica, [GradientTransforms([Apply([AddNoise(0.1), seen], params="*", when=stage)])], optimizer=optimizer
        ):
            for x, _ in mine(3):
                optimizer.zero_grad()
                replica(x).square().mean().backward()
                optimizer.step()
        given = [t.tolist() for named in seen.seen.values() for tensors in named.values() for t in tensors]
        out[stage] = {"weights": bits(model), "given": hashlib.sha256(repr(given).encode()).hexdigest()}
    return out


def on_one_device(root: Path) -> dict[str, Any]:
    """Each rank trains by itself, one longer than the other, in the process group that a fit before has left."""
    fit(root, net(), mine(1))
    assert dist.get_world_size() == 2
    sums: list[float] = []

    class Note(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: LightningModule, optimizer: Any) -> None:
            sums.append(pl_module.body[0].weight.double().sum().item())

    torch.manual_seed(rank())
    rule = Watch(params="body.0.weight", tensors="param", stats=["mean", "torchmetrics.SumMetric"])
    keeps = Keeps()
    monitor = StatsMonitor([rule, Watch(modules="*", stats="mean")], stages=["train", "validate"], consumers=[keeps])
    skips = GradientTransforms([Apply(SkipStep(if_norm_above=1e9), params="*")])
    model = ValNet()
    fit(root, model, mine(2 + rank()), monitor, skips, Note(), strategy="auto", devices=1)
    latest = monitor.latest
    if rank() == 0:
        trainer_of(root, monitor).validate(model, mine(1), verbose=False)
        with instrument(
            model, [GradientTransforms([Apply(Scale(0.5), params="*")])], optimizer=torch.optim.SGD(model.parameters())
        ):
            pass  # neither watches nor draws random numbers
    return {"sums": sums, "latest": latest, "seen": keeps.seen}


def stages(root: Path) -> dict[str, Any]:
    """What rules of each stage are given, with other data on each rank."""
    spies = {"step": Spy(), "backward": Spy()}
    rules = [Apply(spy, params="body.0.weight", when=stage) for stage, spy in spies.items()]
    fit(root, net(), mine(3, torch.float64), GradientTransforms(rules), precision="64-true")
    return {stage: [t["body.0.weight"][0].tolist() for t in spy.seen.values()] for stage, spy in spies.items()}


def files(root: Path) -> dict[str, Any]:
    monitor = StatsMonitor(everything())
    fit(root, net(), mine(3), monitor, logger=TensorBoardLogger(root, name="run", version=0))
    dist.barrier()
    return {"files": sorted(path.name for path in root.rglob("events*")), "latest": monitor.latest["run/grad_norm"]}


class Keeps(StepConsumer):
    """Keeps a digest of every view."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []

    def consume(self, view: StepView) -> None:
        kept = [view.moments, *(view.kept[name] for name in sorted(view.kept))]
        digest = hashlib.sha256(b"".join(each.tobytes() for each in kept)).hexdigest()
        summaries = {tag: value for tag, value in view.summaries.items() if tag != "run/overhead"}
        self.seen.append([view.step, digest, summaries, view.ranks])


def consumers(root: Path) -> dict[str, Any]:
    keeps = Keeps()
    fit(root, net(), mine(3), StatsMonitor(everything(), consumers=[keeps]))
    return {"seen": keeps.seen}


class Acts(StepConsumer):
    """Asks for a checkpoint at the view of step 1, and to stop at that of step 3; notes at which step of the Trainer it did."""

    def start(self, rows: Any, run: RunContext) -> None:
        self.run = run

    def consume(self, view: StepView) -> None:
        if view.step == 1:
            self.run.save_checkpoint("spike")
        if view.step == 3:
            self.run.stop("enough")


class ReadsOnOneRank(Callback):
    """Publishes the view of the last step on rank 0 alone, before the copy from a device has arrived."""

    def __init__(self, monitor: StatsMonitor) -> None:
        self.monitor = monitor
        self.saved: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_rank == 0:
            self.monitor.latest  # noqa: B018

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.saved.append(trainer.global_step)


def consumers_act(root: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for how in ("at once", "late"):
        with pytest.MonkeyPatch.context() as patch:
            if how == "late":
                late_copies.install(patch)
            for every in (1, 2):
                folder = root / f"{how}{every}"
                folder.mkdir(exist_ok=True)
                acts = Acts()
                rules = [Apply(Scale(0.5), params="*")]
                monitor = StatsMonitor(everything(), every_n_steps=every, consumers=[acts])
                reads = ReadsOnOneRank(monitor)
                model = net()
                trainer = fit(folder, model, mine(8), GradientTransforms(rules), monitor, reads)
                ended = {"stopped_at": trainer.global_step, "saved_at": reads.saved, "weights": bits(model)}
                dist.barrier()
                known = {"folder": str(acts.run.folder), "files": sorted(path.name for path in folder.glob("*.ckpt"))}
                out[f"{how}, every {every}"] = {**ended, **known, "ranks": acts.run.facts.ranks}
    return out


def own_accumulator(root: Path) -> dict[str, Any]:
    """The largest singular value of the outputs of both ranks together, over two micro-batches, and those outputs."""
    outputs: list[Any] = []
    model = net()
    model.body[0].register_forward_hook(lambda module, args, output: outputs.append(output.detach().double().tolist()))
    rule = Watch(modules="body.0", tensors="output", stats=[LargestSingularValue(features=model.body[0].out_features)])
    keeps = KeepsValues()
    fit(
        root,
        model,
        mine(2, torch.float64),
        StatsMonitor([rule], consumers=[keeps]),
        precision="64-true",
        accumulate_grad_batches=2,
    )
    return {"values": keeps.values, "outputs": outputs}


def units(root: Path) -> dict[str, Any]:
    """Statistics of units of both ranks together, over two micro-batches, and the outputs; one module runs on one rank."""
    outputs: list[Any] = []
    model = net()
    model.body[0].register_forward_hook(lambda module, args, output: outputs.append(output.detach().double().tolist()))
    model.extra = nn.Identity()
    if rank() == 1:
        model.body[0].register_forward_hook(lambda module, args, output: model.extra(output))
    keeps: dict[str, Any] = {}

    class Last(StepConsumer):
        def consume(self, view: StepView) -> None:
            for stat in UNIT_STATS:
                found = view.stat("output", stat)
                keeps[stat] = dict(zip(found.names, found.values.tolist(), strict=True))

    rule = Watch(modules=["body.0", "extra"], tensors="output", units="auto", every_n_steps=1)
    monitor = StatsMonitor([rule], consumers=[Last()])
    fit(root, model, mine(4, torch.float64), monitor, precision="64-true", accumulate_grad_batches=2)
    return {"values": keeps, "outputs": outputs[-2:]}


class KeepsValues(StepConsumer):
    """Keeps one statistic of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def consume(self, view: StepView) -> None:
        self.values.append(view.stat("output", "largest_singular_value").values.item())


def own_hooks(root: Path) -> dict[str, Any]:
    model, hooks = net(), OwnHooks("body.0", "body.3")
    fit(root, model, mine(4, torch.float64), hooks, precision="64-true")
    return {"seen": hooks.seen, "weights": weights_of(model)}


class OneLayer(LightningModule):
    """The gradient of its weight is the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1, bias=False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def pairs(root: Path) -> dict[str, Any]:
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats=["norm", "cosine", "micro_cosine", "noise_scale"])])
    book = Book(monitor)
    fit(root, OneLayer(), mine(6, torch.float64), monitor, book, accumulate_grad_batches=2, precision="64-true")
    return written(book)["rows"]


@dataclass(frozen=True)
class SkipHere(Transform):
    """One rank alone asks to skip one step."""

    needs_step: ClassVar[bool] = True

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        if rank() == 1 and context.step == 1:
            context.skip_step()
        return list(tensors)


def one_rank_skips(root: Path) -> dict[str, Any]:
    weights: list[str] = []

    class Note(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: LightningModule, *args: Any) -> None:
            weights.append(bits(pl_module))

    monitor = StatsMonitor()
    book = Book(monitor)
    fit(root, net(), mine(4), monitor, GradientTransforms([Apply(SkipHere(), params="*")]), book, Note())
    return {
        "weights": weights,
        "updates": book.steps_of("update_norm/body.0.weight"),
        "skipped": book.values("run/skipped_steps"),
    }


class Branches(LightningModule):
    """Each rank calls its own branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, 3)
        self.branches = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.branches[rank()](self.stem(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def other_modules_on_each_rank(root: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model, seen = Branches(), []
    for branch in model.branches:
        branch.register_forward_hook(lambda m, a, out: seen.append(out.detach().double().norm().item()))
    monitor = StatsMonitor([Watch(modules="branches.*", tensors=["output", "output_grad"], stats=["norm"])])
    fit(root, model, mine(1), monitor, strategy="ddp_find_unused_parameters_true")
    return {"norm": seen[-1], "latest": monitor.latest}


def other_rules_on_each_rank(root: Path) -> dict[str, Any]:
    """Rules that a script makes by rank, of which the tables have the same size or not; and a schedule."""
    rules: dict[str, tuple[Any, Any]] = {
        "names": ({"modules": "body.0"}, {"modules": "body.1"}),
        "sizes": ({"modules": "body.0"}, {"modules": "body.*"}),
        "schedules": ({"modules": "body.0"}, {"modules": "body.0", "every_n_steps": 2}),
        "nothing": ({"modules": "body.0"}, {"modules": "absent", "strict": False}),
        "groups": ({"modules": "body.0", "group_by": 1}, {"modules": "body.0", "group_by": 1, "stats": "histogram"}),
    }
    out = {}
    for name, each in rules.items():
        monitor = StatsMonitor([Watch(tensors="output", **{"stats": "mean", **each[rank()]})])
        try:
            fit(root, net(), mine(2), monitor)
        except HooksError as error:
            out[name] = f"{type(error).__name__}: {error}"
    try:
        instrument(net(), [StatsMonitor([Watch(tensors="output", **rules["nothing"][rank()])])])
    except HooksError as error:
        out["a loop"] = f"{type(error).__name__}: {error}"
    return out


def no_batches_on_one_rank(root: Path) -> dict[str, Any]:
    """Rank 1 has nothing to validate, which Lightning allows where a module says so, and skips the run without a callback."""

    def run(function: str, stages: list[str], *callbacks: Callback) -> str:
        model = ValNet()
        model.allow_zero_length_dataloader_with_multiple_devices = True
        settings = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
        trainer = trainer_of(root, *callbacks or [StatsMonitor([Watch(modules="body.*")], stages=stages)], **settings)
        data = [mine(2), mine(2) if rank() == 0 else loader()] if function == "fit" else [mine(1)]
        try:
            getattr(trainer, function)(model, *data)
        except HooksError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            assert_no_hooks(model)
        return ""

    adds = Apply(AddNoise(0.1), modules="body.0", stages=["validate"])
    return {
        "training": run("fit", ["train", "predict"]),
        "a fit": run("fit", ["train", "validate"]),
        "a validation": run("validate", ["validate"]),
        "a transform": run("validate", [], ActivationTransforms([adds])),
        "a capture": run("validate", [], ActivationCapture("body.0", stages=["validate"])),
        "a folder": run("validate", [], ActivationCapture("body.0", stages=["validate"], folder=root / "kept")),
    }


def reports_of_two_optimizers(root: Path) -> list[float]:
    """The norm that a rule reports of a sharded parameter and one that is not, stepped by one optimizer or by two."""
    mesh, out = init_device_mesh("cpu", (2,)), []
    for held in ("ab",), ("a", "b"), ("b", "a"):
        model = nn.Module()
        model.a = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
        model.b = nn.Parameter(torch.ones(4))
        optimizers = [torch.optim.SGD([getattr(model, name) for name in names]) for names in held]
        with instrument(model, [GradientTransforms([Apply(Scale(0.5), params="*")])], optimizer=optimizers) as watched:
            for parameter in model.parameters():
                parameter.grad = parameter.detach().clone()
            for optimizer in optimizers:
                optimizer.step()
        out.append(watched.latest["transform_norm_before/0_Scale"])
    return out


class Report(Callback):
    """Writes what a rank of a spawned run saw, since nothing of it comes back otherwise."""

    def __init__(self, root: Path, book: Book) -> None:
        self.root = root
        self.book = book

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        import json

        assert dist.get_world_size() == 2
        (self.root / f"spawned{trainer.global_rank}.json").write_text(json.dumps(written(self.book)))


class Halves(LightningModule):
    """As `Net`; each rank takes its half of the whole batch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net().body

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        part = slice(self.global_rank * BATCH, (self.global_rank + 1) * BATCH)
        return nn.functional.mse_loss(self.body(batch[0][part]), batch[1][part])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def spawned(root: Path) -> dict[str, Any]:
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK"):
        os.environ.pop(name, None)
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    rules = GradientTransforms([Apply(Scale(1.0), params="*"), Apply(Scale(1.0), params="*", when="backward")])
    data = loader(*whole_batches(4))
    fit(root, Halves(), data, monitor, rules, book, Report(root, book), strategy="ddp_spawn", precision="64-true")
    return {}
