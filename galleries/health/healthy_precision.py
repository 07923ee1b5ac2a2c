"""Healthy trainings in low precision, and with gradients accumulated over batches."""

from __future__ import annotations

import torch
from torch import nn

from galleries.health.faulty_parts import Convnet, Language, adamw, digits, images, loader, sgd, stack, tokens
from galleries.health.sound_parts import Net
from galleries.health.training import Case, Training


def bf16_mixed(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Language(adamw(3e-3)), loader(*tokens(seed), seed=seed, batch=16), {"precision": "bf16-mixed"})


def bf16_true(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Net(stack(64, 96, 3, nn.GELU), nn.Linear(96, 10), adamw(2e-3))
    return Case(module, loader(*digits(), seed=seed), {"precision": "bf16-true"})


def accumulation(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Net(stack(64, 64, 3), nn.Linear(64, 10), sgd(0.02, momentum=0.9))
    return Case(module, loader(*digits(), seed=seed, batch=8), {"accumulate_grad_batches": 4})


def mixed_convnet(seed: int) -> Case:
    torch.manual_seed(seed)
    options = {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    return Case(Convnet(adamw(2e-3)), loader(*images(), seed=seed, batch=16), options)


TRAININGS = [
    Training("bf16-mixed", "precision", bf16_mixed, 250, "set", None, "A transformer computes in bfloat16."),
    Training("bf16-true", "precision", bf16_true, 300, "held", None, "Weights and optimizer states are bfloat16."),
    Training("accumulation", "precision", accumulation, 250, "set", None, "Each step sums the gradients of four batches."),
    Training("bf16-mixed-accumulation", "precision", mixed_convnet, 200, "held", None, "Both, with batch norm, clipped."),
]
