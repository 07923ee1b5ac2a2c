"""Healthy fine-tuning: of a part, of everything, with LoRA, with rates that differ by layer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from galleries.health.faulty_parts import digits, loader, stack
from galleries.health.sound_parts import Net, scheduled, warmup
from galleries.health.training import Case, Training


@lru_cache(maxsize=4)
def _pretrained(seed: int) -> dict[str, Tensor]:
    """Weights of a network that has learned digits with much noise."""
    with torch.random.fork_rng():
        torch.manual_seed(6000 + seed)
        net = nn.Sequential(stack(64, 64, 4, nn.GELU), nn.Linear(64, 10))
        optimizer, (pixels, labels) = AdamW(net.parameters(), lr=2e-3), digits()
        for _ in range(150):
            chosen = torch.randint(len(pixels), (64,))
            noisy = pixels[chosen] + torch.randn(64, 64)
            loss = functional.cross_entropy(net(noisy), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {name: value.detach() for name, value in net[0].state_dict().items()}


def _encoder(seed: int) -> nn.Sequential:
    encoder = stack(64, 64, 4, nn.GELU)
    encoder.load_state_dict(_pretrained(seed))
    return encoder


def _data(seed: int, outputs: int = 10) -> Any:
    pixels, labels = digits()
    noise = 0.2 * torch.randn(pixels.shape, generator=Generator().manual_seed(seed))
    return loader(pixels + noise, labels if outputs == 10 else labels % 2, seed=seed)


class HeadOnly(Net):
    """Trains a new head; the backbone is frozen and not in the optimizer."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder.requires_grad_(False), nn.Linear(64, 10))

    def configure_optimizers(self) -> Any:
        return AdamW(self.head.parameters(), lr=1e-2)


def frozen(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(HeadOnly(_encoder(seed)), _data(seed))


class Everything(Net):
    """Trains everything at a rate of 2e-5 after a warm-up, as large pretrained models are."""

    def configure_optimizers(self) -> Any:
        return scheduled(AdamW(self.parameters(), lr=2e-5), warmup(20))


def everything(seed: int) -> Case:
    torch.manual_seed(seed)
    head = nn.Linear(64, 2)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return Case(Everything(_encoder(seed), head), _data(seed, 2), {"gradient_clip_val": 1.0})


class Lora(nn.Module):
    """Adds a product of two narrow matrices, of which the second starts at zero, to a frozen linear layer."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + 2 * self.lora_b(self.lora_a(inputs))


class Adapted(Net):
    """Trains adapters and the head."""

    def configure_optimizers(self) -> Any:
        return AdamW([parameter for parameter in self.parameters() if parameter.requires_grad], lr=3e-3)


def lora(seed: int) -> Case:
    torch.manual_seed(seed)
    layers = [Lora(layer) if isinstance(layer, nn.Linear) else layer for layer in _encoder(seed)]
    return Case(Adapted(nn.Sequential(*layers), nn.Linear(64, 10)), _data(seed))


class LayerwiseDecay(Net):
    """Trains each layer at 0.65 of the rate of the layer after it."""

    def configure_optimizers(self) -> Any:
        layers = [layer for layer in self.encoder if isinstance(layer, nn.Linear)] + [self.head]
        groups = [
            {"params": list(layer.parameters()), "lr": 2e-3 * 0.65 ** (len(layers) - 1 - index)}
            for index, layer in enumerate(layers)
        ]
        return scheduled(AdamW(groups), warmup(20))


def layerwise(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(LayerwiseDecay(_encoder(seed), nn.Linear(64, 10)), _data(seed))


class Unfreezing(Net):
    """Trains the head first, and the backbone too from step 100 on."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder.requires_grad_(False), nn.Linear(64, 10))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 100:
            self.encoder.requires_grad_(True)

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.head.parameters()}, {"params": self.encoder.parameters(), "lr": 3e-4}]
        return AdamW(groups, lr=5e-3)


def unfreezing(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Unfreezing(_encoder(seed)), _data(seed))


TRAININGS = [
    Training("finetune-frozen-backbone", "finetuning", frozen, 300, "set", None, "Only a new head is trained."),
    Training("finetune-everything", "finetuning", everything, 400, "held", None, "Everything is trained at a rate of 2e-5."),
    Training("finetune-lora", "finetuning", lora, 300, "set", None, "Low-rank adapters that start at zero are trained."),
    Training("finetune-layerwise-decay", "finetuning", layerwise, 300, "held", None, "Early layers have smaller rates."),
    Training("finetune-unfreezing", "finetuning", unfreezing, 300, "set", None, "The backbone is unfrozen at step 100."),
]
