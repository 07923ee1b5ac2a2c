"""Tied weights, shared modules, modules called several times or never: exact, and nothing counted twice."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Apply, CustomHooks, GradientTransforms, Hook, StatsMonitor, Watch
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Net, data, plain_sgd, trainer_of
from tests.conformance._tools import Book, Spy, everything, same_weights, three_runs


class Tied(Net):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__(plain_sgd, dropout=0.0)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
        self.body[2].weight = self.body[0].weight


class Recurrent(Net):
    """One cell, called `times` times; what the step of a recurrent network does."""

    def __init__(self, times: int = 3) -> None:
        super().__init__(plain_sgd, dropout=0.0)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.body(x)
        return self.head(x)


class Shared(Net):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__(plain_sgd, dropout=0.0)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        self.alias = self.body[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.body[2](self.body[1](self.alias(self.body[1](self.body[0](x)))))


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step. body.")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("make", [Tied, Recurrent, Shared])
def test_every_number(tmp_path: Path, make: Any, accumulate: int) -> None:
    three_runs(tmp_path, make, lambda: data(5), accumulate_grad_batches=accumulate)


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step. body.")
@pytest.mark.parametrize(
    ("make", "name", "alias"), [(Tied, "body.0.weight", "body.2.weight"), (Shared, "body.0.bias", "alias.bias")]
)
def test_a_tied_parameter_has_one_row_under_its_first_name_and_any_name_finds_it(
    tmp_path: Path, make: Any, name: str, alias: str
) -> None:
    monitor = StatsMonitor(
        [Watch(params=alias, tensors="grad", stats="norm"), Watch(params="*", tensors="update", stats="norm")]
    )
    trainer_of(tmp_path, monitor).fit(make(), data(2))
    rows = [tag for tag in monitor.latest if not tag.startswith("run/")]
    assert f"grad_norm/{name}" in rows and not [tag for tag in rows if tag.endswith(f"/{alias}")]
    assert len([tag for tag in rows if tag.startswith("grad_")]) == 1


@pytest.mark.parametrize("stage", ["step", "backward"])
def test_a_rule_that_finds_a_tied_weight_by_both_names_acts_once(tmp_path: Path, stage: str) -> None:
    def run(rate: float, *callbacks: Any) -> Tied:
        torch.manual_seed(0)
        model = Tied()
        model.make = lambda parameters: torch.optim.SGD(parameters, lr=rate)
        trainer_of(tmp_path, *callbacks).fit(model, data(4))
        return model

    rule = Apply(Scale(0.5), params=["body.0.*", "body.2.*", "body.3.*"], when=stage)
    same_weights(run(0.05), run(0.1, GradientTransforms([rule])))


@pytest.mark.parametrize("shared", ["weight", "module"])
@pytest.mark.parametrize(
    "where",
    [{"params": "*"}, {"params": "*", "when": "backward"}, {"modules": ["body.0", "body.2"]}],
    ids=["step", "backward", "module"],
)
def test_a_rule_acts_once_on_what_two_names_share_since_an_epoch_began(tmp_path: Path, shared: str, where: Any) -> None:
    """The gradient of each call of a module is halved, that of a parameter once."""

    class Ties(Net):
        def __init__(self, late: bool) -> None:
            super().__init__(plain_sgd, dropout=0.0)
            self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
            self.late = late
            if not late:
                self.tie()

        def tie(self) -> None:
            if shared == "weight":
                self.body[2].weight = self.body[0].weight
            else:
                self.body[2] = self.body[0]

        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 1:
                self.tie()
                with torch.no_grad():
                    for i, parameter in enumerate(self.parameters()):
                        parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) * (i + 1))

    calls = {True: 0, False: 0}

    def run(late: bool) -> Ties:
        def count(*args: Any) -> None:
            calls[late] += 1

        hooks = CustomHooks([Hook(count, modules=["body.0", "body.2"], kind="forward")])
        model = Ties(late)
        trainer_of(tmp_path, GradientTransforms([Apply(Scale(0.5), **where)]), hooks, max_epochs=2).fit(model, data(4))
        return model

    same_weights(run(late=False), run(late=True))
    assert calls[True] == calls[False] == 16


def test_a_module_called_several_times_counts_every_call(tmp_path: Path) -> None:
    spy = Spy()
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    trainer_of(tmp_path, monitor, GradientTransforms([Apply(spy, modules="body.0")])).fit(Recurrent(4), data(2))
    assert book.counts("output")["body.0"] == 4 * 4 * 6
    assert [len(seen["body.0"]) for seen in spy.seen.values()] == [4, 4]


class Idle(Net):
    """One layer is never called, one only from the second batch on."""

    def __init__(self) -> None:
        super().__init__(plain_sgd, dropout=0.0)
        self.never = nn.Linear(6, 6)
        self.later = nn.Linear(6, 6)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self(self.later(x) if batch_idx else x), y)


def test_modules_that_are_not_called_are_named_in_one_warning_and_have_no_row(tmp_path: Path) -> None:
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer_of(tmp_path, monitor, book, max_epochs=2).fit(Idle(), data(3))
    messages = [str(w.message) for w in seen if "were not called" in str(w.message)]
    assert len(messages) == 1 and "never, later (Linear; " in messages[0]
    assert not [tag for rows in book.rows.values() for tag in rows if tag.endswith("/never")]
    of_never = {tag.split("_")[0] for rows in book.rows.values() for tag in rows if "/never." in tag}
    assert of_never == {"param", "update"}  # its optimizer steps, and leaves it where it is
    assert set(book.values("update_norm/never.weight")) == {0.0}
    assert book.steps_of("output_norm/later") == book.steps_of("output_grad_norm/later") == [1, 2, 4, 5]


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step")
def test_every_number_where_modules_are_not_called(tmp_path: Path) -> None:
    three_runs(tmp_path, Idle, lambda: data(4), accumulate_grad_batches=2)


class Dropped(Net):
    """Layers dropped at random, as stochastic depth does."""

    def __init__(self) -> None:
        super().__init__(plain_sgd, dropout=0.0)
        self.body = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            if torch.rand(()) < 0.5:
                x = x + layer(x).tanh()
        return self.head(x)


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step")
def test_layers_dropped_at_random(tmp_path: Path) -> None:
    """Several modules read one tensor: the gradient of each one's input is its own contribution, tested in the engine."""
    three_runs(tmp_path, Dropped, lambda: data(6), tensors=["input", "output", "output_grad", "param", "grad", "update"])
