"""The verdict from what was seen, and its words."""

import pytest

from lightning_hooks.recorder.record import Operation, Place, TensorSummary, TrailEntry, Verdict
from lightning_hooks.recorder.verdicts import Observations, message_of, verdict_of

BAD = (TensorSummary("x", (2,), "float32", nan=1),)
CALL = TrailEntry("net.0", "output_grad", 3, 0, 0, None, None, 1)


@pytest.mark.parametrize(
    ("observations", "verdict"),
    [
        (Observations("loss", 3), Verdict.FORWARD),
        (Observations("loss", 3, bad_batch=BAD), Verdict.BATCH),
        (Observations("loss", 3, bad_batch=BAD, bad_weights=BAD), Verdict.WEIGHTS),
        (Observations("gradients", 3, bad_gradients=BAD), Verdict.BACKWARD),
        (Observations("gradients", 3, bad_batch=BAD, bad_gradients=BAD), Verdict.BACKWARD),  # the loss is finite
        (Observations("gradients", 3, bad_gradients=BAD, world_size=2), Verdict.ALL_REDUCE),
        (Observations("gradients", 3, call=CALL, bad_gradients=BAD, world_size=2), Verdict.BACKWARD),
        (Observations("parameters", 3, bad_parameters=BAD), Verdict.UPDATE),
    ],
)
def test_verdicts(observations, verdict):
    assert verdict_of(observations) is verdict


def test_words_say_where_when_and_what():
    place = Place("net.0", "Log", "forward", "output", 2, 1, 7)
    operation = Operation("aten.log", "forward", "net.0", "Log", source="train.py:31 in forward")
    assert message_of(Verdict.FORWARD, place, operation) == (
        "In the forward pass of step 7, net.0 (Log) gave the first number that is not finite, at its call 3, in batch 2 of the "
        "step. The operation is aten.log at train.py:31 in forward."
    )
    at = Place("head.weight", "Linear", "forward", "param", 0, 0, 7)
    assert message_of(Verdict.WEIGHTS, at, None, finite_until=5) == (
        "head.weight (Linear) was not finite before step 7 began. They were finite after the update of step 5."
    )


@pytest.mark.parametrize("verdict", Verdict)
def test_each_verdict_has_words(verdict):
    place = Place("a", "A", "forward", "output", 0, 0, 7)
    assert message_of(verdict, place, None).endswith(".")
