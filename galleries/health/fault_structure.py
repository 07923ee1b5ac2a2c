"""Faults of structure: modes, norms, sharing, and modules that nothing calls."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import (
    Convnet,
    Learner,
    Perceptron,
    adamw,
    digits,
    images,
    loader,
    stack,
)
from galleries.health.training import Case, Expectation, Training


def norm_of_two(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NormedPerceptron(adamw(1e-3)), loader(*digits(), seed=seed, batch=2))


class NormedPerceptron(Perceptron):
    """Normalises every layer over the batch."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments)
        layers = [(linear, nn.BatchNorm1d(64, **options), nn.ReLU()) for linear in self.encoder[::2]]
        self.encoder = nn.Sequential(*chain.from_iterable(layers))


class LeftInEvaluation(Convnet):
    """Validates by hand once, at step 40, and stays in evaluation mode."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 40:
            self.features.eval()


def left_in_evaluation(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(LeftInEvaluation(), loader(*images(), seed=seed))


class NormsInEvaluation(NormedPerceptron):
    """Evaluates its norms from the beginning, with statistics that no batch has ever written."""

    def on_train_start(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()


def norms_in_evaluation(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NormsInEvaluation(), loader(*digits(), seed=seed))


def statistics_stand_still(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = images()
    return Case(Convnet(momentum=0.0), loader(3 + 5 * inputs, labels, seed=seed))


class StatisticsLost(Convnet):
    """Loads running statistics at step 60 from a file in which they were never finite."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 60:
            self.features[4].running_var.fill_(float("nan"))


def statistics_lost(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(StatisticsLost(), loader(*images(), seed=seed))


def tied_by_mistake(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron()
    model.encoder[4] = model.encoder[2]
    return Case(model, loader(*digits(), seed=seed))


class OneBlock(Convnet):
    """Has one block with a batch norm four times behind its features."""

    def __init__(self) -> None:
        super().__init__()
        width = next(each.out_channels for each in reversed(self.features) if isinstance(each, nn.Conv2d))
        block = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.features = nn.Sequential(self.features, *[block] * 4)


def one_block(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(OneBlock(), loader(*images(), seed=seed))


class FrozenVectors(Learner):
    """Tells words by given vectors, which are frozen, and in which a word and its opposite are nearly the same."""

    def __init__(self) -> None:
        super().__init__()
        meanings = torch.randn(50, 32)
        self.words = nn.Embedding.from_pretrained(torch.cat([meanings, meanings + 1e-3 * torch.randn(50, 32)]))
        self.encoder, self.head = stack(32, 32, 1), nn.Linear(32, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(inputs)).mean(1))


def vectors_frozen(seed: int) -> Case:
    torch.manual_seed(seed)
    labels = torch.randint(2, (2048,))
    return Case(FrozenVectors(), loader(torch.randint(50, (2048, 8)) + 50 * labels[:, None], labels, seed=seed))


class PlainList(Perceptron):
    """Keeps the blocks of its encoder in a plain list, in which no optimizer finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [stack(64, 64, 1) for _ in range(4)]

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


def plain_list(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(PlainList(), loader(*digits(), seed=seed))


class LosesItsTie(Learner):
    """Predicts a letter by the one before with the weight of its embedding, in whose place it then puts given vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.encoder, self.head = nn.Embedding(50, 32), stack(32, 32, 1), nn.Linear(32, 50, bias=False)
        self.head.weight = self.letters.weight
        self.letters.weight = nn.Parameter(torch.randn(50, 32))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(self.letters(inputs)))


def tie_lost(seed: int) -> Case:
    torch.manual_seed(seed)
    letters = torch.randint(50, (1024,))
    return Case(LosesItsTie(), loader(letters, (letters + 1) % 50, seed=seed))


class StopsCalling(Learner):
    """Refines its hidden state until step 80, when a flag of an experiment is switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.refine, self.head = stack(64, 64, 2), stack(64, 64, 2), nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        return self.head(hidden + self.refine(hidden) if self.global_step < 80 else hidden)


def stops_calling(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(StopsCalling(), loader(*digits(), seed=seed))


class NeverCalled(Perceptron):
    """Owns a second encoder that its forward pass forgets."""

    def __init__(self) -> None:
        super().__init__(adamw(weight_decay=0.0))
        self.context = stack(64, 64, 1)


def never_called(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NeverCalled(), loader(*digits(), seed=seed))


class Adversarial(Learner):
    """A generator whose loss saturates, and a discriminator that learns a hundred times as fast."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(stack(8, 32, 2), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(stack(2, 64, 2), nn.Linear(64, 1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        (real,) = batch
        generator, discriminator = self.optimizers()
        fake = self.generator(torch.randn(len(real), 8))
        on_real, on_fake = self.discriminator(real), self.discriminator(fake.detach())
        deceived = functional.softplus(-on_real).mean() + functional.softplus(on_fake).mean()
        discriminator.zero_grad()
        self.manual_backward(deceived)
        discriminator.step()
        unmasked = -functional.softplus(self.discriminator(fake)).mean()
        generator.zero_grad()
        self.manual_backward(unmasked)
        generator.step()
        self.log_dict({"generator_loss": unmasked, "discriminator_loss": deceived})

    def configure_optimizers(self) -> Any:
        return [adamw(1e-4)(self.generator.parameters()), adamw(1e-2)(self.discriminator.parameters())]


def discriminator_wins(seed: int) -> Case:
    torch.manual_seed(seed)
    angles = 2 * torch.pi * torch.rand(2048, generator=torch.Generator().manual_seed(seed))
    points = 3 * torch.stack([angles.cos(), angles.sin()], 1)
    return Case(Adversarial(), loader(points, seed=seed))


TRAININGS = [
    Training(
        "batch-norm-of-two",
        "structure",
        norm_of_two,
        250,
        "set",
        Expectation("pattern", ("NormStatistics", "DeadUnits", "GradientSpike", "LossSpike")),
        "Batch norms normalise over batches of two samples, which leaves only the signs of their difference.",
    ),
    Training(
        "left-in-evaluation",
        "structure",
        left_in_evaluation,
        150,
        "held",
        Expectation("fact", ("NormStatistics",), "features*", "EvaluationMode", onset=40),
        "From step 40 on, the layers of a convolutional network are in evaluation mode.",
    ),
    Training(
        "norms-in-evaluation",
        "structure",
        norms_in_evaluation,
        150,
        "set",
        Expectation("fact", ("NormStatistics",), "encoder*", "EvaluationMode"),
        "Batch norms are in evaluation mode from the beginning, with statistics of no data.",
    ),
    Training(
        "statistics-stand-still",
        "structure",
        statistics_stand_still,
        150,
        "held",
        Expectation("fact", ("NormStatisticsSlow",), "features*"),
        "Batch norms have a momentum of 0, so that their running statistics never move.",
    ),
    Training(
        "statistics-lost",
        "structure",
        statistics_lost,
        150,
        "set",
        Expectation("invisible", seen_by="buffers that are not finite, or the first validation", onset=60),
        "The running variance of one batch norm is NaN from step 60 on, which training does not use.",
    ),
    Training(
        "tied-by-mistake",
        "structure",
        tied_by_mistake,
        200,
        "set",
        Expectation("invisible", seen_by="the structure, which a note tells: layers may be one object on purpose"),
        "Two layers are the same object.",
    ),
    Training(
        "block-times-n",
        "structure",
        one_block,
        150,
        "set",
        Expectation("fact", ("LayersAreOne",), "features.1"),
        "Four blocks of a network are one object, whose batch norm mixes the statistics of four depths.",
    ),
    Training(
        "vectors-frozen",
        "structure",
        vectors_frozen,
        300,
        "set",
        Expectation("pattern", ("FrozenHeld",), "words*", "VectorsFrozen"),
        "`nn.Embedding.from_pretrained` freezes vectors in which a word and its opposite are nearly the same.",
    ),
    Training(
        "blocks-in-a-plain-list",
        "structure",
        plain_list,
        150,
        "set",
        Expectation("pattern", ("NotRegistered",), "blocks", "ParametersForgotten"),
        "Blocks in a plain list are not registered, so that no optimizer trains them.",
    ),
    Training(
        "tie-lost",
        "structure",
        tie_lost,
        150,
        "set",
        Expectation("fact", ("TieBroken",), "head.weight"),
        "An embedding that is the head too gets given vectors as a new parameter, so that the head keeps the old one.",
    ),
    Training(
        "stops-being-called",
        "structure",
        stops_calling,
        200,
        "held",
        Expectation("fact", ("NotCalledAnyMore", "NoGradient", "UnchangedParameter"), "refine*", onset=80),
        "A module is not called any more from step 80 on.",
    ),
    Training(
        "never-called",
        "structure",
        never_called,
        150,
        "set",
        Expectation("fact", ("NeverCalled", "NoGradient", "UnchangedParameter"), "context*"),
        "The forward pass forgets a module that the optimizer holds.",
    ),
    Training(
        "discriminator-wins",
        "structure",
        discriminator_wins,
        400,
        "held",
        Expectation("invisible", seen_by="the losses of generator and discriminator side by side"),
        "The discriminator of a GAN learns so fast that its generator gets no direction.",
    ),
]
