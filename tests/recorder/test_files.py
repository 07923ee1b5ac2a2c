"""`record.json`: what is written is read again, what is damaged is named, and a reader never sees half of it."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks.errors import RuleError
from lightning_hooks.recorder.files import from_json, read_record, to_json
from lightning_hooks.recorder.markdown import to_markdown
from lightning_hooks.recorder.record import (
    Failure,
    FlightRecord,
    Growth,
    Operation,
    Place,
    TensorSummary,
    TrailEntry,
    Verdict,
)

SUMMARY = TensorSummary("self", (2, 3), "float16", -1.0, 65504.0, 1, 2, 3, (0, 1))
RECORD = FlightRecord(
    Verdict.BACKWARD,
    12,
    Place("net.0", "Linear", "backward", "output_grad", 1, 2, 12, 0, 4, SUMMARY),
    "In words.",
    True,
    Operation("aten.sqrt", "backward", "net.0", "Linear", 1, "train.py:3 in forward", "x.sqrt()", "SqrtBackward0", (SUMMARY,)),
    (SUMMARY,),
    (TrailEntry("net.0", "output", 12, 2, 1, None, None, 7),),
    Growth("net.0", "output", (10, 11), (1.5, math.inf)),
    {"precision": "16-mixed", "optimizers": {"0 Adam": [0.1]}},
    Failure("ValueError", "text", "Traceback", "net.0"),
    {"batch": "batch.safetensors"},
    ("a note",),
)


def test_every_field_is_read_again():
    assert from_json(to_json(RECORD)) == RECORD
    assert from_json(to_json(FlightRecord(Verdict.SIGNAL, 0))) == FlightRecord(Verdict.SIGNAL, 0)


@given(st.floats(), st.integers(0, 2**40), st.text())
def test_any_number_and_text(number, count, text):
    record = FlightRecord(Verdict.FORWARD, count, message=text, growth=Growth(text, "output", (count,), (number,)))
    read = from_json(to_json(record))
    assert read.message == text and read.step == count and read.growth is not None
    assert read.growth.abs_max == (number,) or math.isnan(number)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "magic"}, "record.verdict must be one of batch, weights, forward, .*, got 'magic'"),
        ({"step": "7"}, "record.step must be an integer below 2\\*\\*63, got '7'"),
        ({"step": True}, "record.step must be an integer below 2\\*\\*63, got True"),
        ({"place": {"module": "a"}}, "record.place has no 'type'"),
        ({"trail": [3]}, r"record.trail\[0\] must be a mapping, got 3"),
        ({"format": 99}, "format 99, and this version of lightning_hooks reads formats up to 1; install a later version"),
        ({"format": None}, "it has no number `format`"),
    ],
)
def test_damage_is_named(change, message):
    values = json.loads(to_json(RECORD)) | change
    with pytest.raises(RuleError, match=message):
        from_json(json.dumps(values))


def test_what_a_later_version_has_added_is_ignored():
    values = json.loads(to_json(RECORD)) | {"mood": "bad"}
    assert from_json(json.dumps(values)) == RECORD


def test_no_record(tmp_path):
    with pytest.raises(RuleError, match=r"record\.json: there is no flight record"):
        read_record(tmp_path)
    (tmp_path / "record.json").write_text("{")
    with pytest.raises(RuleError, match=r"record\.json: this is no flight record"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("growth", "title"),
    [
        (Growth("net.0", "output", (10, 11), (1.5, 2.0)), "## output of net.0 at the last steps"),
        (Growth("loss", "loss", (10, 11), (1.5, 2.0)), "## loss at the last steps"),
    ],
)
def test_the_text_names_the_row_whose_growth_it_shows(growth, title):
    assert title in to_markdown(FlightRecord(Verdict.FORWARD, 12, growth=growth)).splitlines()
