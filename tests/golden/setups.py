"""The twelve set-ups: what a user writes, each a function that trains and writes into a folder.

A change of the interface changes the calls here, and nothing else: not the models, the options or the seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lightning_hooks import Apply, FlightRecorder, GradientTransforms, HealthMonitor, StatsMonitor, Watch, instrument
from lightning_hooks.transforms import ClipByGlobalNorm
from tests.golden.models import STEPS, Model, batches, loader, net, trainer
from tests.golden.observing import count_hooks, observe

BAD = STEPS - 2
# The layers of the network one by one, with more tensors and other statistics than those of the default.
OWN_WATCH = [
    Watch(modules="net.blocks.*", tensors=["input", "output", "output_grad"], stats=["mean", "rms", "abs_max", "p50"]),
    Watch(params="*.weight", tensors=["grad", "final_grad", "update", "state.exp_avg"], stats=["norm", "std", "histogram"]),
]


def fit(folder: Path, *callbacks: Any, bad: int | None = None, **options: Any) -> None:
    """Train the model in a Trainer with these callbacks."""
    trainer(folder, *callbacks, **options).fit(Model(), loader(batches(bad=bad)), loader(batches(2, first=50)))


def default(folder: Path) -> None:
    fit(folder, StatsMonitor())


def health(folder: Path) -> None:
    fit(folder, StatsMonitor(), HealthMonitor())


def recorder(folder: Path) -> None:
    fit(folder, StatsMonitor(), FlightRecorder(), bad=BAD)


def own_watch(folder: Path) -> None:
    fit(folder, StatsMonitor(OWN_WATCH), HealthMonitor(), FlightRecorder(), bad=BAD)


def two_monitors(folder: Path) -> None:
    fit(folder, StatsMonitor(), StatsMonitor(OWN_WATCH, prefix="second/", every_n_steps=2, histogram_every_n_steps=4))


def clipping(folder: Path) -> None:
    clip = GradientTransforms([Apply(ClipByGlobalNorm(0.1), params="*")])
    fit(folder, StatsMonitor(prefix="before/"), clip, StatsMonitor(prefix="after/"), gradient_clip_val=0.05)


def stages(folder: Path) -> None:
    model = Model()
    monitor = StatsMonitor(stages=["train", "validate", "test"], histogram_every_n_steps=5)
    trains = trainer(folder, monitor, HealthMonitor(), max_epochs=2, val_check_interval=3)
    trains.fit(model, loader(batches(6)), loader(batches(2, first=50)))
    trains.test(model, loader(batches(2, first=60)), verbose=False)


def accumulation(folder: Path) -> None:
    fit(folder, StatsMonitor(), HealthMonitor(), FlightRecorder(), accumulate_grad_batches=3)


def fit_rank(folder: Path) -> None:
    """What each process of the set-up `ddp` does."""
    from lightning.pytorch.strategies import DDPStrategy

    strategy = DDPStrategy(process_group_backend="gloo", find_unused_parameters=True)
    callbacks = [StatsMonitor(), HealthMonitor(), FlightRecorder()]
    trains = trainer(folder, *callbacks, strategy=strategy, devices=2, num_nodes=1, use_distributed_sampler=False)
    rank = trains.global_rank
    trains.fit(Model(), loader(batches(first=20 * rank, bad=BAD if rank == 1 else None)))


def compiled(folder: Path) -> None:
    torch._dynamo.reset()
    model = Model()
    model.net.compile(backend="aot_eager", fullgraph=True)
    trainer(folder, StatsMonitor(), HealthMonitor()).fit(model, loader(batches()))
    torch._dynamo.reset()


def loop(folder: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with instrument(model, [StatsMonitor(), HealthMonitor(), FlightRecorder()], optimizer=optimizer, logdir=folder) as watched:
        for number, (x, y) in enumerate(batches(bad=BAD)):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            count_hooks(model, f"batch {number}")
            watched.note_loss(loss)
            loss.backward()
            optimizer.step()


def hugging_face(folder: Path) -> None:
    from lightning_hooks.transformers import HooksTrainerCallback
    from tests.golden.hugging_face import train

    train(folder, HooksTrainerCallback([StatsMonitor(), HealthMonitor(), FlightRecorder()], logdir=folder / "hooks"))


def ddp(folder: Path) -> list[dict[str, Any]]:
    """What two processes of `fit_rank` did."""
    from tests.conformance._tools import run_ranks

    folder.mkdir(parents=True)
    results = run_ranks("tests.golden.ranks", ["ddp"], folder)
    for result in results:
        assert "error" not in result["ddp"], result["ddp"]["error"]
    return [result["ddp"] for result in results]


_IN_ONE_PROCESS = (
    *(default, health, recorder, own_watch, two_monitors, clipping, stages, accumulation, compiled, loop, hugging_face),
)


def _alone(function: Callable[[Path], None], folder: Path) -> list[dict[str, Any]]:
    return [observe(function, folder)]


SETUPS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    **{function.__name__: partial(_alone, function) for function in _IN_ONE_PROCESS},
    "ddp": ddp,
}
"""Name to a function that runs the set-up in a folder and returns what each process did."""
