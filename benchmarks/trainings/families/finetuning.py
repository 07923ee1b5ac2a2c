"""Networks that have learned digits with much noise, and are then fine-tuned: at a very small rate, by adapters of low rank
(LoRA), by a new head alone, or by a new head first and by all layers later.

Healthy: the model makes at most 60 % of the errors, on digits that it was not trained on, of guessing the most frequent class.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import (
    ACTIVATIONS,
    CLASSIFICATION,
    Learner,
    accuracy_margin,
    cross_entropy,
    dropouts,
    loader,
    predicted,
    seeded,
    split,
)
from benchmarks.trainings.spec import Spec, seed_of
from benchmarks.trainings.unfreezing import with_unfreezing
from galleries.health.faulty_parts import digits
from galleries.health.training import Case

_TINY = 3e-4
"""The factor of the usual rate at which a network is tuned that knows its task already: about 1e-6 for Adam."""


def _draw(random: Random) -> Mapping[str, Any]:
    mode = random.choice(["tiny", "lora", "probe", "unfreeze"])
    return {
        "mode": mode,
        "pace": {"tiny": _TINY, "probe": 3.0}.get(mode, 1.0),
        "width": random.choice([48, 96]),
        "depth": random.choice([2, 3, 4]),
        "norm": random.choice(["none", "layer", "batch"]),
        "rank": random.choice([2, 4, 8]),
    }


class Lora(nn.Module):
    """Adds a product of two narrow matrices, of which the second one starts at zero, to a frozen linear layer."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.up(self.down(inputs))


class Tuned(nn.Module):
    """A body of blocks, and a head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        width = spec["width"]
        norms: Mapping[str, list[Any]] = {"none": [], "layer": [nn.LayerNorm], "batch": [nn.BatchNorm1d]}
        blocks = []
        for index in range(spec["depth"]):
            layers = [nn.Linear(width if index else 64, width), *(norm(width) for norm in norms[spec["norm"]])]
            blocks.append(nn.Sequential(*layers, ACTIVATIONS[spec.activation](), *dropouts(spec)))
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.body(pixels))


@lru_cache(maxsize=4)
def _learned(spec: Spec) -> Mapping[str, Tensor]:
    """The weights of a network after 150 updates on noisy digits."""
    pixels, labels = data(spec, "train")
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed_of(spec.seed, "before"))
        model = Tuned(spec)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(150):
            chosen = torch.randint(len(pixels), (64,))
            loss = cross_entropy(model(pixels[chosen] + torch.randn(64, 64)), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """1,400 digits to train on, or the others."""
    pixels, labels = digits()
    chosen = split(pixels, spec, purpose)
    return pixels[chosen], labels[chosen]


def _before(spec: Spec) -> Spec:
    """What decides the network that is tuned."""
    return Spec("finetuning", spec.seed, 0, "", spec.activation, "", "", 0.0, shape=spec.shape)


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    model, mode = Tuned(spec), spec["mode"]
    new = nn.Linear(spec["width"], 10)
    model.load_state_dict(_learned(_before(spec)))
    if mode != "tiny":
        model.head = new
    if mode == "lora":
        blocks: Any = model.body
        for block in blocks:
            block[0] = Lora(block[0], spec["rank"])
    if mode == "probe":
        model.body.requires_grad_(False)
    module = Learner(spec, model, CLASSIFICATION[spec.loss])
    case = Case(module, loader(spec, *data(spec, "train")))
    return with_unfreezing(case, model.body, 1) if mode == "unfreeze" else case


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the errors of guessing that the model does not make on fresh digits."""
    inputs, labels = data(spec, "fresh")
    return accuracy_margin(predicted(module, inputs), labels)


FAMILY = Family(
    "finetuning",
    0.4,
    _draw,
    make,
    measure,
    tuple(CLASSIFICATION),
    optimizers=("adam", "adam-fused", "adamw", "adamw-fast", "adamw-foreach", "nadam", "radam", "sgd", "momentum"),
    initialisations=("default",),
    batches=(16, 32, 64),
    tricks=False,
)
