"""Threads on sequences: which axis they lie along, and which of their tokens are targets."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of 8 x 8 and their labels: of 1,300 to train with, and the others."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32) / 8 - 1
    y = torch.tensor(data.target)
    return x[:1300], y[:1300], x[1300:], y[1300:]


class VisionTransformer(LightningModule):
    """A ViT with patches of 2 x 2 that classifies by a token of its own."""

    def __init__(self, run: Run, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        if run.is_fixed:
            layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, activation="gelu", norm_first=True, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, activation="gelu", norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the ten digits."""
        patches = self.embed(images.unsqueeze(1)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.position
        out: Tensor = self.head(self.encoder(x)[:, 0])
        return out

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW with a cosine."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 220)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train_batch_first(run: Run) -> float:
    """A ViT for digits; the accuracy."""
    torch.manual_seed(run.seed)
    x, y, x_test, y_test = digits()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=True)
    module = VisionTransformer(run)
    trainer = run.trainer(max_steps=220, max_epochs=-1)
    trainer.fit(module, loader)
    module.eval()
    with torch.no_grad():
        return float((module(x_test).argmax(1) == y_test).float().mean())


class PositionalEncoding(nn.Module):
    """Sines and cosines of the time step, added to sequences of shape [time, batch, features]."""

    table: Tensor

    def __init__(self, dim: int, longest: int = 200) -> None:
        super().__init__()
        time = torch.arange(longest).unsqueeze(1)
        rates = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        table = torch.zeros(longest, 1, dim)
        table[:, 0, 0::2] = torch.sin(time * rates)
        table[:, 0, 1::2] = torch.cos(time * rates)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the time."""
        out: Tensor = x + self.table[: x.size(0)]
        return out


class SeriesClassifier(nn.Module):
    """A transformer over time series of shape [batch, time]."""

    def __init__(self, run: Run, dim: int = 32) -> None:
        super().__init__()
        self.run = run
        self.embed = nn.Linear(1, dim)
        self.time = PositionalEncoding(dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 4)

    def forward(self, series: Tensor) -> Tensor:
        """Scores of the four shapes."""
        x = self.embed(series.unsqueeze(-1))
        if self.run.is_fixed:
            x = self.time(x.transpose(0, 1)).transpose(0, 1)
        else:
            x = self.time(x)
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


def shapes(count: int, length: int = 24) -> tuple[Tensor, Tensor]:
    """Noisy series that rise, fall, have a peak in the middle or a valley."""
    time = torch.linspace(-1, 1, length)
    curves = torch.stack([time, -time, 1 - 2 * time.abs(), 2 * time.abs() - 1])
    labels = torch.randint(4, (count,))
    return curves[labels] * (0.5 + torch.rand(count, 1)) + 0.5 * torch.randn(count, length), labels


def train_time_along_batch(run: Run) -> float:
    """A transformer that tells shapes of time series apart; the accuracy."""
    torch.manual_seed(run.seed)
    loader = DataLoader(TensorDataset(*shapes(3200)), batch_size=32, shuffle=True)
    model = SeriesClassifier(run)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with run.watching(model, optimizer):
        for _ in range(2):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    x, y = shapes(128)
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


class Gpt(nn.Module):
    """A GPT of two blocks."""

    def __init__(self, vocabulary: int, dim: int = 32, longest: int = 40) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(longest, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.0, activation="gelu", norm_first=True, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, vocabulary))

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next token at each position."""
        length = ids.size(1)
        x = self.tokens(ids) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        out: Tensor = self.head(self.blocks(x, mask=mask, is_causal=True))
        return out


MONTHS = "January February March April May June July August September October November December".split()
LETTERS = sorted(set("".join(MONTHS) + "0123456789 "))
EOS, BOS = 0, 1


def date() -> str:
    """A date in a style like 7 March 1984."""
    day, month, year = (int(torch.randint(low, high, ())) for low, high in ((1, 29), (0, 12), (1900, 2000)))
    return f"{day} {MONTHS[month]} {year}"


def collate(texts: list[str], pad: int) -> Tensor:
    """The ids of texts with their first and their end token, padded to the same length."""
    rows = [[BOS, *(LETTERS.index(letter) + 3 for letter in text), EOS] for text in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])


@torch.no_grad()
def generate(model: nn.Module, count: int, longest: int = 24) -> list[str]:
    """Texts that the model draws until its end token, or until they are too long."""
    ids = torch.full((count, 1), BOS)
    for _ in range(longest):
        probabilities = F.softmax(model(ids)[:, -1] / 0.7, dim=-1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1)], dim=1)
    texts = []
    for row in ids[:, 1:].tolist():
        ended = row[: row.index(EOS)] if EOS in row else row
        texts.append("".join(LETTERS[each - 3] if each > 2 else "?" for each in ended))
    return texts


def train_end_token(run: Run) -> float:
    """A GPT that writes dates letter by letter; the share of its texts that are a date and nothing else."""
    torch.manual_seed(run.seed)
    texts = [date() for _ in range(2000)]
    pad = 2 if run.is_fixed else EOS
    model = Gpt(len(LETTERS) + 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=300)
    with run.watching(model, optimizer):
        for _ in range(300):
            batch = collate([texts[each] for each in torch.randint(2000, (32,)).tolist()], pad)
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=pad)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()
    pattern = re.compile(rf"\d{{1,2}} ({'|'.join(MONTHS)}) 19\d\d")
    return sum(pattern.fullmatch(text) is not None for text in generate(model, 256)) / 256


GOOD, BAD = "great warm clever moving funny bright".split(), "dull slow cold flat noisy bleak".split()
WORDS = [*(" " + word for word in GOOD + BAD), "Review", " Sentiment", "Sentiment", ":", " positive", " negative"]


def encode(text: str) -> list[int]:
    """Splits a text like a byte-pair tokenizer, with the blank before a word as part of it."""
    return [WORDS.index(piece) for piece in re.findall(r" ?\w+|:", text)]


def reviews(count: int) -> list[str]:
    """Reviews of five words, with what most of them say as an answer."""
    texts = []
    for _ in range(count):
        picks = torch.randint(12, (5,)).tolist()
        answer = "positive" if sum(pick < 6 for pick in picks) > 2 else "negative"
        texts.append(f"Review: {' '.join((GOOD + BAD)[pick] for pick in picks)} Sentiment: {answer}")
    return texts


class InstructionTuning(LightningModule):
    """Trains a GPT on the answers alone."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.template = encode(" Sentiment:") if run.is_fixed else encode("Sentiment:")
        self.model = Gpt(len(WORDS), dim=32)

    def collate(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Tokens, and labels of -100 up to the answer."""
        ids = torch.tensor([encode(text) for text in texts])
        labels = torch.full_like(ids, -100)
        width = len(self.template)
        for row, target in zip(ids, labels, strict=True):
            for start in range(len(row) - width):
                if row[start : start + width].tolist() == self.template:
                    target[start + width :] = row[start + width :]
        return ids, labels

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Cross entropy per token of an answer."""
        ids, labels = batch
        logits, targets = self.model(ids[:, :-1]).flatten(0, 1), labels[:, 1:].flatten()
        total = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        loss: Tensor = total / (targets != -100).sum().clamp(min=1)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)


def train_answers_ignored(run: Run) -> float:
    """A GPT tuned to answer whether a review is positive; the accuracy."""
    torch.manual_seed(run.seed)
    module = InstructionTuning(run)
    texts: Any = reviews(4000)
    loader: DataLoader[Any] = DataLoader(texts, batch_size=32, shuffle=True, collate_fn=module.collate)
    trainer = run.trainer(max_epochs=2, gradient_clip_val=1.0)
    trainer.fit(module, loader)
    module.eval()
    ids = torch.tensor([encode(text) for text in reviews(512)])
    with torch.no_grad():
        return float((module.model(ids[:, :-1])[:, -1].argmax(-1) == ids[:, -1]).float().mean())


REPORTS = [
    Report(
        14,
        "attention-over-the-batch",
        "A transformer's encoder is made without `batch_first=True` and given sequences of shape [batch, time, features].",
        train_batch_first,
        "`encoder` takes the first axis, the batch of 32, as the sequence: its attention mixes samples and not the 17 "
        "tokens of an image; `batch_first=True` is missing",
    ),
    Report(
        15,
        "time-embedding-along-the-batch",
        "A positional encoding for [time, batch, features] is added to [batch, time, features].",
        train_time_along_batch,
        "`time` adds its encoding along the first axis, which is the batch: all time steps of a series get the same vector, "
        "which depends on the place of the series in the batch; outputs depend on that place, and the order is not seen",
    ),
    Report(
        16,
        "end-token-never-a-target",
        "The padding has the id of the end token, and the loss ignores the padding.",
        train_end_token,
        "the end token (id 0) is never a target, since the loss ignores its id as padding: its score is only pushed down, "
        "and texts do not end",
    ),
    Report(
        17,
        "all-targets-ignored",
        "The template that marks the answer has other tokens alone than within the text, so that no answer is found.",
        train_answers_ignored,
        "every target is -100: the loss is exactly 0 at every step, and so are all gradients; nothing is learned",
    ),
]
