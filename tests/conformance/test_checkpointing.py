"""Activation checkpointing: what is computed twice is seen once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch, instrument
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Net, data, plain_sgd, trainer_of
from tests.conformance._tools import Book, Spy, Witness, compare, everything, same_weights


def matmuls(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


KINDS: dict[str, Callable[..., Any]] = {
    "reentrant": partial(checkpoint, use_reentrant=True),
    "non-reentrant": partial(checkpoint, use_reentrant=False),
    "no early stop": partial(checkpoint, use_reentrant=False, early_stop=False),
    "selective": partial(checkpoint, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, matmuls)),
}


class Blocks(Net):
    """A stem and blocks with dropout, each block checkpointed where `run` does that."""

    def __init__(self, run: Callable[..., Any] | None = None, nested: bool = False) -> None:
        super().__init__(plain_sgd)
        self.run, self.nested = run, nested
        self.body = nn.Sequential(nn.Linear(6, 6), *(self.block() for _ in range(2)), nn.Linear(6, 3))

    def block(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        if self.nested and self.run is not None:
            x = self.run(lambda x: self.run(self.body[1], self.body[0](x)), x.requires_grad_(True))
            return self.body[3](self.run(self.body[2], x))
        for i, layer in enumerate(self.body):
            x = layer(x) if self.run is None or i in (0, 3) else self.run(layer, x)
        return x


pytestmark = [
    pytest.mark.filterwarnings("ignore:matched modules were not called in the first step. body."),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),  # inside a reentrant checkpoint
]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_that_of_the_model_without_checkpoints(tmp_path: Path, kind: str, accumulate: int) -> None:
    def run(checkpointing: Callable[..., Any] | None, *callbacks: Any) -> Blocks:
        torch.manual_seed(0)
        model = Blocks(checkpointing)
        torch.manual_seed(1)
        trainer_of(tmp_path, *callbacks, accumulate_grad_batches=accumulate).fit(model, data(4))
        return model

    witness = Witness()
    plain = run(None, witness)
    same_weights(plain, run(KINDS[kind]))
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    spies = Spy(), Spy(), Spy()
    rules = [Apply(spies[0], params="*"), Apply(spies[1], params="*", when="backward"), Apply(spies[2], modules="*")]
    same_weights(plain, run(KINDS[kind], monitor, GradientTransforms(rules), book))
    compare(book, witness.steps)
    for spy in spies[1:]:
        for named in spy.seen.values():
            assert all(len(seen) == accumulate for name, seen in named.items()), {n: len(s) for n, s in named.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_in_the_backward_of_a_checkpointed_module_acts_once(tmp_path: Path, kind: str) -> None:
    def run(checkpointing: Callable[..., Any] | None) -> Blocks:
        torch.manual_seed(0)
        model = Blocks(checkpointing)
        torch.manual_seed(1)
        rules = [Apply(Scale(3.0), modules="body.1.1"), Apply(Scale(0.5), modules="body.2.0", tensor="input_grad")]
        trainer_of(tmp_path, GradientTransforms(rules)).fit(model, data(4))
        return model

    same_weights(run(None), run(KINDS[kind]))


@pytest.mark.parametrize("kind", ["reentrant", "non-reentrant"])
def test_a_checkpoint_inside_a_checkpoint(tmp_path: Path, kind: str) -> None:
    def run(checkpointing: Callable[..., Any] | None, *callbacks: Any) -> Blocks:
        torch.manual_seed(0)
        model = Blocks(checkpointing, nested=True)
        torch.manual_seed(1)
        trainer_of(tmp_path, *callbacks).fit(model, data(4))
        return model

    witness = Witness()
    plain = run(None, witness)
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    same_weights(plain, run(KINDS[kind], monitor, book))
    for rows in book.rows.values():  # the input of the outer checkpoint was made to need a gradient
        for tag in [tag for tag in rows if tag.startswith("input_grad_") and tag.endswith("/body.0")]:
            del rows[tag]
    compare(book, witness.steps)


class First(nn.Module):
    def forward(self, nest: Any) -> Tensor:
        return nest[0]  # type: ignore[no-any-return]


class HandsThrough(nn.Module):
    """A block that returns its input as it is, given as an argument, within one, or by name."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.inner = {"identity": nn.Identity, "in a nest": First}.get(way, nn.Dropout)()

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "in a nest":
            return self.inner([x, 1])  # type: ignore[no-any-return]
        return self.inner(input=x) if self.way == "by name" else self.inner(x)  # type: ignore[no-any-return]


class Through(Net):
    """A checkpointed block whose first modules hand their input through."""

    def __init__(self, run: Callable[..., Any] | None, way: str, calls: int) -> None:
        super().__init__(plain_sgd)
        self.run, self.calls = run, calls
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Sequential(HandsThrough(way), nn.Linear(6, 6)), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body[0](x)
        for _ in range(self.calls):
            x = self.body[1](x) if self.run is None else self.run(self.body[1], x)
        return self.body[2](x)


# Without reentrance, what is given by name is not known to be handed through: see docs/support.md.
@pytest.mark.parametrize(("calls", "accumulate", "shared"), [(1, 1, False), (3, 2, False), (1, 1, True)])
@pytest.mark.parametrize(
    ("kind", "way"),
    [*itertools.product(["reentrant", "non-reentrant"], ["identity", "dropout", "in a nest"]), ("reentrant", "by name")],
)
def test_what_a_module_hands_through_counts_once(
    tmp_path: Path, kind: str, way: str, calls: int, accumulate: int, shared: bool
) -> None:
    def run(checkpointing: Callable[..., Any] | None) -> dict[int, dict[str, float]]:
        torch.manual_seed(0)
        model = Through(checkpointing, way, calls)
        rules = [Watch(modules="body.1*", tensors="output_grad", stats=["norm", "mean"])]
        monitor = StatsMonitor(rules)
        book = Book(monitor)
        others = [StatsMonitor(rules, prefix="other/")] if shared else []
        trainer_of(tmp_path, monitor, *others, book, accumulate_grad_batches=accumulate).fit(model, data(4))
        return book.rows

    plain, checkpointed = run(None), run(KINDS[kind])
    assert plain.keys() == checkpointed.keys() and plain
    for step, rows in plain.items():
        for tag, value in rows.items():
            assert checkpointed[step][tag] == pytest.approx(value, rel=1e-5), tag


class Reversed(torch.autograd.Function):
    """Runs a module without a graph, and once more in the backward, as reversible networks and other checkpoints do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.save_for_backward(x)
        ctx.module = module
        return module(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_(True)
            torch.autograd.backward(ctx.module(again), grads[0])
        return again.grad, None


def test_a_recomputation_by_other_means_is_seen_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(3, 3))
    x = torch.randn(4, 3, requires_grad=True)
    rules = [Watch(modules="*", tensors=["output", "output_grad"], stats=["norm"])]
    numbers = []
    for run in (model, lambda x: Reversed.apply(x, model)):
        with instrument(model, [StatsMonitor(rules)]) as watched:
            run(x * 2).sum().backward()
            watched.step()
            numbers.append(dict(watched.latest))
    # The graph of the second loss reaches no parameter, so that loss is not found.
    assert numbers[0].pop("run/loss") == pytest.approx(model(x * 2).sum().item())
    assert numbers[0] == pytest.approx(numbers[1]) and {"output_norm/0", "output_grad_norm/0"} <= numbers[0].keys()


def test_a_forward_in_a_backward_hook_is_taken_for_a_recomputation() -> None:
    """A known limit, see docs/support.md; gradients through such a forward are measured."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"cell": nn.Linear(3, 3), "solver": nn.Linear(3, 3)})
    rules = [Watch(modules="*", tensors=["output", "output_grad"], stats=["norm"])]

    def solve(gradient: Tensor) -> None:
        with torch.enable_grad():
            model["solver"](gradient.detach()).sum().backward()

    with instrument(model, [StatsMonitor(rules)]) as watched:
        y = model["cell"](torch.ones(4, 3))
        y.register_hook(solve)
        y.sum().backward()
        watched.step()
        numbers = watched.latest
    assert numbers["output_norm/cell"] == pytest.approx(y.detach().norm().item())
    assert "output_norm/solver" not in numbers
    assert numbers["output_grad_norm/solver"] == numbers["output_grad_norm/cell"] == pytest.approx(12**0.5)
