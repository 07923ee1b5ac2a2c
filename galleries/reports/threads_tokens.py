"""Threads on tokens: which of them are targets."""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from galleries.reports.report import Report, Run


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
