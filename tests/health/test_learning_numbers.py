"""What is said of learning has the last losses, the learning rate and the size of a step."""

import math

import pytest

from lightning_hooks.dashboard.findings import listed
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.learning_numbers import learning_numbers
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.health.text import as_text, blocks_of
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.rules.made import Made, of_rms, run, structure_of

MODEL = structure_of({"head": "Linear"}, {"head": (10, 64)})


def trained(loss, ratio=1e-3, steps=120, rate=0.05):
    """The diagnosis of a training whose head has the gradient of a guess, with this loss and these steps."""
    tensors = {
        ("output", "head"): of_rms(1.0, count=320),
        ("output_grad", "head"): Made(std=0.3 / 32, low=-1 / 32, high=1 / 32, count=320),
        ("param", "head.weight"): of_rms(1.0),
        ("grad", "head.weight"): of_rms(0.1),
        ("update", "head.weight"): of_rms(ratio),
    }
    held = OptimizerFacts("SGD", (GroupFacts(rate, 0.0, ("head.weight",)),))
    diagnosis = Diagnosis(DEFAULT_RULES)
    for view in run(MODEL, tensors, steps, loss=loss, facts=StepFacts((held,))):
        diagnosis.add(view)
    diagnosis.finish()
    return diagnosis


@pytest.mark.parametrize(
    ("loss", "ratio", "size"),
    [
        (lambda step: 2.3 + step % 2 / 99, 1e-3, "0.1 %"),
        (lambda step: 2.3 + step % 2 / 99, 1e-7, "1e-05 %"),
        (lambda step: 2.3 * 1.3 ** min(step, 40), 0.2, "20 %"),
        (lambda step: 1.0 if step < 60 else math.nan, 1e-3, "0.1 %"),
    ],
    ids=["at chance", "too slow", "diverges", "not finite"],
)
def test_each_message_on_learning_has_its_numbers_in_the_terminal_and_on_the_page(loss, ratio, size):
    diagnosis = trained(loss, ratio)
    told = [each for each in diagnosis.findings if each.severity != "info"]
    assert told
    first = as_text(blocks_of(diagnosis.causes, diagnosis.findings)[:1], 1000)
    shown = listed(told, diagnosis.causes)
    on_page = {each["text"] for entry in shown for each in entry.get("evidence", ())}
    for text in (first, *(each for each in on_page if "learning rate" in each)):
        assert "the losses of the steps" in text or "no loss" in text
        assert "the learning rate is 0.05" in text
        assert f"a step changes the median weight by {size} of it" in text
    assert any("learning rate is 0.05" in each for each in on_page)


def test_numbers_are_those_of_the_last_steps_and_a_nan_is_one_of_them():
    diagnosis = trained(lambda step: float(step) if step < 39 else math.nan, steps=40)
    assert learning_numbers(diagnosis.evidence).startswith("the losses of the steps 37 to 39 are 37, 38 and nan; ")


def test_a_saved_diagnosis_keeps_them():
    diagnosis = trained(lambda step: 2.3 + step % 2 / 99)
    other = Diagnosis(DEFAULT_RULES)
    other.load_state_dict(diagnosis.state_dict())
    assert other.findings == diagnosis.findings
    assert any(each.learning for each in other.findings)


def test_a_cause_names_those_that_it_takes_the_place_of_in_files_and_on_the_page():
    diagnosis = trained(lambda step: 2.3 + step % 2 / 99)
    (cause,) = diagnosis.causes
    changed = type(cause).from_dict({**cause.to_dict(), "replaces": ["BadBatch"]})
    (block,) = blocks_of([changed], diagnosis.findings)
    shown = listed(diagnosis.findings, [changed])
    assert block.verdict.endswith("This takes the place of BadBatch.")
    assert shown[0]["message"].endswith("This takes the place of BadBatch.")
