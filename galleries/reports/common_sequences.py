"""Common faults with sequences: a recurrent network that explodes, no causal mask, the logarithm of 0 in an entropy."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


class ReLURNN(pl.LightningModule):
    """A recurrent network with ReLU that reads a signal and says its class."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        nn.init.eye_(self.rnn.get_parameter("weight_hh_l0"))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The logits, from the last state."""
        states, _ = self.rnn(x)
        outputs: Tensor = self.head(states[:, -1])
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def train_exploding_rnn(run: Run) -> float:
    """Tell three frequencies of noisy waves of 120 samples apart."""
    pl.seed_everything(run.seed, verbose=False)
    y = torch.randint(3, (2400,))
    time = torch.arange(120) / 10
    angle = (1 + y[:, None]) * time + 6.28 * torch.rand(2400, 1)
    x = torch.stack([torch.sin(angle), torch.cos(angle)], -1) + 0.1 * torch.randn(2400, 120, 2)
    loader = DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=32, shuffle=True)
    model = ReLURNN(48 * run.width)
    run.trainer(max_epochs=4, gradient_clip_val=0.5 if run.is_fixed else None).fit(model, loader)
    with torch.no_grad():
        return float((model(x[2000:]).argmax(1) == y[2000:]).float().mean())


class CausalLM(pl.LightningModule):
    """A small transformer that predicts the next character."""

    def __init__(self, vocabulary: int, width: int, length: int, is_fixed: bool) -> None:
        super().__init__()
        self.is_causal = is_fixed
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the next token at each place."""
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.is_causal else None
        outputs: Tensor = self.lm_head(self.norm(self.blocks(x, mask=mask, is_causal=self.is_causal)))
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy of the next character."""
        (text,) = batch
        logits = self(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def random_text(length: int) -> Tensor:
    """Characters of a chain in which each of 24 is followed by one of three."""
    followers = torch.stack([torch.randperm(24)[:3] for _ in range(24)])
    text, choices = [0], torch.randint(3, (length,)).tolist()
    for choice in choices:
        text.append(int(followers[text[-1], choice]))
    return torch.tensor(text)


def train_language_model(run: Run) -> float:
    """Predict a chain of characters; the measure is the log-likelihood of what follows a prefix."""
    pl.seed_everything(run.seed, verbose=False)
    windows = random_text(24000).unfold(0, 33, 16)
    loader = DataLoader(TensorDataset(windows[:1300]), batch_size=32, shuffle=True)
    model = CausalLM(24, 32 * run.width, 32, run.is_fixed)
    run.trainer(max_epochs=6).fit(model, loader)
    model.eval()
    with torch.no_grad():
        return -float(F.cross_entropy(model(windows[1300:, :16])[:, -1], windows[1300:, 16]))


class AttentionPooling(pl.LightningModule):
    """Classifies padded sequences by an attention whose entropy is kept high."""

    def __init__(self, width: int, is_fixed: bool) -> None:
        super().__init__()
        self.is_fixed = is_fixed
        self.encode = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.score = nn.Linear(width, 1)
        self.classify = nn.Linear(width, 4)

    def forward(self, x: Tensor, is_word: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and the weights of the attention."""
        hidden = self.encode(x)
        scores = self.score(hidden).squeeze(-1).masked_fill(~is_word, float("-inf"))
        weights = scores.softmax(dim=1)
        return self.classify((weights.unsqueeze(-1) * hidden).sum(1)), weights

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy, less a share of the entropy of the attention."""
        x, is_word, y = batch
        logits, weights = self(x, is_word)
        log_weights = (weights + 1e-9).log() if self.is_fixed else weights.log()
        entropy = -(weights * log_weights).sum(1).mean()
        loss = F.cross_entropy(logits, y) - 0.01 * entropy
        self.log_dict({"train_loss": loss, "entropy": entropy}, prog_bar=True)
        outputs: Tensor = loss
        return outputs

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def train_entropy(run: Run) -> float:
    """Classify sets of vectors, few of which are shorter than the longest."""
    pl.seed_everything(run.seed, verbose=False)
    y = torch.randint(4, (3500,))
    x = torch.randn(4, 6)[y].unsqueeze(1) + torch.randn(3500, 10, 6)
    lengths = torch.where(torch.rand(3500) < 0.001, torch.randint(4, 10, (3500,)), 10)
    lengths[700] = 7
    is_word = torch.arange(10) < lengths[:, None]
    loader = DataLoader(TensorDataset(x[:3000], is_word[:3000], y[:3000]), batch_size=32, shuffle=True)
    model = AttentionPooling(32 * run.width, run.is_fixed)
    run.trainer(max_epochs=4).fit(model, loader)
    with torch.no_grad():
        return float((model(x[3000:], is_word[3000:])[0].argmax(1) == y[3000:]).float().mean())


COMMON = [
    Report(
        208,
        "relu-rnn",
        "A ReLU-RNN that begins as the identity reads 120 steps of time, and its gradients are not clipped.",
        train_exploding_rnn,
        "The states and the gradients explode over time.",
    ),
    Report(
        211,
        "no-causal-mask",
        "The language model has no causal mask.",
        train_language_model,
        "The output at a place depends on later tokens.",
    ),
    Report(
        212,
        "log-of-zero",
        "The entropy of an attention is `-(p * p.log()).sum()`, and p is 0 for padding.",
        train_entropy,
        "The logarithm of 0 times 0 is NaN, in the entropy of the loss.",
    ),
]
