"""What the rows of the matrix share: a witness that keeps the truth, and the three runs that are compared with it."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, StepConsumer, StepView, Watch, assert_no_hooks
from lightning_hooks.records.layout import EntryLayout
from lightning_hooks.stats.histogram import bucket_edges
from lightning_hooks.stats.statistics import NAMES
from lightning_hooks.transforms import Context, Transform
from tests import forked
from tests.callbacks.models import trainer_of

Seen = dict[tuple[str, str], list[tuple[Tensor, float]]]
MODULE_TENSORS = ("input", "output", "input_grad", "output_grad")
PARAM_TENSORS = ("param", "grad", "final_grad", "update")
EDGES = bucket_edges()


def everything() -> list[Watch]:
    """Every tensor and every statistic."""
    return [
        Watch(modules="*", tensors=MODULE_TENSORS, stats=[name for name in NAMES if name != "ratio"], strict=False),
        Watch(params="*", tensors=PARAM_TENSORS, stats=list(NAMES), strict=False),
    ]


# -- the truth -------------------------------------------------------------------------------------------------------------


class Witness(Callback):
    """Keeps what plain torch hooks show in a run without us: by step, tensor and name the tensors themselves.

    The gradient of an input is the total over all its readers, so it is the truth for a module that is its only reader.
    Gradients that flow under a loss scaler are kept with the scale.
    """

    def __init__(self) -> None:
        self.steps: dict[int, Seen] = {}
        self.micro: dict[int, dict[str, list[Tensor]]] = {}
        self._open = False
        self._step = 0
        self._before: dict[int, Tensor] = {}
        self._reads: dict[str, dict[int, Any]] = {}
        self._scale: Callable[[], float] = lambda: 1.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            self._scale = lambda: float(scaler.get_scale())
        self._names = {id(p): n for n, p in pl_module.named_parameters()}
        for name, module in pl_module.named_modules():
            if name:
                module.register_forward_pre_hook(self._before_forward(name), with_kwargs=True)
                module.register_forward_hook(self._after_forward(name))
        for name, parameter in pl_module.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._param_hook(name))
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(self._after_step)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self._step = trainer.fit_loop.epoch_loop._batches_that_stepped
        self._open = True

    def on_train_batch_end(self, *args: Any) -> None:
        self._open = False
        self._reads.clear()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        for parameter in parameters_of(optimizer):
            name = self._names[id(parameter)]
            self._before[id(parameter)] = parameter.detach().clone()
            if parameter.requires_grad:
                self._set("param", name, parameter)
                if parameter.grad is not None:
                    scale = self._scale() if self._unscales_itself(optimizer) else 1.0
                    self._set("grad", name, parameter.grad, scale)
                    self._set("final_grad", name, parameter.grad, scale)

    def _unscales_itself(self, optimizer: Any) -> bool:
        return bool(getattr(optimizer, "_step_supports_amp_scaling", False))

    def _after_step(self, optimizer: Any, *args: Any) -> None:
        for parameter in parameters_of(optimizer):
            if parameter.requires_grad:
                name = self._names[id(parameter)]
                if parameter.grad is not None and not self._unscales_itself(optimizer):
                    self._set("final_grad", name, parameter.grad)
                self._set("update", name, wide(parameter) - wide(self._before[id(parameter)]))

    def _set(self, tensor: str, name: str, value: Tensor, scale: float = 1.0) -> None:
        self.steps.setdefault(self._step, {})[(tensor, name)] = [(value.detach().clone(), scale)]

    def _add(self, tensor: str, name: str, value: Tensor, scale: float = 1.0) -> None:
        if self._open:
            self.steps.setdefault(self._step, {}).setdefault((tensor, name), []).append((value.detach().clone(), scale))

    def _before_forward(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._reads[name] = {}
            for tensor in floating((args, kwargs)):
                self._add("input", name, tensor)
                if tensor.requires_grad:
                    handle = tensor.register_hook(lambda g: self._add("input_grad", name, g, self._scale()))
                    self._reads[name][id(tensor)] = handle

        return hook

    def _after_forward(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            for tensor in floating(output):
                if id(tensor) in self._reads[name]:  # handed through: there is no gradient of the module's own
                    self._reads[name][id(tensor)].remove()
                self._add("output", name, tensor)
                if tensor.requires_grad:
                    tensor.register_hook(lambda g: self._add("output_grad", name, g, self._scale()))

        return hook

    def _param_hook(self, name: str) -> Any:
        def hook(grad: Tensor) -> None:
            if self._open:
                self.micro.setdefault(self._step, {}).setdefault(name, []).append(wide(grad.detach().clone()) / self._scale())

        return hook


def floating(tree: Any) -> Iterator[Tensor]:
    """Every floating or complex tensor of a nest, each once."""
    for leaf in {id(leaf): leaf for leaf in pytree.tree_leaves(tree)}.values():
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            yield leaf


def parameters_of(optimizer: Any) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def wide(tensor: Tensor) -> Tensor:
    """Dense, in float64 (complex128)."""
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64).clone()


# -- statistics, by hand, in float64 ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """Every statistic of some tensors taken as one set of elements."""

    stats: dict[str, float]
    histogram: np.ndarray[Any, np.dtype[np.float64]]
    values: np.ndarray[Any, np.dtype[np.float64]]


def truth(parts: Sequence[tuple[Tensor, float]]) -> Truth:
    """Of tensors, each with the scale it must be divided by."""
    values = np.concatenate([real(t).numpy() / scale for t, scale in parts])
    tiny = [torch.finfo(t.dtype).tiny for t, _ in parts]
    raw = [real(t).abs().numpy() for t, _ in parts]
    subnormal = sum(int(((r > 0) & (r < t)).sum()) for r, t in zip(raw, tiny, strict=True))
    with np.errstate(all="ignore"):
        stats = {
            "mean": values.mean(),
            "std": values.std(),
            "rms": np.sqrt(np.square(values).mean()),
            "norm": np.sqrt(np.square(values).sum()),
            "abs_mean": np.abs(values).mean(),
            "min": values.min(),
            "max": values.max(),
            "abs_max": np.abs(values).max(),
            "zero_fraction": (values == 0).mean(),
            "underflow_fraction": subnormal / len(values),
            "nonfinite": float((~np.isfinite(values)).sum()),
        }
    finite = values[np.isfinite(values)]
    counts, _ = np.histogram(-finite[finite < 0], EDGES[len(EDGES) // 2 :])
    positive, _ = np.histogram(finite[finite > 0], EDGES[len(EDGES) // 2 :])
    middle = len(finite) - counts.sum() - positive.sum()
    return Truth({k: float(v) for k, v in stats.items()}, np.concatenate([counts[::-1], [middle], positive]), values)


def real(tensor: Tensor) -> Tensor:
    """The elements in float64, flat; a complex one is two."""
    dense = wide(tensor).cpu()
    return torch.view_as_real(dense).flatten() if dense.is_complex() else dense.flatten()


def compare(book: Book, steps: dict[int, Seen], *, rel: float = 1e-6, tensors: Iterable[str] | None = None) -> None:
    """Every row that was written is right, no row is missing, none is too many.

    Args:
        book: what the monitor wrote.
        steps: what the witness saw.
        rel: relative tolerance.
        tensors: which to compare; default all.
    """
    wanted = set(tensors or (*MODULE_TENSORS, *PARAM_TENSORS))
    assert book.rows.keys() == steps.keys()
    for step, seen in steps.items():
        rows = {tag: value for tag, value in book.rows[step].items() if tag.split("_")[0] != "hooks"}
        known = {key: parts for key, parts in seen.items() if key[0] in wanted and sum(t.numel() for t, _ in parts)}
        there = {tag_of(tag) for tag in rows if tag_of(tag)[0] in wanted}
        assert there == set(known), f"step {step}: {sorted(there ^ set(known))}"
        for (tensor, name), parts in known.items():
            compare_row(rows, book.histograms[step], tensor, name, truth(parts), rel)
            if tensor == "update":
                below = truth(seen[("param", name)]).stats["norm"]
                above = truth(parts).stats["norm"]
                expected = above / below if below else (0.0 if above == 0 else math.inf)
                assert rows[f"update_ratio/{name}"] == near(expected, rel), f"step {step}: update_ratio/{name}"


def compare_row(
    rows: dict[str, float], histograms: dict[str, Any], tensor: str, name: str, expected: Truth, rel: float = 1e-6
) -> None:
    """One row against the truth."""
    for stat, value in expected.stats.items():
        tag = f"{tensor}_{stat}/{name}"
        slack = rel * expected.stats["abs_mean"] if stat == "mean" else 0.0
        if stat == "std":  # the rounding of a value is relative to the value, not to its distance from the mean
            slack = rel * expected.stats["abs_max"]
        assert rows[tag] == near(value, rel, slack), f"{tag}: {rows[tag]} is not {value}"
    tag = f"{tensor}_histogram/{name}"
    assert histograms[tag].sum() == np.isfinite(expected.values).sum(), tag
    if rel <= 1e-6:
        assert np.array_equal(histograms[tag], expected.histogram), tag
        finite = expected.values[np.isfinite(expected.values)]
        for stat, q in (("p1", 0.01), ("p50", 0.5), ("p99", 0.99)):
            if len(finite) == 0:
                assert f"{tensor}_{stat}/{name}" not in rows or math.isnan(rows[f"{tensor}_{stat}/{name}"])
                continue
            place = float(np.quantile(finite, q, method="inverted_cdf"))
            bucket = int(np.searchsorted(EDGES, place, side="right" if place >= 0 else "left")) - 1
            value = rows[f"{tensor}_{stat}/{name}"]
            if bucket == len(EDGES) // 2 - 1:
                assert value == 0 or abs(value) < 2.0**-126, (tensor, stat, name)
            else:
                assert EDGES[bucket] <= value <= EDGES[bucket + 1], (tensor, stat, name, value, place)


def near(value: float, rel: float, slack: float = 0.0) -> Any:
    import pytest

    return pytest.approx(value, rel=rel, abs=slack, nan_ok=True)


def tag_of(tag: str) -> tuple[str, str]:
    """`input_grad_norm/body.0` → (`input_grad`, `body.0`)."""
    what, _, name = tag.partition("/")
    tensors = sorted((*MODULE_TENSORS, *PARAM_TENSORS), key=len, reverse=True)
    return next((tensor for tensor in tensors if what.startswith(f"{tensor}_")), what), name


# -- what we wrote ---------------------------------------------------------------------------------------------------------


class Book(Callback, StepConsumer):
    """Keeps the steps of training of a monitor, whose consumer it becomes; a callback only so that it may stand beside it.

    Without a monitor it is filled by hand.
    """

    def __init__(self, monitor: StatsMonitor | None = None) -> None:
        self.view: StepView | None = None  # of the last step
        self.rows: dict[int, dict[str, float]] = {}
        self.histograms: dict[int, dict[str, Any]] = {}
        if monitor is not None:
            monitor.consumers.append(self)

    def consume(self, view: StepView) -> None:
        if view.stage != "train":
            return
        self.view = view
        entry = EntryLayout(view.rows, view.due).fill(view)
        # How long something took is all that differs between two runs that do the same.
        self.rows[view.step] = {tag: value for tag, value in entry.scalars.items() if tag != "run/overhead"}
        self.histograms[view.step] = dict(zip(entry.histogram_tags, entry.histogram_counts, strict=True))

    def counts(self, tensor: str) -> dict[str, float]:
        """How many elements each row had in the last step."""
        assert self.view is not None
        series = self.view.stat(tensor, "count")
        return dict(zip(series.names, series.values.tolist(), strict=True))

    def values(self, tag: str) -> list[float]:
        return [rows[tag] for rows in self.rows.values() if tag in rows]

    def steps_of(self, tag: str) -> list[int]:
        return [step for step, rows in self.rows.items() if tag in rows]


@dataclass(frozen=True, eq=False)
class Spy(Transform):
    """Keeps what it is given, and changes nothing."""

    seen: dict[int, dict[str, list[Tensor]]] = field(default_factory=dict, repr=False)
    dtypes: set[torch.dtype] = field(default_factory=set, repr=False)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        for name, tensor in zip(context.names, tensors, strict=True):
            self.seen.setdefault(context.step, {}).setdefault(name, []).append(wide(tensor))
            self.dtypes.add(tensor.dtype)
        return list(tensors)


# -- the three runs --------------------------------------------------------------------------------------------------------


@dataclass
class Runs:
    """What came of the runs of a row."""

    bare: Any
    watched: Any
    changed: Any
    witness: Witness
    book: Book
    spies: dict[str, Spy]


def three_runs(
    root: Path,
    make: Callable[[], LightningModule],
    data: Callable[[], Any],
    *,
    rel: float = 1e-6,
    tensors: Iterable[str] | None = None,
    stages: Sequence[str] = ("step", "backward", "output_grad"),
    plugins: Callable[[], Any] | None = None,
    extra: Callable[[], list[Callback]] = list,
    **options: Any,
) -> Runs:
    """Train from one seed three times: alone, watched, and with rules of every stage that change nothing.

    The weights are the same bits, the statistics and what the rules were given are those of the first run, and no hook is
    left.

    Args:
        root: for the trainers.
        make: the model.
        data: its batches.
        rel: how near statistics must be to those in float64.
        tensors: which are compared; default all.
        stages: of the rules in the third run.
        plugins: of the trainers, made again for each.
        extra: further callbacks of the trainers, made again for each.
        options: of the trainers.
    """

    def run(*ours: Callback) -> Any:
        if plugins is not None:
            options["plugins"] = plugins()
        torch.manual_seed(0)
        model = make()
        torch.manual_seed(1)
        trainer_of(root, *extra(), *ours, **options).fit(model, data())
        assert_no_hooks(model)
        return model

    witness = Witness()
    bare = run(witness)
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    watched = run(monitor, book)
    same_weights(bare, watched)
    compare(book, witness.steps, rel=rel, tensors=tensors)

    spies = {stage: Spy() for stage in stages}
    rules = {
        "step": lambda spy: Apply(spy, params="*"),
        "backward": lambda spy: Apply(spy, params="*", when="backward"),
        "output_grad": lambda spy: Apply(spy, modules="*"),
    }
    transforms = GradientTransforms([rules[stage](spy) for stage, spy in spies.items()])
    again = StatsMonitor(everything(), max_scalars=10**6)
    second = Book(again)
    changed = run(again, transforms, second)
    same_weights(bare, changed)
    compare(second, witness.steps, rel=rel, tensors=tensors)
    if "step" in spies:
        compare_spy(
            spies["step"],
            {s: {n: [wide(p[0][0])] for (t, n), p in seen.items() if t == "grad"} for s, seen in witness.steps.items()},
            rel,
        )
    if "backward" in spies:
        compare_spy(spies["backward"], witness.micro, rel)
    if "output_grad" in spies:
        compare_spy(
            spies["output_grad"],
            {
                s: {n: [wide(t) / c for t, c in p] for (k, n), p in seen.items() if k == "output_grad"}
                for s, seen in witness.steps.items()
            },
            rel,
        )
    return Runs(bare, watched, changed, witness, book, spies)


def compare_spy(spy: Spy, expected: dict[int, dict[str, list[Tensor]]], rel: float) -> None:
    """A rule was given the tensors of the truth, in order, each once."""
    expected = {step: named for step, named in expected.items() if named}
    assert spy.seen.keys() == expected.keys()
    for step, named in expected.items():
        assert spy.seen[step].keys() == named.keys(), step
        for name, tensors in named.items():
            given = spy.seen[step][name]
            assert len(given) == len(tensors), (step, name, len(given), len(tensors))
            for one, other in zip(given, tensors, strict=True):
                torch.testing.assert_close(one, other, rtol=rel, atol=0.0, equal_nan=True)


def same_weights(one: nn.Module, other: nn.Module) -> None:
    """Every number of the two is the same, bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def loader(*batches: Any) -> DataLoader[Any]:
    """Each argument is a batch."""
    return DataLoader(list(batches), batch_size=None)  # type: ignore[arg-type]


def randn(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- several processes -----------------------------------------------------------------------------------------------------


_PORTS = itertools.count(os.getpid() % 500)  # of `free_port`; two runs of the tests at a time begin elsewhere


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """What `make` returns, which JSON can hold: one worker of pytest-xdist makes it, and the others read it.

    Args:
        factory: of pytest.
        name: of a new folder, which `make` is given.
        make: takes long, processes of its own for example.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    made = folder / "made.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            made.write_text(json.dumps(make(folder)))
    return json.loads(made.read_text())


def free_port() -> int:
    """A free port that nobody else is given until it is used.

    The system gives ports from 32768 on to whoever asks, so one that it has just given and that was closed again may go to
    the processes of another test. Each worker of pytest-xdist takes its own ports from below.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for number in _PORTS:
        port = 20_000 + 500 * (worker % 20) + number % 500
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the numbers never end")


def end_all(processes: Sequence[BaseProcess], timeout: float) -> bool:
    """Wait for processes, and kill those that still run after `timeout` seconds; returns whether none did."""
    end = time.monotonic() + timeout
    try:
        for process in processes:
            process.join(max(end - time.monotonic(), 0.1))
        return all(process.exitcode is not None for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def run_ranks(module: str, cases: Sequence[str], out: Path, *, world: int = 2, timeout: float = 120.0) -> list[dict[str, Any]]:
    """Start processes as torchrun would, and collect what each of them returned.

    Args:
        module: import path; its functions are the cases, each called with its own folder, each returning what JSON can hold.
        cases: their names, run one after the other in the same processes.
        out: where results go.
        world: how many processes.
        timeout: seconds until all are killed: ranks that wait for each other do so for ever.

    Returns:
        For each rank case to result; a case that raised is `{"error": traceback}`.
    """
    port = free_port()
    arguments = ["-m", "tests.conformance._rank", module, str(out), *cases]
    started = []
    for rank in range(world):
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        started.append(forked.start(arguments, environment, out / f"rank{rank}.log"))
    end_all(started, timeout)
    results = []
    for rank in range(world):
        written = out / f"rank{rank}.json"
        said = (out / f"rank{rank}.log").read_text()[-4000:]
        assert written.exists(), f"rank {rank} ended without a result (within {timeout:g} s):\n{said}"
        results.append(json.loads(written.read_text()))
    return results
