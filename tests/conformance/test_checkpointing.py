"""Activation checkpointing: what is computed twice is seen once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lightning_hooks import Apply, GradientTransforms, Scale, StatsMonitor
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
    pytest.mark.filterwarnings("ignore:matched modules were not called in the first watched step. body."),
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
