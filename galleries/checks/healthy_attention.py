"""Healthy transformers, mixtures of experts and sequence losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.checks.case import Fit, Pattern, Plain
from galleries.checks.parts import (
    BATCH,
    CLASSES,
    Block,
    Language,
    Learner,
    classified,
    fitted,
    images,
    predicts_tokens,
    sequences,
    token_loss,
    tokens,
)


def language() -> Plain:
    return predicts_tokens(Language)


class TiedLanguage(Learner):
    """A language model whose head is its embedding. It takes whole sequences and shifts them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.language = Language()
        self.language.head.weight = self.language.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.language(ids)

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        return token_loss(self(sequence)[:, :-1], sequence[:, 1:])


class Masked(Learner):
    """Predicts tokens that are masked; all others are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.language = Language(vocabulary=17)
        self.language.is_causal = False

    def forward(self, ids: Tensor) -> Tensor:
        return self.language(ids)

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        is_masked = torch.rand(sequence.shape) < 0.3
        labels = sequence.masked_fill(~is_masked, -100)
        return token_loss(self(sequence.masked_fill(is_masked, 16)), labels)


class VisionTransformer(Learner):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 24, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 24))
        self.position = nn.Parameter(0.02 * torch.randn(1, 5, 24))
        self.blocks, self.norm, self.head = nn.Sequential(Block(24), Block(24)), nn.LayerNorm(24), nn.Linear(24, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patches(pixels).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.token.expand(len(pixels), -1, -1), patches], 1) + self.position
        return self.head(self.norm(self.blocks(hidden))[:, 0])


class LibraryEncoder(nn.Module):
    """The encoder of torch, with norms behind its layers and a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        is_padding = ids == 0
        hidden = self.encoder(self.embedding(ids), src_key_padding_mask=is_padding)
        return self.head(hidden.masked_fill(is_padding.unsqueeze(-1), 0).sum(1) / (~is_padding).sum(1, keepdim=True))


def library_encoder() -> Plain:
    torch.manual_seed(0)
    ids = tokens()
    ids = ids * (torch.arange(ids.shape[1]) < 3 + torch.arange(BATCH)[:, None] % 8)
    return classified(LibraryEncoder(), ids, torch.arange(BATCH) % CLASSES)


class Experts(Learner):
    """Gives each token to the two best of four experts, and balances their load."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.router, self.head = nn.Linear(6, 16), nn.Linear(16, 4, bias=False), nn.Linear(16, CLASSES)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)) for _ in range(4))

    def forward(self, series: Tensor) -> Tensor:
        return self.routed(series)[0]

    def routed(self, series: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embed(series).flatten(0, 1)
        share = self.router(hidden).softmax(-1)
        weight, chosen = share.topk(2, dim=-1)
        mixed = hidden.clone()
        for index, expert in enumerate(self.experts):
            place, rank = (chosen == index).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, place, weight[place, rank, None] * expert(hidden[place]))
        load = functional.one_hot(chosen[:, 0], 4).float().mean(0)
        return self.head(mixed.unflatten(0, series.shape[:2]).mean(1)), 4 * (load * share.mean(0)).sum()

    def loss(self, batch: Any) -> Tensor:
        series, labels = batch
        logits, balance = self.routed(series)
        return functional.cross_entropy(logits, labels) + 0.01 * balance


class LayerDrop(Learner):
    """Skips each of its blocks at random while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = (
            nn.Linear(6, 16),
            nn.ModuleList(Block(16) for _ in range(4)),
            nn.Linear(16, CLASSES),
        )

    def forward(self, series: Tensor) -> Tensor:
        hidden = self.embed(series)
        for block in self.blocks:
            if not self.training or torch.rand(()) > 0.25:
                hidden = block(hidden)
        return self.head(hidden.mean(1))


class Speech(Learner):
    """Reads symbols out of frames with the CTC loss."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(6, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.recurrent(frames)[0]).log_softmax(-1)

    def loss(self, batch: Any) -> Tensor:
        frames, symbols = batch
        scores = self(frames).transpose(0, 1)
        lengths = torch.full((len(frames),), scores.shape[0])
        return functional.ctc_loss(scores, symbols, lengths, torch.full((len(frames),), symbols.shape[1]))


def speech() -> Fit:
    frames, _ = sequences(4 * BATCH, length=12)
    return fitted(Speech, frames, torch.randint(1, 4, (4 * BATCH, 3), generator=torch.Generator().manual_seed(8)))


class Translation(Learner):
    """A decoder over an encoder, fed with its targets; padding is ignored by the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(16, 16), nn.Embedding(16, 16)
        self.encoder, self.decoder = nn.GRU(16, 16, batch_first=True), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 16)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.encoder(self.source(source))
        return self.head(self.decoder(self.target(target), state)[0])

    def loss(self, batch: Any) -> Tensor:
        source, target = batch
        logits = self(source, target[:, :-1])
        return functional.cross_entropy(logits.transpose(1, 2), target[:, 1:], ignore_index=0, label_smoothing=0.1)


def translation() -> Fit:
    sequence = tokens(4 * BATCH)
    target = sequence.flip(1) * (torch.arange(10) < 4 + torch.arange(4 * BATCH)[:, None] % 7)
    return fitted(Translation, sequence, target, arguments=(0, 1))


class Sentences(Learner):
    """An autoencoder of sequences: its decoder is given the previous tokens, and a code of the whole sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 16)
        self.encoder, self.decoder = nn.GRU(16, 16, batch_first=True), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        _, code = self.encoder(self.embedding(ids))
        return self.head(self.decoder(self.embedding(ids[:, :-1]), code)[0])

    def loss(self, batch: Any) -> Tensor:
        (ids,) = batch
        return token_loss(self(ids), ids[:, 1:])


class Sets(nn.Module):
    """Attends from one learned query to the elements of each set."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query, self.head = nn.Linear(6, 16), nn.Parameter(torch.randn(16) / 4), nn.Linear(16, CLASSES)

    def forward(self, elements: Tensor) -> Tensor:
        hidden = self.embed(elements).relu()
        weight = (hidden @ self.query).softmax(1)
        return self.head((weight.unsqueeze(-1) * hidden).sum(1))


def sets() -> Plain:
    torch.manual_seed(0)
    return classified(Sets(), *sequences())


FAMILY = "attention"
PATTERNS = [
    Pattern("language-model", FAMILY, language, "A causal language model that is given shifted tokens."),
    Pattern(
        "tied-language-model",
        FAMILY,
        lambda: fitted(TiedLanguage, tokens(4 * BATCH, length=11)),
        "A language model with tied embeddings that shifts its tokens itself.",
    ),
    Pattern("masked-language-model", FAMILY, lambda: fitted(Masked, tokens(4 * BATCH)), "A masked language model."),
    Pattern("vision-transformer", FAMILY, lambda: fitted(VisionTransformer, *images(4 * BATCH)), "A vision transformer."),
    Pattern("library-encoder", FAMILY, library_encoder, "The encoder of torch with a mask of padding."),
    Pattern(
        "mixture-of-experts",
        FAMILY,
        lambda: fitted(Experts, *sequences(4 * BATCH)),
        "Four experts, of which each token has two.",
    ),
    Pattern("layer-drop", FAMILY, lambda: fitted(LayerDrop, *sequences(4 * BATCH)), "Blocks that are skipped at random."),
    Pattern("ctc", FAMILY, speech, "A recurrent network with the CTC loss."),
    Pattern("translation", FAMILY, translation, "An encoder and a decoder, with padding that the loss ignores."),
    Pattern(
        "sentence-autoencoder",
        FAMILY,
        lambda: fitted(Sentences, tokens(4 * BATCH)),
        "A decoder of the next tokens that is given a code of all of them.",
    ),
    Pattern("attention-pooling", FAMILY, sets, "Attention of one query over the elements of each set."),
]
