"""The verdict from what was seen, and its words."""

import pytest

from lightning_hooks.recorder.record import Operation, Place, TensorSummary, TrailEntry, Verdict
from lightning_hooks.recorder.verdicts import Known, Observations, message_of, verdict_of

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
        (Observations("parameters", 3, bad_parameters=BAD, bad_gradients=BAD), Verdict.GRADIENTS),
        (Observations("parameters", 3, bad_parameters=BAD, bad_gradients=BAD, bad_weights=BAD), Verdict.WEIGHTS),
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


@pytest.mark.parametrize(
    ("verdict", "known", "message"),
    [
        (Verdict.WEIGHTS, Known(), "head.weight (Linear) was not finite before step 7 began."),
        (
            Verdict.WEIGHTS,
            Known(finite_until=5),
            "head.weight (Linear) was not finite before step 7 began. It was finite after the update of step 5.",
        ),
        (
            Verdict.WEIGHTS,
            Known(since_start=True),
            "head.weight (Linear) was not finite before step 7 began. It was not finite when the run began.",
        ),
        (Verdict.BATCH, Known(None), "The batch of step 7 has elements that are not finite."),
        (Verdict.BATCH, Known(False), "The batch of step 7 has elements that are not finite, and its loss is not finite."),
        (
            Verdict.BATCH,
            Known(False, is_shown=True),
            "The batch of step 7 has elements that are not finite, and they reached the loss.",
        ),
        (
            Verdict.BATCH,
            Known(True, is_shown=True),
            "The batch of step 7 has elements that are not finite; the loss is finite, and its gradient is not.",
        ),
        (
            Verdict.UPDATE,
            Known(finite_until=6),
            "The gradients of step 7 are finite. After the optimizer's update, head.weight (Linear) is not. The parameter was "
            "finite after the update of step 6.",
        ),
        (
            Verdict.UPDATE,
            Known(state=("exp_avg",)),
            "The gradients of step 7 are finite. After the optimizer's update, head.weight (Linear) is not, nor is exp_avg in "
            "its state.",
        ),
        (
            Verdict.UPDATE,
            Known(is_shown=True, state=("exp_avg", "exp_avg_sq")),
            "The gradients of step 7 are finite, and the optimizer's update made head.weight (Linear) not finite by exp_avg "
            "and exp_avg_sq in its state, which are not finite.",
        ),
        (
            Verdict.GRADIENTS,
            Known(),
            "The gradients of step 7 were finite after its backward pass, and that of head.weight (Linear) was not when the "
            "optimizer had read it: code in between, such as clipping, made it so.",
        ),
        (
            Verdict.GRADIENTS,
            Known(may_write=True),
            "The gradients of step 7 were finite after its backward pass, and that of head.weight (Linear) was not after the "
            "step of the optimizer: code in between, such as clipping, or the step itself made it so.",
        ),
        (
            Verdict.GRADIENTS,
            Known(is_shown=True),
            "The gradients of step 7 are finite when its backward pass runs again, and that of head.weight (Linear) was not "
            "when the optimizer had read it: code in between, such as clipping, or an operation that is not deterministic, "
            "made it so.",
        ),
    ],
)
def test_words_claim_no_more_than_is_known(verdict, known, message):
    assert message_of(verdict, Place("head.weight", "Linear", "update", "param", 0, 0, 7), None, known) == message


@pytest.mark.parametrize("verdict", Verdict)
def test_each_verdict_has_words(verdict):
    place = Place("a", "A", "forward", "output", 0, 0, 7)
    assert message_of(verdict, place, None).endswith(".")
