"""What each comparison with good runs says, and why a difference matters, for `lightning-hooks explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Words(NamedTuple):
    """The words of one comparison.

    Args:
        meaning: what differs.
        consequence: why the difference matters.
    """

    meaning: str
    consequence: str


WORDS: Final[Mapping[str, Words]] = {
    "ReferenceStructure": Words(
        "The model has other modules, parameters, shapes, formats, ties or dropout rates than the good run.",
        "Another model trains differently, so that no other difference between the two runs can be attributed to its code.",
    ),
    "ReferenceModes": Words(
        "Modules are in evaluation mode where those of the good run train, or the other way round.",
        "Dropout and batch norms act differently in the two modes, which changes the loss and the validation.",
    ),
    "ReferenceTrained": Words(
        "Parameters are frozen, or held by an optimizer, at other steps than in the good run.",
        "A part that is not trained any more keeps its values, and a part that was to stay fixed changes.",
    ),
    "ReferenceSchedule": Words(
        "Learning rates or weight decays differ from those of the good run at the same step.",
        "Another rate is among the most frequent reasons why a changed program learns worse.",
    ),
    "ReferenceSettings": Words(
        "The class of an optimizer, the precision or the number of batches in a step differs from the good run.",
        "Such a setting changes every update of the run.",
    ),
    "ReferenceReplicas": Words(
        "Ranks hold different parameters, while those of the good run were equal.",
        "Each rank then trains a model of its own, and their averaged gradients fit none of them.",
    ),
    "ReferenceFlow": Words(
        "Modules do not run, parameters get no gradient, or weights do not move, although they did in the good run.",
        "A part of the model that no longer takes part is not trained.",
    ),
    "ReferenceCalls": Words(
        "A module gives another number of elements in a step than in the good run.",
        "The batch, a sequence length or the number of calls has changed, and with it the size of the gradient.",
    ),
    "ReferencePrecision": Words(
        "A linear layer or a convolution computes in another number format than in the good run.",
        "A narrower format loses small gradients or overflows, and a wider one costs time and memory.",
    ),
    "ReferenceWeights": Words(
        "A weight has moved by more than its updates explain: it was initialised or loaded again.",
        "What the weight had learned is gone, or the fit does not start from the checkpoint that it should.",
    ),
    "ReferenceData": Words(
        "Steps that follow one another have equal inputs, which differed in the good run.",
        "The model sees fewer samples than planned and fits them by heart.",
    ),
    "ReferenceNumbers": Words(
        "The loss or numbers of inputs, outputs, gradients, weights or updates lie outside of the bands of the good runs.",
        "Numbers that another seed does not explain show where a change acts first.",
    ),
}
"""By the name of the rule."""
TOLERANCES: Final[Mapping[str, str]] = {
    "still": "the number of steps in a row at which a weight that always moved must stand still.",
    "lasting": "the number of measured steps in a row at which the number of elements must differ.",
    "times": "the smallest multiple of its updates by which a weight must have moved.",
    "tolerance": "the power to which the factor of each band is raised: 2 makes 100 of 10.",
    "together": "the factor that most rows of a tensor must exceed together in one direction.",
    "share": "the share of the rows of a tensor that are most rows.",
    "sigmas": "the smallest distance from the band, in standard deviations of the change from step to step.",
}
"""What each tolerance means, by its name."""
FALSE_ALARM: Final = (
    "The comparison cannot know whether a change is meant. Accept the finding, or make a new baseline from a run that has the "
    "change."
)
"""The same for all comparisons."""
