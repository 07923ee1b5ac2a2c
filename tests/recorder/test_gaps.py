"""The code between two calls of layers, and what is said of it."""

from dataclasses import replace

import pytest

from lightning_hooks.recorder.gaps import between, gap_text
from lightning_hooks.recorder.record import Gap, Place, Verdict
from lightning_hooks.recorder.verdicts import message_of


@pytest.mark.parametrize(
    ("first", "second", "codeless", "modules"),
    [
        ("body.stem", "body.head", (), ("body",)),
        ("body.attention.key", "body.head", (), ("body.attention", "body")),
        ("a.x", "b.c.y", (), ("a", "", "b", "b.c")),
        ("net.0", "net.1", ("net",), ("",)),  # nn.Sequential has no code, but whoever holds it may call its layers
        ("net.0.fc", "net.1.fc", ("net",), ("net.0", "", "net.1")),
        ("block.query", "block", (), ()),  # the second layer has called the first one
        ("block.inner.query", "block", (), ("block.inner",)),
        ("cell", "cell", (), ("",)),
        ("", "", (), ()),
        (None, "body.head", (), ("", "body")),
        (None, "net.0", ("net",), ("",)),
    ],
)
def test_the_modules_whose_code_runs_between_two_calls(first, second, codeless, modules):
    assert between(first, second, codeless) == modules


def place(tensor="output", module="body.head", call=0):
    direction = "backward" if tensor == "output_grad" else "forward"
    return Place(module, "Linear" if module else "", direction, tensor, call, 0, 7)


@pytest.mark.parametrize(
    ("at", "gap", "message"),
    [
        (
            place(),
            Gap("body.stem", "body.head", ("body",)),
            "In the forward pass of step 7, the output of body.head (Linear) is the first that is not finite. "
            "body.head made it, or code between the calls of body.stem and body.head, such as the forward of body.",
        ),
        (
            place(call=2),
            Gap("body.head", "body.head", ("body", "")),
            "In the forward pass of step 7, the output of body.head (Linear) at its call 3 is the first that is not finite. "
            "body.head made it, or code between two calls of body.head, such as the forward of body or the model.",
        ),
        (
            place(),
            Gap("", "body.head", ()),
            "In the forward pass of step 7, the output of body.head (Linear) is the first that is not finite. "
            "body.head made it, or code before the call of body.head.",
        ),
        (
            place("loss", ""),
            Gap("body.head", "loss"),
            "In the forward pass of step 7, the loss is the first number that is not finite. "
            "The code that computes it from the output of body.head made it.",
        ),
        (
            place("output_grad"),
            Gap("body.stem", "body.stem", ("body",)),
            "The loss of step 7 is finite. In its backward pass, the gradient of the output of body.stem is the first that is "
            "not finite. What reads that output made it: body.head, whose gradient was noted just before, or code, such as the "
            "forward of body.",
        ),
        (
            place("output_grad", ""),
            Gap("body.head", "body.head", ()),
            "The loss of step 7 is finite. In its backward pass, the gradient of the output of body.head is the first that is "
            "not finite. What reads that output made it, such as the loss.",
        ),
        (
            place(),
            Gap("body.stem", "body.head", (), joined=True),
            "In the forward pass of step 7, the output of body.head (Linear) is not finite. body.head was called several times "
            "and these calls are noted together: in one of them it made the number, or code around it.",
        ),
    ],
)
def test_the_words_claim_no_more_than_the_calls_show(at, gap, message):
    at = replace(at, gap=gap)
    verdict = Verdict.BACKWARD if at.direction == "backward" else Verdict.FORWARD
    assert message_of(verdict, at, None) == message
    assert gap_text(at, gap) in message
