"""Reports of calls at the wrong place of a step or at the wrong pace: threads 3, 4, 5 and 6."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


def markov_text(table: Tensor, rows: int, length: int) -> Tensor:
    """Texts in which the next letter depends on the last two."""
    text = torch.randint(len(table), (rows, 2))
    for _ in range(length - 2):
        text = torch.cat((text, torch.multinomial(table[text[:, -2], text[:, -1]], 1)), 1)
    return text


def letter_table(letters: int, sharpness: float) -> Tensor:
    """The probability of each letter after each pair of letters."""
    after_last, after_second = torch.randn(1, letters, letters), torch.randn(letters, 1, letters)
    return (sharpness * (after_last + after_second)).softmax(-1)


class RNNModel(nn.Module):
    """The model of the word language model example: an embedding, an RNN and a decoder."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(letters, 64)
        self.rnn = nn.RNN(64, 64, batch_first=True)
        self.decoder = nn.Linear(64, letters)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, text: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The logits of each next letter, and the hidden state."""
        output, hidden = self.rnn(self.encoder(text), hidden)
        return self.decoder(output), hidden


def train_language_model(run: Run) -> float:
    """Train the RNN on pieces of long texts; minus the loss on a fresh text."""
    torch.manual_seed(run.seed)
    letters, bptt = 30, 20
    table = letter_table(letters, 1.5)
    train_data, test_data = markov_text(table, 20, 2001), markov_text(table, 20, 201)
    model, criterion = RNNModel(letters), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with run.watching(model, optimizer):
        for _ in range(3):
            hidden = None
            for start in range(0, 2000, bptt):
                text, targets = train_data[:, start : start + bptt], train_data[:, start + 1 : start + bptt + 1]
                if hidden is not None:
                    hidden = hidden.detach()
                optimizer.zero_grad()
                output, hidden = model(text, hidden)
                loss = sum(criterion(output[:, step], targets[:, step]) for step in range(bptt))
                if not run.is_fixed:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                loss.backward()
                if run.is_fixed:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    with torch.no_grad():
        output = model(test_data[:, :-1])[0]
        return -float(criterion(output.reshape(-1, letters), test_data[:, 1:].reshape(-1)))


class ViT(LightningModule):
    """A small vision transformer for the digits."""

    def __init__(self, is_fixed: bool, warmup_steps: int, total_steps: int) -> None:
        super().__init__()
        self.is_fixed, self.warmup_steps, self.total_steps = is_fixed, warmup_steps, total_steps
        self.patch = nn.Conv2d(1, 32, 2, stride=2)
        self.cls = nn.Parameter(torch.zeros(1, 1, 32))
        self.position = nn.Parameter(0.02 * torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """The logits of the ten digits."""
        patches = self.patch(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.cls.expand(len(images), -1, -1), patches), 1) + self.position
        logits: Tensor = self.head(self.norm(self.encoder(tokens)[:, 0]))
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW with a linear warmup and a cosine decay."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.05)

        def factor(step: int) -> float:
            if step < self.warmup_steps:
                return step / self.warmup_steps
            progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
            return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

        scheduler = LambdaLR(optimizer, factor)
        if self.is_fixed:
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
        return [optimizer], [scheduler]


def train_vit(run: Run) -> float:
    """Train the transformer on digits; its accuracy on digits not seen."""
    torch.manual_seed(run.seed)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    targets, order = torch.tensor(digits.target), torch.randperm(len(images))
    train, test = order[:1400], order[1400:]
    loader = DataLoader(TensorDataset(images[train], targets[train]), batch_size=32, shuffle=True, drop_last=True)
    epochs = 5
    model = ViT(run.is_fixed, warmup_steps=50, total_steps=epochs * len(loader))
    run.trainer(max_epochs=epochs).fit(model, loader)
    model.eval()
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == targets[test]).float().mean())


class GPT(nn.Module):
    """A decoder of two blocks."""

    def __init__(self, letters: int, length: int, width: int = 48) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(letters, width), nn.Embedding(length, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of each next letter."""
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.embed(text) + self.position(torch.arange(length))
        logits: Tensor = self.head(self.norm(self.blocks(hidden, mask=mask, is_causal=True)))
        return logits


def train_gpt(run: Run) -> float:
    """Train the GPT with gradients accumulated over four micro-batches; minus the loss on fresh texts."""
    torch.manual_seed(run.seed)
    letters, length, accumulation, steps, warmup = 16, 20, 4, 160, 16
    table = letter_table(letters, 2.0)
    train_data, test_data = markov_text(table, 1280, length + 1), markov_text(table, 300, length + 1)
    loader = DataLoader(TensorDataset(train_data), batch_size=8, shuffle=True)
    model = GPT(letters, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    scheduler = LambdaLR(optimizer, lambda step: min(step / warmup, max(0.0, (steps - step) / (steps - warmup))))
    with run.watching(model, optimizer):
        for _ in range(steps * accumulation // len(loader)):
            for index, (text,) in enumerate(loader):
                output = model(text[:, :-1])
                loss = F.cross_entropy(output.reshape(-1, letters), text[:, 1:].reshape(-1))
                (loss / accumulation).backward()
                if (index + 1) % accumulation == 0:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    if run.is_fixed:
                        scheduler.step()
                    optimizer.zero_grad()
                if not run.is_fixed:
                    scheduler.step()
    model.eval()
    with torch.no_grad():
        output = model(test_data[:, :-1])
        return -float(F.cross_entropy(output.reshape(-1, letters), test_data[:, 1:].reshape(-1)))


def cells(count: int) -> tuple[Tensor, Tensor]:
    """Noisy images of round cells, and their masks."""
    grid = torch.arange(16.0)
    mask = torch.zeros(count, 16, 16)
    for _ in range(3):
        row, column, radius = torch.rand(3, count, 1, 1) * torch.tensor([15.0, 15.0, 2.5]).view(3, 1, 1, 1)
        mask = mask.maximum(((grid[:, None] - row) ** 2 + (grid - column) ** 2 < (radius + 1) ** 2).float())
    images = mask * (0.6 + 0.4 * torch.rand(count, 1, 1)) + 0.4 * torch.randn(count, 16, 16)
    return images[:, None], mask[:, None]


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
    )


class UNet(nn.Module):
    """A U-Net with a single step down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom = double_conv(1, 8), double_conv(8, 16)
        self.up, self.join, self.out = (
            nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.Conv2d(8, 1, 1),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each pixel."""
        above = self.down(images)
        below = self.up(self.bottom(F.max_pool2d(above, 2)))
        logits: Tensor = self.out(F.relu(self.join(torch.cat((below, above), 1))))
        return logits


def train_unet(run: Run) -> float:
    """Train the U-Net with gradients accumulated over six micro-batches; the overlap with fresh masks."""
    torch.manual_seed(run.seed)
    accumulation = 6
    loader = DataLoader(TensorDataset(*cells(900)), batch_size=2, shuffle=True)
    model, criterion = UNet(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    with run.watching(model, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            for index, (images, masks) in enumerate(loader):
                loss = criterion(model(images), masks)
                if run.is_fixed:
                    loss = loss / accumulation
                loss.backward()
                if (index + 1) % accumulation == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    images, masks = cells(300)
    with torch.no_grad():
        predicted = (model(images) > 0).float()
    return float((predicted * masks).sum() / predicted.maximum(masks).sum())


REPORTS = [
    Report(
        number=3,
        name="clip-before-backward",
        doc="The gradients are clipped before backward, when there are none, so a rate of 1 meets the whole gradient.",
        train=train_language_model,
        cause="clip_grad_norm_ is called before backward, so it clips nothing; call it between backward and step",
    ),
    Report(
        number=4,
        name="warmup-by-epoch",
        doc="A warmup of 50 steps is advanced once an epoch, so the rate is 0 for an epoch and stays below a tenth.",
        train=train_vit,
        cause="the schedule is made for steps (215) but Lightning advances it once an epoch (5 times); set interval to step",
    ),
    Report(
        number=5,
        name="schedule-by-micro-batch",
        doc="The schedule is advanced at each micro-batch, so the rate is 0 after a quarter of the training.",
        train=train_gpt,
        cause="the schedule is advanced four times for each optimizer step, so the rate is 0 from step 40 of 160 on",
    ),
    Report(
        number=6,
        name="accumulation-not-divided",
        doc="The losses of six micro-batches are added and not averaged, so the rate is six times what was chosen.",
        train=train_unet,
        cause="gradients are summed over 6 micro-batches and the loss is not divided by 6, so each step is 6 times too large",
    ),
]
