"""Pairs of a good run and one with a silent change: what changes, and which rule is to name which row since when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from galleries.reference.models import EPOCH, Pictures, Tokens, Vectors, padded, pictures, stream

STEPS = 40


@dataclass(frozen=True)
class Made:
    """What one run trains.

    Args:
        module: the module.
        loader: the batches of training.
        val_loader: the batches of validation, if there are any.
        trainer: more arguments of the Trainer.
        ranks: the number of processes.
    """

    module: Any
    loader: DataLoader
    val_loader: DataLoader | None = None
    trainer: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1


@dataclass(frozen=True)
class Pair:
    """A good run and a changed one.

    Args:
        name: in kebab case.
        good: the name of the good run, which several pairs share.
        changed: makes the changed run of a seed.
        rule: which is to name the change; empty for none.
        rows: of which at least one must be the first of the finding.
        onset: the first step that the change acts on.
        resumed_at: the step at which both runs stop and are resumed from a checkpoint; 0 for none.
        doc: the change in a sentence.
    """

    name: str
    good: str
    changed: Callable[[int], Made]
    rule: str
    rows: tuple[str, ...]
    doc: str
    onset: int = 0
    resumed_at: int = 0


def of_pictures(seed: int, kind: type[Pictures] = Pictures) -> Made:
    torch.manual_seed(seed)
    return Made(kind(), *pictures(seed), trainer={"max_epochs": STEPS // EPOCH})


def of_tokens(seed: int, kind: type[Tokens] = Tokens) -> Made:
    torch.manual_seed(seed)
    return Made(kind(), padded(seed), trainer={"precision": "bf16-mixed"})


def of_stream(seed: int, *, shares: bool = True) -> Made:
    torch.manual_seed(seed)
    return Made(Vectors(), stream(seed, shares=shares))


def of_ranks(seed: int, kind: type[Vectors] = Vectors) -> Made:
    torch.manual_seed(seed)
    return Made(kind(), stream(seed, workers=0), trainer={"strategy": "ddp"}, ranks=2)


GOOD: dict[str, Callable[[int], Made]] = {
    "pictures": of_pictures,
    "tokens": of_tokens,
    "stream": of_stream,
    "ranks": of_ranks,
}
"""The good runs by name."""


class ValidatesInTraining(Pictures):
    """Forgets to leave training mode for its dropout."""

    def on_validation_model_eval(self) -> None:
        super().on_validation_model_eval()
        self.dropout.train()


class Thawed(Pictures):
    """Does not freeze its first layer."""

    def freeze(self) -> None:
        pass


class StartsAnew(Pictures):
    """Initialises a layer in a hook that also runs after a checkpoint was loaded."""

    def on_train_start(self) -> None:
        self.features[3].reset_parameters()


class RateShifted(Pictures):
    """Its schedule is one epoch ahead."""

    def factor(self, epoch: int) -> float:
        return super().factor(epoch + 1)


class NormEvaluates(Pictures):
    """One batch norm stays in evaluation mode from the second epoch on."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch > 0:
            self.features[4].eval()


class NotAugmented(Pictures):
    """Trains on the pictures as they are."""

    def augment(self, inputs: Tensor) -> Tensor:
        return inputs


class AutocastLost(Tokens):
    """Its second block is outside of autocast."""

    def block(self, number: int) -> Any:
        return torch.autocast("cpu", enabled=number != 1, dtype=torch.bfloat16)


class WrongCount(Tokens):
    """Divides the loss by all tokens, also by padding."""

    def count(self, targets: Tensor) -> Tensor:
        return torch.tensor(targets.numel())


class Untied(Tokens):
    """Its head is a weight of its own."""

    def tie(self) -> None:
        pass


class NotAveraged(Vectors):
    """The second rank sums the gradient of its head instead of averaging it."""

    def on_after_backward(self) -> None:
        gradient = self.head.weight.grad
        if self.global_rank == 1 and gradient is not None:
            gradient.mul_(2)


def _changed(make: Callable[..., Made], *args: Any, **options: Any) -> Callable[[int], Made]:
    return lambda seed: make(seed, *args, **options)


PAIRS = (
    Pair(
        *("dropout-in-validation", "pictures", _changed(of_pictures, ValidatesInTraining), "ReferenceModes", ("dropout",)),
        "Dropout is active in validation.",
        onset=EPOCH,
    ),
    Pair(
        *("frozen-layer-trains", "pictures", _changed(of_pictures, Thawed), "ReferenceTrained"),
        ("features.0.weight", "features.0.bias"),
        "A frozen layer trains.",
    ),
    Pair(
        *("weights-anew", "pictures", _changed(of_pictures, StartsAnew), "ReferenceWeights"),
        ("features.3.weight", "features.3.bias"),
        "A layer is initialised again when the run is resumed.",
        onset=2 * EPOCH,
        resumed_at=2 * EPOCH,
    ),
    Pair(
        *("workers-repeat", "stream", _changed(of_stream, shares=False), "ReferenceData", ("encoder",)),
        "Each worker of the loader reads the whole stream, so that batches come twice.",
    ),
    Pair(
        *("schedule-shifted", "pictures", _changed(of_pictures, RateShifted), "ReferenceSchedule", ("",)),
        "The learning rate is that of the next epoch.",
    ),
    Pair(
        *("autocast-lost", "tokens", _changed(of_tokens, AutocastLost), "ReferencePrecision"),
        tuple(f"blocks.1.{name}" for name in ("attention.query", "attention.key", "attention.value", "mlp.0")),
        "One block computes in float32 instead of bfloat16.",
    ),
    Pair(
        *("not-averaged", "ranks", _changed(of_ranks, NotAveraged), "ReferenceReplicas", ("head.weight",)),
        "One rank of two does not average a gradient.",
    ),
    Pair(
        *("wrong-count", "tokens", _changed(of_tokens, WrongCount), "ReferenceNumbers", ("loss",)),
        "The loss is divided by the number of all tokens, padding included.",
    ),
    Pair(
        *("untied", "tokens", _changed(of_tokens, Untied), "ReferenceStructure", ("embedding.weight", "head.weight")),
        "The head is not tied to the embedding any more.",
    ),
    Pair(
        *("norm-evaluates", "pictures", _changed(of_pictures, NormEvaluates), "ReferenceModes", ("features.4",)),
        "A batch norm is in evaluation mode from the second epoch on.",
        onset=EPOCH,
    ),
    Pair(
        *("not-augmented", "pictures", _changed(of_pictures, NotAugmented), "ReferenceNumbers", ("features.0",)),
        "The augmentation is switched off.",
    ),
    *(
        Pair(f"other-seed-{name}", name, make, "", (), f"Another seed only ({name}): nothing is to be said.")
        for name, make in GOOD.items()
    ),
)
"""All pairs; the last ones differ in their seed only, as all others do too."""
