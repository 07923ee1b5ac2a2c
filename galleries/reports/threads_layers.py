"""Reports about layers that are pooled over nothing, repeated or loaded: threads 19, 21 and 25."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


class ReviewNet(nn.Module):
    """A review is the mean of the features of its words; words that are not in the vocabulary are 0 and do not count."""

    def __init__(self, words: int, dim: int, is_fixed: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        self.encoder = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.head = nn.Linear(dim, 2)
        self.is_fixed = is_fixed

    def forward(self, tokens: Tensor) -> Any:
        """The logits of the two classes."""
        mask = (tokens > 0).unsqueeze(-1).float()
        count = mask.sum(1)
        total = (self.encoder(self.embedding(tokens)) * mask).sum(1)
        mean = total / count.clamp(min=1) if self.is_fixed else total / count
        return self.head(torch.where(count > 0, mean, torch.zeros_like(mean)))


def make_reviews(rows: int) -> tuple[Tensor, Tensor]:
    """Reviews of at most 10 words of 400, of which the first half is said more often in good ones; most words are unknown."""
    labels = torch.randint(0, 2, (rows,))
    is_other_half = torch.rand(rows, 10) < torch.where(labels == 1, 0.8, 0.2).unsqueeze(1)
    tokens = torch.randint(1, 200, (rows, 10)) + 200 * is_other_half.long()
    return tokens * (torch.rand(rows, 10) < 0.5), labels


def train_reviews(run: Run) -> float:
    """Classify reviews."""
    torch.manual_seed(run.seed)
    model = ReviewNet(400, 32, run.is_fixed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(*make_reviews(6400)), batch_size=32, shuffle=True)
    with run.watching(model, optimizer):
        for _ in range(2):
            for tokens, labels in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(tokens), labels)
                loss.backward()
                optimizer.step()
    model.eval()
    tokens, labels = make_reviews(1000)
    with torch.no_grad():
        return -F.cross_entropy(model(tokens), labels).item()


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The input and what is added to it."""
        return F.relu(x + self.body(x))


class SmallResNet(nn.Module):
    """A stem, residual blocks, and a head on the mean over the image."""

    def __init__(self, channels: int, depth: int, is_fixed: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        blocks = [ResidualBlock(channels) for _ in range(depth)] if is_fixed else [ResidualBlock(channels)] * depth
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Any:
        """The logits of the ten classes."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def train_resnet(run: Run) -> float:
    """Classify digits."""
    torch.manual_seed(run.seed)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[order] / 16
    labels = torch.tensor(digits.target)[order]
    model = SmallResNet(12, 4, run.is_fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    loader = DataLoader(TensorDataset(images[:1280], labels[:1280]), batch_size=32, shuffle=True)
    with run.watching(model, optimizer):
        for _ in range(5):
            model.train()
            for image, label in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(image), label)
                loss.backward()
                optimizer.step()
                schedule.step()
    model.eval()
    with torch.no_grad():
        return float((model(images[1280:]).argmax(1) == labels[1280:]).float().mean())


class SentimentLSTM(pl.LightningModule):
    """An LSTM over pretrained word vectors."""

    def __init__(self, vectors: Tensor, is_fixed: bool) -> None:
        super().__init__()
        if is_fixed:
            self.embedding = nn.Embedding.from_pretrained(vectors, freeze=False)
        else:
            self.embedding = nn.Embedding.from_pretrained(vectors)
        self.lstm = nn.LSTM(vectors.shape[1], 32, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Any:
        """The logits of the two classes."""
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.head(hidden[-1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        tokens, labels = batch
        loss = F.cross_entropy(self(tokens), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam on everything."""
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def make_vectors(words: int, dim: int) -> Tensor:
    """Vectors as of another corpus: a word and its opposite (good, bad) stand in the same places and are nearly the same."""
    meanings = torch.randn(words // 2, dim)
    return torch.cat([meanings, meanings]) + 0.01 * torch.randn(words, dim)


def make_sentences(rows: int, words: int) -> tuple[Tensor, Tensor]:
    """Sentences of 10 words, of which the second half are opposites, said more often in bad reviews."""
    labels = torch.randint(0, 2, (rows,))
    is_opposite = torch.rand(rows, 10) < torch.where(labels == 1, 0.85, 0.15).unsqueeze(1)
    return torch.randint(0, words // 2, (rows, 10)) + words // 2 * is_opposite.long(), labels


def train_sentiment(run: Run) -> float:
    """Classify sentences by their sentiment."""
    torch.manual_seed(run.seed)
    model = SentimentLSTM(make_vectors(200, 24), run.is_fixed)
    loader = DataLoader(TensorDataset(*make_sentences(3200, 200)), batch_size=32, shuffle=True)
    run.trainer(max_steps=300, gradient_clip_val=1.0).fit(model, loader)
    model.eval()
    tokens, labels = make_sentences(1000, 200)
    with torch.no_grad():
        return float((model(tokens).argmax(1) == labels).float().mean())


REPORTS = [
    Report(
        number=19,
        name="where-empty-row",
        doc="The mean over the words is 0 / 0 for a review without known words, and `where` hides that forward only.",
        train=train_reviews,
        cause=(
            "in ReviewNet.forward the division by `count` is 0 / 0 at the first review without words; `torch.where` drops "
            "the NaN forward, but the gradient of the branch that is not taken is 0 * inf = NaN, and the step at that "
            "batch makes all weights of the encoder and the embedding NaN; divide by `count.clamp(min=1)`"
        ),
    ),
    Report(
        number=21,
        name="layer-times-n",
        doc="The residual blocks are made by `[block] * 4`, which is one block four times, with one set of running statistics.",
        train=train_resnet,
        cause=(
            "the four entries of `blocks` are the same module, so four depths share its weights, and its batch norms mix the "
            "statistics of four depths, which makes the evaluation wrong; make a block for each with a list comprehension"
        ),
    ),
    Report(
        number=25,
        name="from-pretrained-freezes",
        doc="`nn.Embedding.from_pretrained` freezes the vectors, in which a word and its opposite are nearly the same.",
        train=train_sentiment,
        cause=(
            "`embedding.weight` does not require gradients and never moves although the optimizer holds it, because "
            "`nn.Embedding.from_pretrained` freezes by default; give `freeze=False`"
        ),
    ),
]
