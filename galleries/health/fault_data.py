"""Faults of data: scales, labels and batches that no network can make up for, and some that it hides."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from galleries.health.faulty_parts import Convnet, Perceptron, Regressor, adamw, digits, images, loader, sgd, waves
from galleries.health.training import Case, Expectation, Training


def pixels_to_255(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = digits()
    inputs = (inputs - inputs.min()) / (inputs.max() - inputs.min()) * 255
    return Case(Perceptron(sgd(0.1)), loader(inputs, labels, seed=seed))


def features_of_ten_thousand(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    return Case(Regressor(adamw(1e-3)), loader(1e4 * inputs, targets, seed=seed))


def one_feature_in_other_units(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    return Case(Regressor(adamw(1e-3)), loader(inputs * torch.tensor([1000.0] + 7 * [1.0]), targets, seed=seed))


def far_from_zero(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    return Case(Regressor(adamw(1e-3)), loader(inputs + 50.0, targets, seed=seed))


def some_labels_shuffled(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = images()
    source = Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=source)[: len(labels) * 3 // 10]
    labels[chosen] = labels[chosen[torch.randperm(len(chosen), generator=source)]]
    return Case(Convnet(adamw(1e-3)), loader(inputs, labels, seed=seed))


def labels_of_other_rows(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = digits()
    labels = labels[torch.randperm(len(labels), generator=Generator().manual_seed(seed))]
    return Case(Perceptron(sgd(0.05)), loader(inputs, labels, seed=seed))


def targets_constant(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    return Case(Regressor(adamw(5e-3)), loader(inputs, torch.full_like(targets, 3.0), seed=seed))


def labels_of_one_class(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = digits()
    return Case(Perceptron(adamw(1e-3)), loader(inputs, torch.full_like(labels, 7), seed=seed))


class Spoilt(Perceptron):
    """Trains on batches of which `spoil` replaces some, as a broken file in the data set does."""

    def spoil(self, step: int, inputs: Tensor) -> Tensor:
        return inputs

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        inputs, labels = batch
        return self.spoil(self.global_step, inputs), labels


class AbsurdSample(Spoilt):
    """Reads one sample with the wrong sign and 3000 times as large, every 50 steps, as integers that wrap around are."""

    def spoil(self, step: int, inputs: Tensor) -> Tensor:
        if step % 50 == 49:
            inputs = inputs.clone()
            inputs[0] *= -3000.0
        return inputs


def absurd_sample(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(AbsurdSample(adamw(1e-3)), loader(*digits(), seed=seed))


class InfiniteBatch(Spoilt):
    """Reads one pixel as infinite, at step 50."""

    def spoil(self, step: int, inputs: Tensor) -> Tensor:
        if step == 50:
            inputs = inputs.clone()
            inputs[3, 20] = float("inf")
        return inputs


def infinite_batch(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(InfiniteBatch(), loader(*digits(), seed=seed))


class ZeroBatches(Spoilt):
    """Reads nothing but zeros from step 80 on."""

    def spoil(self, step: int, inputs: Tensor) -> Tensor:
        return torch.zeros_like(inputs) if step >= 80 else inputs


def zero_batches(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(ZeroBatches(adamw(1e-3)), loader(*digits(), seed=seed))


class UnreadableFile(Spoilt):
    """Reads zeros at every 30th step, where a file cannot be read and an exception is swallowed."""

    def spoil(self, step: int, inputs: Tensor) -> Tensor:
        self.sizes.append(float(inputs.abs().max()) if step % 30 != 29 else 0.0)
        return torch.zeros_like(inputs) if step % 30 == 29 else inputs

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.sizes: list[float] = []


def unreadable_file(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(UnreadableFile(), loader(*digits(), seed=seed))


class Sensors(Regressor):
    """Keeps the largest magnitude of each column of its inputs."""

    def __init__(self) -> None:
        super().__init__(adamw(5e-3))
        self.largest = torch.zeros(8)

    def loss(self, batch: Any) -> Tensor:
        self.largest = torch.maximum(self.largest, batch[0].abs().amax(0))
        return super().loss(batch)


def silent_sensor(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    inputs[:, 5] = 0.0
    return Case(Sensors(), loader(inputs, targets, seed=seed))


def sensor_at_its_limit(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    inputs[:, 2] = 5.0
    return Case(Sensors(), loader(inputs, targets, seed=seed))


class EmptyInputs(Spoilt):
    """Reads nothing but zeros."""

    def spoil(self, step: int, inputs: Tensor) -> Tensor:
        return torch.zeros_like(inputs)


def empty_inputs(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(EmptyInputs(adamw(1e-3)), loader(*digits(), seed=seed))


class OneBatch(Spoilt):
    """Sees its 80th batch again and again, since an iterator is made anew at every step."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.global_step >= 80:
            batch = self.kept
        self.kept = batch
        return batch


def same_batch_again(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(OneBatch(adamw(1e-3)), loader(*digits(), seed=seed))


class Summed(Perceptron):
    """Keeps the sum of the inputs of each batch."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.sums: list[float] = []

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.sums.append(float(batch[0].sum()))
        return batch


class NoisyDigits(Dataset[tuple[Tensor, Tensor]]):
    """Random digits with noise, drawn with the same numbers in each epoch."""

    def __init__(self, seed: int) -> None:
        self.inputs, self.labels = digits()
        self.seed, self.count, self.source = seed, 0, Generator()

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.count % len(self) == 0:
            self.source.manual_seed(self.seed)
        self.count += 1
        chosen = torch.randint(len(self.inputs), (), generator=self.source)
        noise = 0.1 * torch.randn(self.inputs.shape[1:], generator=self.source)
        return self.inputs[chosen] + noise, self.labels[chosen]


def same_numbers_each_epoch(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Summed(), DataLoader(NoisyDigits(seed), 64, shuffle=True))


class DigitStream(IterableDataset[tuple[Tensor, Tensor]]):
    """All digits in a random order, whoever reads them."""

    def __init__(self, seed: int) -> None:
        inputs, labels = digits()
        order = torch.randperm(len(labels), generator=Generator().manual_seed(seed))
        self.inputs, self.labels = inputs[order], labels[order]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.inputs, self.labels, strict=True))


def workers_read_all(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Summed(), DataLoader(DigitStream(seed), 64, num_workers=2))


def same_few_batches(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(
        Summed(), loader(*(each[:128].repeat(14, *(1,) * (each.dim() - 1)) for each in digits()), seed=seed, shuffle=False)
    )


class SlowDigits(Dataset[tuple[Tensor, Tensor]]):
    """Takes three milliseconds to read a digit."""

    def __init__(self) -> None:
        self.inputs, self.labels = digits()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        sleep(0.003)
        return self.inputs[index], self.labels[index]


class Timed(Perceptron):
    """Keeps the seconds before each batch."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.waits: list[float] = []
        self._end = perf_counter()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.waits.append(perf_counter() - self._end)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._end = perf_counter()


def waits_for_data(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Timed(), DataLoader(SlowDigits(), 32, shuffle=True, drop_last=True))


def sorted_by_label(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = digits()
    order = labels.argsort(stable=True)
    model = Perceptron(sgd(0.1, momentum=0.9), activation=nn.Tanh)
    return Case(model, loader(inputs[order], labels[order], seed=seed, shuffle=False))


class NumberedAgain(Perceptron):
    """Numbers the classes in another order when it goes on from a checkpoint, as the order of a set of names may change."""

    resumed = False

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.resumed = True

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return super().loss((inputs, (labels + 1) % 10 if self.resumed else labels))


def classes_numbered_again(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NumberedAgain(adamw(1e-3)), loader(*digits(), seed=seed), resumes=80)


NOT_NORMALISED = ("InputNotNormalised",)

TRAININGS = [
    Training(
        "pixels-to-255",
        "data",
        pixels_to_255,
        200,
        "set",
        Expectation(
            "pattern",
            (*NOT_NORMALISED, "LossDiverged", "LossConstant", "DeadLayer", "DeadUnits", "ExplodingGradient", "UpdateTooLarge"),
            cause="DataNotNormalised",
        ),
        "A perceptron gets pixels from 0 to 255 at a rate of SGD for normalised ones.",
    ),
    Training(
        "features-of-ten-thousand",
        "data",
        features_of_ten_thousand,
        200,
        "held",
        Expectation("pattern", (*NOT_NORMALISED, "ExplodingGradient", "MassiveActivation"), cause="DataNotNormalised"),
        "Features have a standard deviation of 10 000.",
    ),
    Training(
        "one-feature-in-other-units",
        "data",
        one_feature_in_other_units,
        200,
        "set",
        Expectation("pattern", (*NOT_NORMALISED, "InputColumnScale"), cause="DataNotNormalised"),
        "One of eight features is 1000 times as large as the others.",
    ),
    Training(
        "features-far-from-zero",
        "data",
        far_from_zero,
        200,
        "held",
        Expectation(
            "pattern",
            (*NOT_NORMALISED, "ExplodingGradient", "LossDiverged", "LossConstant", "DeadLayer", "DeadUnits", "ConstantOutput"),
            cause="DataNotNormalised",
        ),
        "All features have a mean of 50 and a standard deviation of 1.",
    ),
    Training(
        "some-labels-shuffled",
        "data",
        some_labels_shuffled,
        200,
        "set",
        Expectation("invisible", seen_by="losses of single samples, or a look at samples with a high loss"),
        "Three of ten labels are shuffled among their samples.",
    ),
    Training(
        "labels-of-other-rows",
        "data",
        labels_of_other_rows,
        200,
        "held",
        Expectation("pattern", ("LossConstant",)),
        "Labels were shuffled apart from their inputs, so that there is nothing to learn.",
    ),
    Training(
        "targets-constant",
        "data",
        targets_constant,
        200,
        "set",
        Expectation("pattern", ("TargetsConstant",)),
        "All targets are the same number, which a wrong join wrote.",
    ),
    Training(
        "labels-of-one-class",
        "data",
        labels_of_one_class,
        200,
        "held",
        Expectation("pattern", ("TargetsConstant",)),
        "All labels are the same class.",
    ),
    Training(
        "absurd-sample",
        "data",
        absurd_sample,
        300,
        "set",
        Expectation("pattern", ("LossSpike", "GradientSpike", "MassiveActivation"), cause="BadBatch", onset=49),
        "One sample has the wrong sign and is 3000 times as large, every 50 steps.",
    ),
    Training(
        "infinite-batch",
        "data",
        infinite_batch,
        150,
        "held",
        Expectation("fact", ("NonFinite",), cause="BadBatch", onset=50),
        "One pixel is infinite at step 50.",
    ),
    Training(
        "zero-batches",
        "data",
        zero_batches,
        200,
        "set",
        Expectation(
            "pattern",
            (
                *("LossSpike", "ConstantOutput", "DeadLayer", "DeadUnits", "LossConstant", "GradientSpike", "ScaleCollapse"),
                "BatchOfZeros",
            ),
            cause="BadBatch",
            onset=80,
        ),
        "From step 80 on all inputs are zero.",
    ),
    Training(
        "unreadable-file",
        "data",
        unreadable_file,
        100,
        "set",
        Expectation("fact", ("BatchOfZeros",), "encoder.0", "BadBatch", onset=29),
        "Every 30th batch is zeros, because a file cannot be read. The second one shows that it comes back.",
    ),
    Training(
        "silent-sensor",
        "data",
        silent_sensor,
        100,
        "set",
        Expectation("pattern", ("InputColumnZero",), "encoder.0"),
        "One of eight features is 0 in all samples, because its sensor does not send.",
    ),
    Training(
        "sensor-at-its-limit",
        "data",
        sensor_at_its_limit,
        100,
        "set",
        Expectation("pattern", ("InputColumnConstant",), "encoder.0"),
        "One of eight features is 5 in all samples, the limit of its sensor.",
    ),
    Training(
        "inputs-of-zeros",
        "data",
        empty_inputs,
        100,
        "set",
        Expectation("pattern", ("ZeroInput",), "encoder.0", "InputOfZeros"),
        "All inputs are zero, from the first step on.",
    ),
    Training(
        "same-batch-again",
        "data",
        same_batch_again,
        200,
        "held",
        Expectation("pattern", ("BatchStuck",), onset=80),
        "From step 80 on every batch is the same one.",
    ),
    Training(
        "same-numbers-each-epoch",
        "data",
        same_numbers_each_epoch,
        60,
        "set",
        Expectation("pattern", ("EpochsRepeat",)),
        "The data set draws the same random numbers in each epoch, since its generator is seeded anew.",
    ),
    Training(
        "workers-read-all",
        "data",
        workers_read_all,
        50,
        "set",
        Expectation("pattern", ("WorkersRepeat",)),
        "Both workers of the loader read all of a stream, so that each batch comes twice.",
    ),
    Training(
        "same-few-batches",
        "data",
        same_few_batches,
        60,
        "set",
        Expectation("pattern", ("BatchesRepeat",)),
        "The data set holds the same 128 digits again and again, in one order.",
    ),
    Training(
        "waits-for-data",
        "data",
        waits_for_data,
        70,
        "set",
        Expectation("pattern", ("WaitsForData",)),
        "The loader reads slowly and without workers, so that most of the time is spent waiting for it.",
    ),
    Training(
        "sorted-by-label",
        "data",
        sorted_by_label,
        250,
        "set",
        Expectation("pattern", ("LossSpike", "GradientSpike", "LossDiverged", "LossFollowsOrder"), onset=5),
        "Samples come sorted by their label, one class after the other.",
    ),
    Training(
        "classes-numbered-again",
        "data",
        classes_numbered_again,
        150,
        "held",
        Expectation("pattern", ("LossAfterResume",), onset=80),
        "A training that goes on at step 80 numbers its classes in another order than before.",
    ),
]
