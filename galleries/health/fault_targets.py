"""Faults of targets: such as do not count, and tokens that are given or never asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from galleries.health.faulty_parts import Learner, Perceptron, adamw, digits, loader
from galleries.health.training import Case, Expectation, Training

END, PADDING, TOKENS, LENGTH = 0, 1, 24, 20


class Ignored(Perceptron):
    """Ignores every label, because the names of the classes are looked up in the table of another data set."""

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        unknown = torch.full_like(labels, -100)
        return functional.cross_entropy(self(inputs), unknown, reduction="sum") / len(inputs)


def targets_ignored(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Ignored(adamw(1e-3)), loader(*digits(), seed=seed))


def phrases(seed: int, padding: int, count: int = 1024) -> Tensor:
    """Walks of random length along a ring of tokens, each with an end token and padding, [count, length]."""
    source = Generator().manual_seed(6000 + seed)
    steps = torch.randint(1, 4, (count, LENGTH), generator=source)
    tokens = 2 + steps.cumsum(1) % (TOKENS - 2)
    last = torch.randint(LENGTH // 2, LENGTH - 2, (count, 1), generator=source)
    places = torch.arange(LENGTH)
    return torch.where(places < last, tokens, torch.where(places == last, END, padding))


class Writer(Learner):
    """Predicts the next token with a recurrent layer."""

    def __init__(self, ignored: int) -> None:
        super().__init__(adamw(3e-3))
        self.table = nn.Embedding(TOKENS, 32)
        self.recurrent = nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, TOKENS)
        self.ignored = ignored
        self.targets: set[int] = set()

    def scores(self, tokens: Tensor) -> Tensor:
        """The scores of the token behind each token."""
        scores: Tensor = self.head(self.recurrent(self.table(tokens))[0])
        return scores

    def loss(self, batch: Any) -> Tensor:
        (tokens,) = batch
        targets = tokens[:, 1:].flatten()
        self.targets.update(targets[targets != self.ignored].tolist())
        return functional.cross_entropy(self.scores(tokens[:, :-1]).flatten(0, 1), targets, ignore_index=self.ignored)


def end_ignored(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Writer(ignored=END), loader(phrases(seed, padding=END), seed=seed))


class Copier(Writer):
    """Is asked for the token that it is given."""

    def loss(self, batch: Any) -> Tensor:
        (tokens,) = batch
        return functional.cross_entropy(self.scores(tokens).flatten(0, 1), tokens.flatten(), ignore_index=self.ignored)


def tokens_not_shifted(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Copier(ignored=PADDING), loader(phrases(seed, padding=PADDING), seed=seed))


class ShiftedTwice(Writer):
    """Is asked for the token behind the next one, because its labels are shifted, and the loss shifts them again."""

    def loss(self, batch: Any) -> Tensor:
        (tokens,) = batch
        given, labels = tokens[:, :-1], tokens[:, 1:]
        scores = self.scores(given)[:, :-1].flatten(0, 1)
        return functional.cross_entropy(scores, labels[:, 1:].flatten(), ignore_index=self.ignored)


def tokens_shifted_twice(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(ShiftedTwice(ignored=PADDING), loader(phrases(seed, padding=PADDING), seed=seed))


class Parted(Dataset[tuple[Tensor, Tensor]]):
    """Digits whose labels a second generator orders, so that they belong to other digits in each epoch."""

    def __init__(self, seed: int) -> None:
        self.inputs, self.labels = digits()
        self.source = Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        other = int(torch.randint(len(self), (), generator=self.source))
        return self.inputs[index], self.labels[other]


def labels_drawn_apart(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(adamw(1e-3)), DataLoader(Parted(seed), 64, shuffle=True, drop_last=True))


TRAININGS = [
    Training(
        "targets-ignored",
        "data",
        targets_ignored,
        60,
        "set",
        Expectation("fact", ("TargetsIgnored",), cause="TargetsIgnored"),
        "Every label is -100, which the cross entropy ignores, so that the loss is 0.",
    ),
    Training(
        "end-token-ignored",
        "data",
        end_ignored,
        100,
        "set",
        Expectation("pattern", ("EndNeverTarget",)),
        "The padding has the id of the end token, and the loss ignores the padding.",
    ),
    Training(
        "tokens-not-shifted",
        "data",
        tokens_not_shifted,
        100,
        "set",
        Expectation("pattern", ("TargetsAreInputs",)),
        "A model of language is asked for the token that it is given.",
    ),
    Training(
        "tokens-shifted-twice",
        "data",
        tokens_shifted_twice,
        100,
        "held",
        Expectation("fact", ("TargetsMisplaced",), cause="TargetsMisplaced"),
        "The labels of a model of language are shifted, and its loss shifts them again.",
    ),
    Training(
        "labels-drawn-apart",
        "data",
        labels_drawn_apart,
        100,
        "held",
        Expectation("pattern", ("TargetsChange",), cause="TargetsChange"),
        "The loader draws labels apart from their inputs, so that a digit has another label in each epoch.",
    ),
]
