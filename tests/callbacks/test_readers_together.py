"""A monitor beside other readers of its tensors: the compiled writer serves, and every number is that of the monitor alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import ActivationCapture, ActivationTransforms, Apply, CustomHooks, Hook, StatsMonitor, Watch, load_capture
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.hooks import Action
from lightning_hooks.stats.row_measuring import RowMeasuring
from lightning_hooks.stats.units.statistics import NAMES
from lightning_hooks.transforms import Scale
from tests.callbacks._tiny import Line, loader, make, scaled
from tests.callbacks.models import Net, data, trainer_of
from tests.conformance._tools import Book, same_weights
from tests.consumers import Keeps

STEPS, MODULES = 6, 3


class Three(Net):
    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def rules(stats: Any = ("mean", "norm", "max"), tensors: Any = ("output", "output_grad")) -> list[Watch]:
    return [Watch(modules="body.*", tensors=tensors, stats=stats)]


def forward_hook(module: nn.Module, args: Any, output: Any) -> None:
    """A hook of a user that looks at a result."""


def grad_hook(grad: Tensor) -> None:
    """A hook of a user that looks at a gradient."""


def capture(folder: Path) -> list[Any]:
    names = ("output", "output_grad")
    return [ActivationCapture("body.*", tensor=name, every_n_steps=1, folder=folder / name) for name in names]


def second(folder: Path, **options: Any) -> list[Any]:
    return [StatsMonitor(rules(**options), prefix="second/")]


def hooks(folder: Path) -> list[Any]:
    kinds = {"forward": forward_hook, "output_grad": grad_hook}
    return [CustomHooks([Hook(call, kind=kind, modules="body.*") for kind, call in kinds.items()])]


def everything(folder: Path) -> list[Any]:
    return [*capture(folder), *second(folder), *hooks(folder)]


def with_histograms(folder: Path) -> list[Any]:
    return [*capture(folder), *second(folder, stats=("norm", "histogram")), *second_named("third/")]


def second_named(prefix: str) -> list[Any]:
    return [StatsMonitor(rules(stats="rms"), prefix=prefix)]


def largest(tensor: Tensor) -> Tensor:
    return tensor.max()


def users_statistic(folder: Path) -> list[Any]:
    return second(folder, stats=["norm", largest])


def fit(root: Path, *callbacks: Any) -> Three:
    torch.manual_seed(0)
    model = Three()
    trainer_of(root, *callbacks).fit(model, data(STEPS))
    return model


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each table was written by Python."""
    calls: Counter[int] = Counter()
    add = RowMeasuring.add

    def count(measuring: RowMeasuring, *args: Any, **options: Any) -> None:
        calls[id(measuring)] += 1
        add(measuring, *args, **options)

    monkeypatch.setattr(RowMeasuring, "add", count)
    return calls


@pytest.mark.parametrize("others", [capture, second, hooks, everything, with_histograms, users_statistic])
def test_only_the_first_step_goes_through_python_and_no_number_differs(
    tmp_path: Path, added: Counter[int], others: Any
) -> None:
    plain = fit(tmp_path)
    alone, together = (StatsMonitor(rules()) for _ in range(2))
    books = Book(alone), Book(together)
    same_weights(plain, fit(tmp_path, alone))
    in_first_step = added.total()
    assert in_first_step == MODULES * 2 + 1  # outputs and their gradients, and the loss
    added.clear()
    same_weights(plain, fit(tmp_path, together, *others(tmp_path)))
    assert books[0].rows == books[1].rows and len(books[0].rows) == STEPS
    in_all_steps = MODULES * 2 * STEPS + 1
    # All monitors have one table, and Python measures the rows of which a user's statistic is asked.
    assert added.total() == (in_all_steps if others is users_statistic else in_first_step)


def test_the_first_reader_is_not_preferred(tmp_path: Path) -> None:
    """What each of two monitors has together is what it has alone, also where they watch at other steps."""

    def monitors() -> list[StatsMonitor]:
        options: list[dict[str, Any]] = [{"every_n_steps": 1}, {"every_n_steps": 2}]
        stats = [("mean", "abs_mean", "norm", "histogram"), ("std", "min")]
        return [
            StatsMonitor(rules(each), prefix=prefix, **option)
            for each, prefix, option in zip(stats, ("", "b/"), options, strict=True)
        ]

    def rows(*together: StatsMonitor) -> list[Any]:
        books = [Book(monitor) for monitor in together]
        fit(tmp_path, *together)
        return [(book.rows, {step: list(each) for step, each in book.histograms.items()}) for book in books]

    a, b = monitors()
    alone = [*rows(a), *rows(b)]
    assert rows(*monitors()) == alone
    assert rows(*reversed(monitors())) == alone[::-1]


def test_units_beside_other_readers_are_those_of_the_monitor_alone(tmp_path: Path) -> None:
    def units(*others: Any) -> Any:
        consumer, tensors = Keeps(), ("output", "output_grad")
        rule = Watch(modules="body.*", tensors=tensors, stats="norm", units="auto", every_n_steps=1)
        fit(tmp_path, StatsMonitor([rule], consumers=[consumer]), *others)
        assert len(consumer.views) == STEPS
        return [[view.stat(tensor, stat).values for tensor in tensors for stat in NAMES] for view in consumer.views]

    alone = units()
    assert np.isfinite(alone).any()
    np.testing.assert_allclose(units(*everything(tmp_path)), alone, rtol=1e-12)


def test_a_capture_beside_monitors_has_every_tensor(tmp_path: Path) -> None:
    fit(tmp_path, StatsMonitor(rules()), *everything(tmp_path / "beside"))
    fit(tmp_path, *capture(tmp_path / "alone"))
    for tensor in ("output", "output_grad"):
        one, other = (load_capture(tmp_path / folder / tensor) for folder in ("alone", "beside"))
        assert one.names == other.names and len(one.names) == MODULES
        for name in one.names:
            assert torch.equal(one[name].cat(), other[name].cat())


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x.requires_grad_(True), use_reentrant=False, early_stop=False)  # type: ignore[no-any-return]


def test_a_monitor_beside_a_changed_activation_counts_a_recomputation_once(tmp_path: Path) -> None:
    monitor = StatsMonitor([Watch(modules="body.0", tensors="output", stats="norm")])
    book = Book(monitor)
    changes = ActivationTransforms([Apply(Scale(0.5), modules="body.0")])
    trainer_of(tmp_path, monitor, changes).fit(Checkpointed(dropout=0.0), data(2))
    assert book.counts("output") == {"body.0": 4 * 8}


class ReadsScale(Participant):
    """Notes each gradient of a module, as it comes and divided by the loss scale."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.grads: list[tuple[float, float]] = []

    def step_key(self, step: int, stage: str) -> str:
        return "always"

    def actions(self, key: Any) -> list[Action]:
        return [Action(self.module, "output_grad", self.read)]

    def read(self, grad: Tensor) -> None:
        scale = 1.0 if self.loss_scale is None else self.loss_scale
        self.grads.append((float(grad.float().sum()), float((grad.float() / scale).sum())))


@pytest.mark.parametrize("options", [{}, scaled()], ids=["no scaler", "scaler"])
def test_a_reader_knows_the_loss_scale(tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Line()
    reader = ReadsScale(model.layer)
    join = HookManager.join

    def join_both(manager: HookManager, participant: Participant) -> None:
        join(manager, participant)
        monkeypatch.undo()
        manager.join(reader)

    monkeypatch.setattr(HookManager, "join", join_both)
    monitor = StatsMonitor([Watch(modules="layer", tensors="output", stats="norm")])
    make(tmp_path, monitor, **options).fit(model, loader([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]))
    scale = 1024.0 if options else 1.0
    assert reader.grads == [(scale, 1.0)] * 2
