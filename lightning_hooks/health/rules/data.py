"""Rules on the data that enter the first layers: batches of one number, and odd columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.rule import HealthRule, Kind, Severity


@dataclass(frozen=True, kw_only=True)
class BatchOfZeros(HealthRule):
    """A batch is 0, or another single number, in all elements that are looked at, after batches of many numbers.

    A few hundred elements of what the first layers read are looked at in each of the first 4,096 steps. One such batch is a
    note until the loss shows harm, and a fact when another one comes. If several layers read data, all of them must read one
    number.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("batch-of-zeros",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for samples that cannot be read and are replaced by zeros: a caught exception, an empty file, a wrong path.",
        "Look for a buffer that is given to the model before it is filled, or that is cleared too early.",
    )
    source: ClassVar[str] = "a definition; by chance it must be rarer than 1 in 1,000,000, by the ten or more batches before"
    consequence: ClassVar[str] = (
        "The labels of such a batch belong to nothing, so that its step teaches the biases and undoes a part of other steps."
    )
    false_alarm: ClassVar[str] = (
        "Batches that are emptied on purpose, as for an unconditional model, are told too. Accept the finding in that case."
    )


@dataclass(frozen=True, kw_only=True)
class InputColumnZero(HealthRule):
    """A column of the data that a first layer reads is 0 in all samples of at least 20 batches, and the others hardly are.

    A column is a feature of a linear or recurrent layer, a channel of a convolution, or an id of an embedding. It is a note
    until the loss shows harm. Where zeros are usual, as in one-hot columns, counts, masks, padding or a background, nothing is
    told, nor behind a norm with weights.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("column-zero",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at this column where the data are read: a wrong name, a join without matches, missing values that become 0.",
        "Leave the column out if the data have nothing there.",
    )
    source: ClassVar[str] = "a definition; 20 batches and 500 samples, and less than 1 % of the other elements are 0"
    consequence: ClassVar[str] = "The model learns nothing from the column, and its weights there stay as they were created."
    false_alarm: ClassVar[str] = (
        "A feature that is rare, or that only other data have, is 0 for long. The finding ends with the first other number. It "
        "is a note until the loss shows harm."
    )


@dataclass(frozen=True, kw_only=True)
class InputColumnConstant(HealthRule):
    """Columns of the data that a first layer reads have one constant each in all samples of at least 20 batches.

    A constant may be meant, as a bias or a mark is, so this is information. Several columns of zeros are told here too.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("column-constant",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the column where the data are read: a value that is filled in, a clipping, a wrong name.",
    )
    source: ClassVar[str] = "a definition; 20 batches and 500 samples, and the number is no usual one of the other columns"
    consequence: ClassVar[str] = "The column tells the model nothing of a sample, and acts as a bias of the first layer."
    false_alarm: ClassVar[str] = (
        "A column of ones as a bias, a plane that marks the border or a setting that does not change in this training is "
        "constant on purpose. The finding is therefore information."
    )


@dataclass(frozen=True, kw_only=True)
class InputColumnScale(HealthRule):
    """A column of the data that a first layer reads is a thousandfold of the others in size, or a thousandth.

    The size of a column is the root mean square of its elements that are not 0, which is compared with that of the median
    column. It is a note until the loss shows harm. Columns behind a norm are not told.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("column-scale",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Divide each column of the data by its standard deviation, or take the logarithm of a column of large numbers.",
        "Look for ids, years or timestamps among the features.",
    )
    source: ClassVar[str] = "ours: 500-fold, which is a thousandfold with room for chance; features in usual units differ less"
    consequence: ClassVar[str] = (
        "The large columns decide what the first layer gives and how far each step goes, so that the others are hardly learned."
    )
    false_alarm: ClassVar[str] = (
        "A model that rescales its inputs by weights of its own can make up for it. The finding is a note until the loss shows "
        "harm."
    )


RULES: Final[tuple[HealthRule, ...]] = (BatchOfZeros(), InputColumnZero(), InputColumnConstant(), InputColumnScale())
"""The rules on the data that enter a model, with their defaults."""
