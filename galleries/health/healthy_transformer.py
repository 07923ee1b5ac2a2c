"""Healthy trainings of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import Adam, AdamW

from galleries.health.faulty_parts import Block, Learner, adamw, loader, tokens
from galleries.health.sound_parts import (
    CHARACTERS,
    Classifier,
    characters,
    next_token_loss,
    scheduled,
    warmup,
    warmup_cosine,
)
from galleries.health.training import Case, Training


class Decoder(Learner):
    """Predicts the next character with layers of torch's own transformer."""

    def __init__(self, optimizer: Any = None, *, norm_first: bool, depth: int = 3, width: int = 64) -> None:
        super().__init__(optimizer)
        self.embedding, self.position = nn.Embedding(CHARACTERS, width), nn.Embedding(32, width)
        for embedding in (self.embedding, self.position):
            nn.init.normal_(embedding.weight, std=0.02 if norm_first else 0.5)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=norm_first)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width) if norm_first else nn.Identity()
        self.head = nn.Linear(width, CHARACTERS)

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        length = sequence.shape[1]
        hidden = self.embedding(sequence) + self.position(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return next_token_loss(self.head(self.norm(hidden)), sequence)


def pre_norm(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Decoder(adamw(1e-3), norm_first=True)
    return Case(module, loader(characters(seed, 32), seed=seed, batch=16), {"gradient_clip_val": 1.0})


class PostNorm(Decoder):
    """Needs a warm-up, since its norms come after its layers."""

    def configure_optimizers(self) -> Any:
        return scheduled(Adam(self.parameters(), lr=1e-3, betas=(0.9, 0.98)), warmup(60))


def post_norm(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(PostNorm(norm_first=False), loader(characters(seed, 32), seed=seed, batch=16))


class CosineToZero(Decoder):
    """Trains with a warm-up and a rate that reaches 0 at the last step; its weights decay, biases and norms do not."""

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": [p for p in self.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in self.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return scheduled(AdamW(groups, lr=2e-3, betas=(0.9, 0.95)), warmup_cosine(25, 250))


def cosine_to_zero(seed: int) -> Case:
    torch.manual_seed(seed)
    module = CosineToZero(norm_first=True, depth=2)
    module.head.weight = module.embedding.weight  # [CHARACTERS, width]
    return Case(module, loader(characters(seed, 32), seed=seed, batch=16), {"gradient_clip_val": 1.0})


class LayerwiseDecay(Decoder):
    """Trains each block at 0.75 of the rate of the block after it, and the embeddings at 0.75 of the rate of the first."""

    def configure_optimizers(self) -> Any:
        embeddings = [*self.embedding.parameters(), *self.position.parameters()]
        last = [*self.norm.parameters(), *self.head.parameters()]
        layers = [embeddings, *(list(block.parameters()) for block in self.blocks), last]
        groups = [
            {"params": parameters, "lr": 3e-3 * 0.75 ** (len(layers) - 1 - index)} for index, parameters in enumerate(layers)
        ]
        return scheduled(AdamW(groups, weight_decay=0.05), warmup(20))


def layerwise(seed: int) -> Case:
    torch.manual_seed(seed)
    module = LayerwiseDecay(norm_first=True, depth=4)
    return Case(module, loader(characters(seed, 32), seed=seed, batch=16), {"gradient_clip_val": 1.0})


class Experts(nn.Module):
    """Sends each token to the better two of four experts, and says how unevenly they are used."""

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(count)
        )

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.router(hidden).softmax(-1)
        best, chosen = shares.topk(2, -1)
        best = best / best.sum(-1, keepdim=True)
        output = torch.zeros_like(hidden)
        for index, expert in enumerate(self.experts):
            token, rank = (chosen == index).nonzero(as_tuple=True)
            output = output.index_add(0, token, expert(hidden[token]) * best[token, rank, None])
        used = functional.one_hot(chosen, len(self.experts)).float().sum(1).mean(0) / 2
        return output, len(self.experts) * (used * shares.mean(0)).sum()


class Mixture(Learner):
    """A transformer whose feed-forward layers are mixtures of experts with a loss that balances their load."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-3))
        self.embedding, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.mixtures = nn.ModuleList(Experts(32) for _ in range(2))

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        hidden, balance = self.embedding(sequence), torch.zeros(())
        mask = torch.ones(sequence.shape[1], sequence.shape[1], dtype=torch.bool).tril()
        for block, norm, mixture in zip(self.blocks, self.norms, self.mixtures, strict=True):
            hidden = block(hidden, mask)
            output, uneven = mixture(norm(hidden).flatten(0, 1))
            hidden, balance = hidden + output.view_as(hidden), balance + uneven
        self.log("balance", balance / 2)
        return next_token_loss(self.head(hidden), sequence) + 0.02 * balance


def mixture(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Mixture(), loader(*tokens(seed), seed=seed, batch=16))


class Padded(Classifier):
    """Classifies sequences of different lengths. Padding is neither attended to nor pooled."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.embedding, self.head = nn.Embedding(17, 32, padding_idx=16), nn.Linear(32, 4)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(32), enable_nested_tensor=False)

    def forward(self, inputs: Tensor) -> Tensor:
        padding = inputs == 16
        hidden = self.encoder(self.embedding(inputs), src_key_padding_mask=padding)
        return self.head((hidden * ~padding[..., None]).sum(1) / (~padding).sum(1, keepdim=True))


def padded(seed: int) -> Case:
    torch.manual_seed(seed)
    (sequences,) = tokens(seed)
    lengths = torch.randint(6, 25, (len(sequences), 1), generator=Generator().manual_seed(seed))
    inputs = sequences.masked_fill(torch.arange(24) >= lengths, 16)
    counts = torch.stack([((inputs >= 4 * k) & (inputs < 4 * k + 4)).sum(1) for k in range(4)], 1)
    return Case(Padded(), loader(inputs, counts.argmax(1), seed=seed))


TRAININGS = [
    Training("transformer-pre-norm", "transformer", pre_norm, 250, "set", None, "Norms come first; characters, clipped."),
    Training("transformer-post-norm", "transformer", post_norm, 250, "held", None, "Norms come last, with a warm-up."),
    Training(
        "transformer-cosine-to-zero", "transformer", cosine_to_zero, 250, "set", None, "The rate ends at 0; tied weights."
    ),
    Training("transformer-experts", "transformer", mixture, 250, "held", None, "Experts whose load a loss balances."),
    Training("transformer-padded", "transformer", padded, 250, "set", None, "Sequences of different lengths are classified."),
    Training(
        "transformer-layerwise-decay", "transformer", layerwise, 200, "held", None, "Early blocks have smaller rates; clipped."
    ),
]
