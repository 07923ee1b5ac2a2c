"""What a driver must do, whichever trainer it serves: subclass `DriverConformance` with `train`, and pytest runs its tests.

Each test lets the driver train a small network without us, where plain hooks of torch say what happens, and again with us, and
compares: the same bits in the weights, the same numbers by step, no hook afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, StepConsumer, Watch, assert_no_hooks
from lightning_hooks.transforms import Scale

BATCH, MICRO, STEPS = 4, 3, 4
RULES = [
    Watch(modules="*", tensors=["output", "output_grad"], stats="norm"),
    Watch(params="*", tensors=["grad", "final_grad", "update"], stats="norm"),
]


class Net(nn.Module):
    """Returns its loss as `transformers` wants it; raises at its call number `fails_at`."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self._fails_at, self._calls = fails_at, 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if self._calls == self._fails_at:
            raise KeyError("batch")
        self._calls += 1
        return {"loss": self.last(self.first(x).relu()).float().square().mean()}


@dataclass
class Task:
    """What a driver trains.

    Args:
        root: a folder for the trainer.
        callbacks: of this package; empty to train without the driver.
        micro: the number of batches whose gradients are accumulated in a step.
        evaluates: whether to evaluate the model on one batch after each step, in evaluation mode without gradients.
        scaler: the loss scaler to use, which skips step 1; None for none.
        model: what to train; `model(x)["loss"]` is the mean over a batch, and a step's loss the mean over its batches.
        optimizer: steps once for each of `steps`, with the gradient of that mean and without clipping.
    """

    root: Path
    callbacks: list[Any] = field(default_factory=list)
    micro: int = 1
    evaluates: bool = False
    scaler: Any = None
    model: Net = field(default_factory=Net)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    @property
    def steps(self) -> list[list[Tensor]]:
        """The batches of each step [rows, 4], in order. With a scaler, the gradient of step 1 overflows."""
        generator = torch.Generator().manual_seed(1)
        steps = [[torch.randn(BATCH, 4, generator=generator) for _ in range(self.micro)] for _ in range(STEPS)]
        if self.scaler is not None:
            steps[1][-1] *= 1e30
        return steps

    def evaluate(self) -> None:
        """Evaluate, for a trainer that leaves this to the loop."""
        if self.evaluates:
            self.model.eval()
            with torch.no_grad():
                self.model(torch.ones(BATCH, 4))
            self.model.train()


class Truth:
    """What plain hooks of torch see of a training: for each step of the optimizer, tensors by kind and name."""

    def __init__(self, task: Task) -> None:
        self.steps: list[dict[tuple[str, str], list[Tensor]]] = []
        self._now: defaultdict[tuple[str, str], list[Tensor]] = defaultdict(list)
        self._before: dict[str, Tensor] = {}
        self._micro = task.micro
        self._parameters = dict(task.model.named_parameters())
        task.model.register_forward_hook(self._after_model)
        for name, module in [("first", task.model.first), ("last", task.model.last)]:
            module.register_forward_hook(self._after_layer(name))
        task.optimizer.register_step_pre_hook(self._before_step)
        task.optimizer.register_step_post_hook(self._after_step)

    def _after_layer(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            if module.training:
                self._now["output", name].append(output.detach().double())

        return hook

    def _after_model(self, module: nn.Module, args: Any, output: dict[str, Tensor]) -> None:
        if module.training:
            self._now["loss", ""].append(output["loss"].detach().double())

    def _before_step(self, *args: Any) -> None:
        self._before = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def _after_step(self, *args: Any) -> None:
        # Batches of a step that was skipped come before those of this step.
        self._now = defaultdict(list, {key: each[-self._micro :] for key, each in self._now.items()})
        for name, parameter in self._parameters.items():
            assert parameter.grad is not None
            self._now["grad", name].append(parameter.grad.double())
            self._now["update", name].append(parameter.detach().double() - self._before[name].double())
        self.steps.append(dict(self._now))
        self._now = defaultdict(list)


class Book(StepConsumer):
    """Keeps the views of a monitor and how it was closed; asks to stop at a step."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.views: list[Any] = []
        self.closed: list[BaseException | None] = []
        self._stops_at = stops_at

    def start(self, rows: Any, run: Any) -> None:
        self._run = run

    def consume(self, view: Any) -> None:
        self.views.append(view)
        if view.step == self._stops_at:
            self._run.stop("enough")

    def close(self, error: BaseException | None) -> None:
        self.closed.append(error)


class DriverConformance:
    """The tests of a driver. A subclass defines `train`, and says by its attributes what its trainer can do.

    Attributes:
        prefix: what the trainer puts before the names of the model's modules and parameters.
        scales: whether the trainer has a loss scaler in host memory.
        counts_skipped: whether a step that the loss scaler skips has a number, and a view without `update`.
        tells_failure: whether the trainer tells the driver what exception ended the training.
    """

    prefix: ClassVar[str] = ""
    scales: ClassVar[bool] = True
    counts_skipped: ClassVar[bool] = False
    tells_failure: ClassVar[bool] = True

    def train(self, task: Task) -> None:
        """Train by the trainer; if there are callbacks, under the driver with these. An exception goes on to the caller."""
        raise NotImplementedError

    @pytest.mark.parametrize(("micro", "evaluates"), [(1, False), (MICRO, False), (1, True), (MICRO, True)])
    def test_each_step_has_its_number_every_row_and_its_loss(self, tmp_path: Path, micro: int, evaluates: bool) -> None:
        """Accumulated batches belong to one step, an evaluation to none, and the weights are those of an unwatched training."""
        truth, book = self._both(tmp_path, micro=micro, evaluates=evaluates)
        assert [view.step for view in book.views] == list(range(STEPS))
        for view, expected in zip(book.views, truth.steps, strict=True):
            self._compare(view, expected, micro)

    def test_a_step_that_the_loss_scaler_skips_leaves_nothing_in_the_next_one(self, tmp_path: Path) -> None:
        if not self.scales:
            pytest.skip("the trainer has no loss scaler in host memory")
        truth, book = self._both(tmp_path, micro=2, scaler=True)
        views = {view.step: view for view in book.views}
        if self.counts_skipped:
            skipped = views.pop(1)
            assert not skipped.stat("update", "norm").measured.any()
        assert [*views] == ([0, 2, 3] if self.counts_skipped else [0, 1, 2]) and len(truth.steps) == STEPS - 1
        for view, expected in zip(views.values(), truth.steps, strict=True):
            self._compare(view, expected, 2)

    @pytest.mark.parametrize("micro", [1, MICRO])
    def test_a_rule_changes_each_gradient_once_before_the_optimizer_reads_it(self, tmp_path: Path, micro: int) -> None:
        book = Book()
        halve = GradientTransforms([Apply(Scale(0.5), params="*")])
        task = Task(tmp_path, [StatsMonitor(RULES, consumers=[book]), halve], micro)
        self.train(task)
        self._assert_clean(task)
        assert [view.step for view in book.views] == list(range(STEPS))
        for view in book.views:
            whole, half = view.stat("grad", "norm"), view.stat("final_grad", "norm")
            assert half.values.tolist() == pytest.approx((whole.values / 2).tolist(), rel=1e-6)

    def test_an_exception_ends_the_training_and_leaves_no_hook(self, tmp_path: Path) -> None:
        """The steps before the exception are published, the consumers closed, and the exception is the user's own."""
        book = Book()
        task = Task(tmp_path, [StatsMonitor(RULES, consumers=[book])], MICRO, model=Net(fails_at=2 * MICRO + 1))
        with pytest.raises(KeyError, match="batch") as raised:
            self.train(task)
        self._assert_clean(task)
        assert [view.step for view in book.views] == [0, 1]
        assert book.closed == [raised.value if self.tells_failure else None]

    def test_the_training_ends_when_a_consumer_asks_for_it(self, tmp_path: Path) -> None:
        book = Book(stops_at=1)
        task = Task(tmp_path, [StatsMonitor(RULES, consumers=[book])], MICRO)
        self.train(task)
        self._assert_clean(task)
        assert [view.step for view in book.views] == [0, 1] and book.closed == [None]

    def _both(self, root: Path, **options: Any) -> tuple[Truth, Book]:
        """Train without us and with us: the weights are the same bits, and no hook is left."""

        def task(name: str, *callbacks: Any) -> Task:
            # Each training has a scaler of its own, because a scaler changes its scale.
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if options.get("scaler") else None
            return Task(root / name, [*callbacks], **{**options, "scaler": scaler})

        bare = task("bare")
        truth = Truth(bare)
        self.train(bare)
        book = Book()
        watched = task("watched", StatsMonitor(RULES, consumers=[book]))
        self.train(watched)
        for name, parameter in watched.model.named_parameters():
            assert torch.equal(parameter, bare.model.get_parameter(name)), name
        self._assert_clean(watched)
        assert book.closed == [None]
        return truth, book

    def _assert_clean(self, task: Task) -> None:
        assert_no_hooks(task.model)
        assert not [hook for each in task.model.modules() for hook in (*each._forward_hooks, *each._forward_pre_hooks)]
        assert not [each for each in task.model.parameters() if each._backward_hooks or each._post_accumulate_grad_hooks]
        assert not task.optimizer._optimizer_step_pre_hooks and not task.optimizer._optimizer_step_post_hooks

    def _compare(self, view: Any, expected: dict[tuple[str, str], list[Tensor]], micro: int) -> None:
        """Every row of a view has what plain hooks saw in this step."""
        found = dict(self._rows(view))
        rows = {(tensor, f"{self.prefix}{name}"): each for (tensor, name), each in expected.items() if tensor != "loss"}
        for key, parts in rows.items():
            everything = torch.cat([part.flatten() for part in parts])
            count, norm = found[key]
            assert count == everything.numel(), (view.step, key)
            assert norm == pytest.approx(float(everything.norm()), rel=1e-5), (view.step, key)
        for (tensor, name), (count, _) in found.items():
            if tensor == "output_grad":
                assert count == found["output", name][0], (view.step, name)
            if tensor == "final_grad":
                assert found[tensor, name] == found["grad", name], (view.step, name)
        losses = expected["loss", ""]
        assert len(losses) == micro
        assert view.summaries["run/loss"] == pytest.approx(float(sum(losses)) / micro, rel=1e-5)

    def _rows(self, view: Any) -> Iterator[tuple[tuple[str, str], tuple[int, float]]]:
        for tensor in ("output", "output_grad", "grad", "final_grad", "update"):
            counts, norms = view.stat(tensor, "count"), view.stat(tensor, "norm")
            for name, count, norm in zip(counts.names, counts.values.tolist(), norms.values.tolist(), strict=True):
                yield (tensor, name), (int(count), norm)
