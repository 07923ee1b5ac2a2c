"""What the cause of a flight record is called, what it means, why it harms, and what to try: for each verdict on numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from lightning_hooks.recorder.record import Verdict


class CauseWords(NamedTuple):
    """The words of one verdict.

    Args:
        meaning: what happened.
        consequence: why it harms.
        next_steps: what to try.
    """

    meaning: str
    consequence: str
    next_steps: tuple[str, ...]


_SPREADS: Final = "The number spreads through the gradients into the weights, and from then on every output is NaN."

CAUSE_WORDS: Final[Mapping[Verdict, CauseWords]] = {
    Verdict.BATCH: CauseWords(
        "The batch holds numbers that are not finite, and they reach the loss.",
        _SPREADS,
        ("Look at the sample in the batch that was kept; filter such samples, or fill in what is missing.",),
    ),
    Verdict.WEIGHTS: CauseWords(
        "Parameters or buffers were not finite when the step began.",
        "Every output that depends on them is NaN, and no later step repairs them.",
        ("Resume from a checkpoint before this step: weights that are not finite never recover.",),
    ),
    Verdict.FORWARD: CauseWords(
        "An operation of the forward pass gave the first number that is not finite, from numbers that are.",
        _SPREADS,
        ("Bound what the operation reads: add a small number, clamp it, or compute it in a wider dtype.",),
    ),
    Verdict.BACKWARD: CauseWords(
        "The loss is finite, and an operation of its backward pass gave the first number that is not.",
        "The optimizer writes the number into the weights, and from the next step on the loss is NaN.",
        (
            "The value is finite and its slope is not: add a small number under a root or norm, or choose the safe argument "
            "with torch.where before the operation, not after it.",
        ),
    ),
    Verdict.UPDATE: CauseWords(
        "The gradients are finite, and the optimizer wrote numbers that are not into parameters or into its state.",
        "From the next step on every output that depends on the parameters is NaN.",
        ("Look at the learning rate of this step, and at the state of the optimizer that the record lists.",),
    ),
    Verdict.GRADIENTS: CauseWords(
        "The backward pass gave finite gradients, and what the optimizer read is not finite: code changed them in between.",
        "The optimizer writes the numbers into the weights, and from the next step on the loss is NaN.",
        (
            "Look at what changes gradients between the backward pass and the update: clipping, on_before_optimizer_step, the "
            "step of an optimizer of your own. A norm that is 0 must not divide them.",
        ),
    ),
    Verdict.ALL_REDUCE: CauseWords(
        "The gradients of this rank are finite, and their average over the ranks is not.",
        "All ranks take the same step, so that the number of one rank ruins the weights of all.",
        ("Look at the records of the other ranks: one of them has the first bad number.",),
    ),
    Verdict.SCALER: CauseWords(
        "Gradients are not finite in float16, although the loss scaler has lowered its scale.",
        "The scaler skips such steps, so that the weights stand still.",
        ("Compute in bfloat16 or float32, or divide the loss: its gradients are too large for float16.",),
    ),
    Verdict.NOT_REPRODUCED: CauseWords(
        "The same step, run again, gave finite numbers: the hardware failed, or an operation is not deterministic.",
        _SPREADS,
        ("Run the step again elsewhere; if it stays finite there, suspect the machine.",),
    ),
}
"""Exceptions and signals are no causes of numbers."""


def cause_name(verdict: Verdict) -> str:
    """The name of the cause.

    Example:
        >>> cause_name(Verdict.ALL_REDUCE)
        'FirstBadNumberAllReduce'
    """
    return f"FirstBadNumber{''.join(word.capitalize() for word in verdict.split('_'))}"
