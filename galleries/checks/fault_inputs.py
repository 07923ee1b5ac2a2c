"""Bugs of the inputs: ignored, or of a scale that layers do not expect."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.checks.case import Expected, Fit, Pattern, Plain
from galleries.checks.parts import (
    BATCH,
    CLASSES,
    FEATURES,
    Language,
    Learner,
    blobs,
    classified,
    fitted,
    images,
    loader,
    mlp,
    predicts_tokens,
    tokens,
    waves,
)


class TwoTowers(nn.Module):
    """Gives the features of the user to the tower of the item, too."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        user, _ = inputs.split(6, dim=1)
        return (self.user(user) * self.item(user)).sum(1, keepdim=True)


class Text(nn.Module):
    """Averages the embeddings of padding, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 24, padding_idx=0), nn.Linear(24, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.embedding(ids).mean(1))


class ImageAndTable(Learner):
    """Takes an image and a row of a table, and forgets the row."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 24))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.head(self.image(image).relu())

    def loss(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self(batch["image"], batch["table"]), batch["label"])


class SeesTheFuture(Language):
    is_causal = False


def towers() -> Plain:
    torch.manual_seed(0)
    inputs, targets = waves()
    return classified(TwoTowers(), inputs, targets, loss=functional.mse_loss)


def mask_ignored() -> Plain:
    torch.manual_seed(0)
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[::2, 5:] = 0
    return classified(Text(), {"ids": ids * mask, "mask": mask}, torch.arange(BATCH) % CLASSES)


def table_ignored() -> Fit:
    torch.manual_seed(0)
    (pixels, labels), (rows, _) = images(4 * BATCH), blobs(4 * BATCH)
    return Fit(ImageAndTable(), loader(image=pixels, table=rows, label=labels), ("image", "table"))


def sees_the_future() -> Plain:
    return predicts_tokens(SeesTheFuture)


def pixels_to_255() -> Plain:
    torch.manual_seed(0)
    pixels, labels = images()
    pixels = (64 * pixels + 128).clamp(0, 255).round()
    return classified(nn.Sequential(nn.Flatten(), mlp(64)), pixels, labels)


class Perceptron(Learner):
    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def year_as_feature() -> Fit:
    inputs, labels = blobs(4 * BATCH)
    inputs[:, 3] = 2000 + 10 * inputs[:, 3]
    return fitted(Perceptron, inputs, labels)


def one_sample_repeated() -> Fit:
    inputs, labels = blobs(4 * BATCH)
    return fitted(Perceptron, inputs[:1].expand_as(inputs).clone(), labels)


def constant_inputs() -> Plain:
    torch.manual_seed(0)
    _, labels = blobs()
    return classified(mlp(), torch.zeros(BATCH, FEATURES), labels)


FAMILY = "inputs"
PATTERNS = [
    Pattern(
        "half-of-the-features",
        FAMILY,
        towers,
        "A variable is used twice, so that half of the features have no influence.",
        Expected(("InputsMatter",), "fail"),
        peer=4,
    ),
    Pattern(
        "mask-ignored",
        FAMILY,
        mask_ignored,
        "The mask of padding is an argument that nothing reads.",
        Expected(("InputsMatter",), "fail", "*mask*"),
        peer=5,
    ),
    Pattern(
        "table-ignored",
        FAMILY,
        table_ignored,
        "Of an image and a row of a table, only the image is used.",
        Expected(("InputsMatter",), "fail", "*table*"),
    ),
    Pattern(
        "future-visible",
        FAMILY,
        sees_the_future,
        "A language model without a causal mask is given the next tokens that it shall predict.",
        Expected(("FutureIsHidden",), "fail"),
    ),
    Pattern(
        "pixels-to-255",
        FAMILY,
        pixels_to_255,
        "Pixels from 0 to 255 are not normalised.",
        Expected(("InputNotNormalised",), "warn"),
    ),
    Pattern(
        "year-as-feature",
        FAMILY,
        year_as_feature,
        "One of twelve features is a year.",
        Expected(("InputNotNormalised",), "warn"),
    ),
    Pattern(
        "one-sample-repeated",
        FAMILY,
        one_sample_repeated,
        "The data set returns one sample under all indices, with different labels.",
        Expected(("ConstantOutput", "InputNotNormalised", "InputsMatter"), "warn"),
    ),
    Pattern(
        "inputs-all-zero",
        FAMILY,
        constant_inputs,
        "All inputs are 0.",
        Expected(("ConstantOutput", "InputNotNormalised"), "warn"),
    ),
]
