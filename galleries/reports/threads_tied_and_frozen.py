"""Reports of weights that are shared, or frozen but for an adapter: threads 7, 8 and 9."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


class Topics:
    """A language whose words belong to topics, and whose topics follow each other."""

    def __init__(self, topics: int, words: int) -> None:
        self.words = words
        self.follow = (4.0 * torch.randn(topics, topics)).softmax(-1)
        self.within = (torch.arange(1, words + 1) ** -1.0).repeat(topics, 1)

    def text(self, rows: int, length: int) -> Tensor:
        """Random texts."""
        topic, texts = torch.randint(len(self.follow), (rows,)), []
        for _ in range(length):
            texts.append(topic * self.words + torch.multinomial(self.within[topic], 1)[:, 0])
            topic = torch.multinomial(self.follow[topic], 1)[:, 0]
        return torch.stack(texts, 1)

    def vectors(self, width: int) -> Tensor:
        """Word vectors that were trained elsewhere: near for words of the same topic."""
        centers = torch.randn(len(self.follow), width).repeat_interleave(self.words, 0)
        return 0.1 * (centers + 0.3 * torch.randn_like(centers))


class GPT(LightningModule):
    """A decoder of two blocks whose head is tied to its embedding."""

    def __init__(self, is_fixed: bool, words: int, length: int, width: int = 96) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        if is_fixed:
            nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of each next word."""
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.embed(text) + self.position
        logits: Tensor = self.head(self.norm(self.blocks(hidden, mask=mask, is_causal=True)))
        return logits

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy of the next word."""
        (text,) = batch
        loss = F.cross_entropy(self(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=6e-4, weight_decay=0.1)


def train_tied_gpt(run: Run) -> float:
    """Train the GPT; minus the loss on fresh texts."""
    torch.manual_seed(run.seed)
    language = Topics(20, 25)
    loader = DataLoader(TensorDataset(language.text(1600, 17)), batch_size=16, shuffle=True)
    model = GPT(run.is_fixed, words=500, length=16)
    run.trainer(max_steps=200, gradient_clip_val=1.0).fit(model, loader)
    model.eval()
    text = language.text(200, 17)
    with torch.no_grad():
        return -float(F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()))


class WordModel(nn.Module):
    """A GRU that predicts the next word with the embedding's own weight."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.decoder = nn.Linear(width, words, bias=False)
        self.decoder.weight = self.embed.weight

    def forward(self, text: Tensor) -> Tensor:
        """The logits of each next word."""
        output, _ = self.rnn(self.dropout(self.embed(text)))
        logits: Tensor = self.decoder(self.dropout(output))
        return logits


def train_words(run: Run) -> float:
    """Train the word model from given vectors; minus the loss on fresh texts."""
    torch.manual_seed(run.seed)
    language = Topics(40, 25)
    loader = DataLoader(TensorDataset(language.text(400, 21)), batch_size=16, shuffle=True)
    model = WordModel(words=1000, width=48)
    vectors = language.vectors(48)
    if run.is_fixed:
        model.embed.weight.data.copy_(vectors)
    else:
        model.embed.weight = nn.Parameter(vectors)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with run.watching(model, optimizer):
        for _ in range(8):
            for (text,) in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
                loss.backward()
                optimizer.step()
    model.eval()
    text = language.text(200, 21)
    with torch.no_grad():
        return -float(F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()))


class LoRALinear(nn.Module):
    """A frozen linear layer with a trained product of two small matrices beside it."""

    def __init__(self, base: nn.Linear, rank: int = 8, alpha: int = 16) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The frozen layer and its adapter."""
        adapted: Tensor = self.base(x) + self.scale * (x @ self.lora_a.T @ self.lora_b.T)
        return adapted


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv: nn.Module = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up: nn.Module = nn.Linear(width, 4 * width)
        self.down: nn.Module = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and an MLP."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x


class ViT(nn.Module):
    """A small vision transformer that recomputes its blocks in backward."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.patch, self.position = nn.Linear(4, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.checkpointing, self.use_reentrant = False, True

    def forward(self, images: Tensor) -> Tensor:
        """The logits of the classes."""
        x = self.patch(images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)) + self.position
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant) if self.checkpointing else block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class FineTune(LightningModule):
    """A pretrained transformer with adapters and a new head."""

    def __init__(self, is_fixed: bool, model: ViT, classes: int) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        for block in model.blocks:
            assert isinstance(block, Block)
            for name in ("qkv", "up", "down"):
                setattr(block, name, LoRALinear(getattr(block, name)))
        model.head = nn.Linear(model.head.in_features, classes)
        model.checkpointing = True
        if is_fixed:
            model.use_reentrant = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW on what is not frozen."""
        return torch.optim.AdamW((each for each in self.parameters() if each.requires_grad), lr=3e-3)


def pretrain(model: ViT, images: Tensor, targets: Tensor) -> None:
    """Train the whole transformer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        rows = torch.randint(len(images), (32,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), targets[rows]).backward()
        optimizer.step()


def train_lora(run: Run) -> float:
    """Pretrain on the digits 0 to 4 and fine-tune on 5 to 9; the accuracy on digits not seen."""
    torch.manual_seed(run.seed)
    digits = load_digits()
    images, targets = torch.tensor(digits.images, dtype=torch.float32) / 8 - 1, torch.tensor(digits.target)
    model = ViT(classes=5)
    pretrain(model, images[targets < 5], targets[targets < 5])
    images, targets = images[targets >= 5], targets[targets >= 5] - 5
    order = torch.randperm(len(images))
    train, test = order[:600], order[600:]
    loader = DataLoader(TensorDataset(images[train], targets[train]), batch_size=32, shuffle=True)
    module = FineTune(run.is_fixed, model, classes=5)
    run.trainer(max_steps=200).fit(module, loader)
    model.eval()
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == targets[test]).float().mean())


REPORTS = [
    Report(
        number=7,
        name="head-tied-to-unit-normal",
        doc="The head shares the embedding's weight of N(0, 1), so the first logits and the loss are far too large.",
        train=train_tied_gpt,
        cause="head.weight is embed.weight with a standard deviation of 1, so logits have one of 10; initialise with 0.02",
    ),
    Report(
        number=8,
        name="tie-broken-by-vectors",
        doc="Word vectors are set as a new parameter of the embedding, so the head that was tied to it keeps the old weight.",
        train=train_words,
        cause="decoder.weight was embed.weight until embed.weight was replaced by a new parameter; copy the vectors into it",
    ),
    Report(
        number=9,
        name="lora-behind-reentrant-checkpoint",
        doc="Reentrant checkpoints get an input without gradient from frozen layers, so no adapter inside gets a gradient.",
        train=train_lora,
        cause="the blocks' checkpoints are reentrant and their input needs no gradient, so lora_a and lora_b in them get none",
    ),
]
