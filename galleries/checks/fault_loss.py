"""Bugs between the outputs and the loss, and labels that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.checks.case import Expected, Fit, Pattern, Plain
from galleries.checks.parts import (
    BATCH,
    Classifier,
    Language,
    Learner,
    blobs,
    classified,
    fitted,
    mlp,
    regressed,
    token_loss,
    tokens,
    waves,
)


def softmax_layer() -> Plain:
    torch.manual_seed(0)
    return classified(mlp().append(nn.Softmax(dim=1)), loss=nn.CrossEntropyLoss())


class SoftmaxInForward(Classifier):
    """Returns probabilities, of which the training step takes the cross entropy."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).softmax(-1)


def _marks() -> Tensor:
    """Labels of three questions, each yes or no."""
    _, labels = blobs()
    return torch.stack([labels % 2, labels > 2, labels == 1], 1).float()


def sigmoid_before_logits() -> Plain:
    torch.manual_seed(0)
    inputs, _ = blobs()
    return classified(mlp(outputs=3).append(nn.Sigmoid()), inputs, _marks(), loss=nn.BCEWithLogitsLoss())


def log_softmax_missing() -> Plain:
    torch.manual_seed(0)
    return classified(mlp(), loss=functional.nll_loss)


def probabilities_into_nll() -> Plain:
    torch.manual_seed(0)
    return classified(mlp().append(nn.Softmax(1)), loss=nn.NLLLoss())


def not_reduced() -> Plain:
    torch.manual_seed(0)
    return classified(mlp(), loss=nn.CrossEntropyLoss(reduction="none"))


class SoftmaxOverTime(Learner):
    """A language model whose log-probabilities are over positions instead of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.language = Language(vocabulary=64)

    def forward(self, ids: Tensor) -> Tensor:
        return self.language(ids)

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        scores = self(sequence[:, :-1]).log_softmax(1)
        return functional.nll_loss(scores.flatten(0, 1), sequence[:, 1:].flatten())


def relabelled(change: Callable[[Tensor], Tensor], **changes: Any) -> Plain:
    torch.manual_seed(0)
    inputs, labels = blobs()
    return classified(mlp(), inputs, change(labels), **changes)


def labels_not_shifted() -> Plain:
    torch.manual_seed(0)
    sequence = tokens()
    return classified(Language(), sequence, sequence.clone(), loss=token_loss)


def from_one() -> Fit:
    inputs, labels = blobs(4 * BATCH)
    return fitted(Classifier, inputs, labels + 1)


def one_unlabelled(labels: Tensor) -> Tensor:
    return torch.where(torch.arange(len(labels)) == 3, -1, labels)


def signs_for_bits() -> Plain:
    torch.manual_seed(0)
    inputs, _ = blobs()
    return classified(mlp(outputs=3), inputs, 2 * _marks() - 1, loss=functional.binary_cross_entropy_with_logits)


def beyond_the_head() -> Plain:
    torch.manual_seed(0)
    inputs, targets = waves()
    return classified(mlp(outputs=1).append(nn.Tanh()), inputs, 20 * targets, loss=functional.mse_loss)


def positive_head() -> Plain:
    torch.manual_seed(0)
    return regressed(mlp(outputs=1).append(nn.ReLU()), loss=nn.MSELoss())


FAMILY, AGAIN, FIT = "loss", ("ActivationBeforeLoss",), ("LabelsFitHead",)
PATTERNS = [
    Pattern(
        "softmax-before-cross-entropy",
        FAMILY,
        softmax_layer,
        "A softmax layer is in front of a loss that applies it again.",
        Expected(AGAIN, "fail", "5"),
    ),
    Pattern(
        "softmax-in-forward",
        FAMILY,
        lambda: fitted(SoftmaxInForward),
        "`forward` returns probabilities, and the training step takes their cross entropy.",
        Expected(AGAIN, "fail"),
    ),
    Pattern(
        "sigmoid-before-logits",
        FAMILY,
        sigmoid_before_logits,
        "A sigmoid is in front of BCEWithLogitsLoss.",
        Expected(AGAIN, "fail", "5"),
    ),
    Pattern(
        "log-softmax-missing",
        FAMILY,
        log_softmax_missing,
        "`nll_loss` is given logits.",
        Expected((*AGAIN, "InitialLoss"), "fail"),
    ),
    Pattern(
        "probabilities-into-nll",
        FAMILY,
        probabilities_into_nll,
        "`NLLLoss` is given probabilities instead of their logarithms.",
        Expected((*AGAIN, "InitialLoss"), "fail"),
    ),
    Pattern(
        "loss-not-reduced",
        FAMILY,
        not_reduced,
        "The loss has one number for each sample.",
        Expected(("StepRuns", "NoGradient", "InitialLoss", "NonFinite"), "fail"),
        peer=10,
    ),
    Pattern(
        "softmax-over-time",
        FAMILY,
        lambda: fitted(SoftmaxOverTime, tokens(4 * BATCH, vocabulary=64)),
        "The log-softmax of a language model is over positions, not over tokens.",
        Expected(("InitialLoss", *AGAIN, "FutureIsHidden"), "fail"),
    ),
    Pattern("labels-from-one", FAMILY, from_one, "Labels are 1 to 5 where the head has 5 outputs.", Expected(FIT, "fail")),
    Pattern(
        "label-minus-one",
        FAMILY,
        lambda: relabelled(one_unlabelled),
        "One sample has the label −1, which is not the index to ignore.",
        Expected(FIT, "fail"),
    ),
    Pattern(
        "all-labels-ignored",
        FAMILY,
        lambda: relabelled(lambda labels: torch.full_like(labels, -100)),
        "All labels are the index to ignore, so that the loss is NaN.",
        Expected((*FIT, "NonFinite"), "fail"),
    ),
    Pattern(
        "labels-of-one-class",
        FAMILY,
        lambda: relabelled(torch.zeros_like),
        "All samples have the label 0.",
        Expected(("LabelsVary",), "warn"),
    ),
    Pattern(
        "sign-flipped",
        FAMILY,
        lambda: relabelled(torch.clone, loss=lambda outputs, labels: -functional.cross_entropy(outputs, labels)),
        "The loss is the negative of the cross entropy.",
        Expected(("LossUnbounded",), "warn"),
    ),
    Pattern(
        "labels-not-shifted",
        FAMILY,
        labels_not_shifted,
        "A causal language model is to predict the tokens that it is given.",
        Expected(("FutureIsHidden",), "warn"),
    ),
    Pattern(
        "signs-for-bits",
        FAMILY,
        signs_for_bits,
        "Binary cross entropy is given the targets −1 and 1.",
        Expected(FIT, "fail"),
    ),
    Pattern(
        "targets-beyond-tanh",
        FAMILY,
        beyond_the_head,
        "The head ends in tanh, the targets reach ±20.",
        Expected(FIT, "warn"),
    ),
    Pattern(
        "targets-below-relu",
        FAMILY,
        positive_head,
        "The head ends in a ReLU, half of the targets are negative.",
        Expected(FIT, "warn"),
    ),
]
