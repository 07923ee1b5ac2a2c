"""Flight records for the tests of the page."""

from dataclasses import replace

from lightning_hooks.recorder.files import FOLDER, RECORD, to_json
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

RESULT = TensorSummary("result", (8, 4), "float16", -2.0, 60000.0, 2, 1, 0, (3, 1))
PLACE = Place("net.1", "Exp", "forward", "output", 0, 0, 12, result=RESULT)
READ = TensorSummary("self", (8, 4), "float16", -2.0, 12.0, abs_min=0.25)
OPERATION = Operation("aten.exp", "forward", "net.1", "Exp", 0, "model.py:31 in forward", "  return x.exp()", "", (READ,))


def trail_of(steps):
    """Two modules forward and backward at each step; at the last one `net.1` is not finite."""
    trail = []
    for step in steps:
        trail += [TrailEntry(name, "output", step, 0, 0, -1.0, 4.0, 0) for name in ("net.0", "net.1")]
        trail += [TrailEntry(name, "output_grad", step, 0, 0, -0.01, 0.02, 0, "", 1e-5) for name in ("net.1", "net.0")]
    return (*trail[:-3], replace(trail[-3], minimum=None, maximum=None, nonfinite=3, kind="nan"))


RECORDED = FlightRecord(
    Verdict.FORWARD,
    12,
    PLACE,
    "In the forward pass of step 12, net.1 (Exp) gave the first number that is not finite.",
    True,
    OPERATION,
    (READ,),
    trail_of(range(8, 13)),
    Growth("net.1", "output", (*range(5, 13),), (4.0, 9.0, 30.0, 120.0, 900.0, 8000.0, 40000.0, float("inf"))),
    {"optimizers": {"0 Adam": [0.001]}, "precision": "16-mixed", "checkpoint": "", "compiled": []},
    files={"batch": "batch.json"},
    notes=("The weights were not kept.",),
)
ENDED = FlightRecord(
    Verdict.EXCEPTION,
    15,
    message="An exception ended the run. All numbers that were looked at were finite.",
    failure=Failure("ValueError", "<b>broken</b>", "Traceback\n  raise ValueError", "net.0"),
)


def write_record(folder, record, name=FOLDER):
    """Write a record into the folder of a run; its file."""
    (folder / name).mkdir()
    file = folder / name / RECORD
    file.write_text(to_json(record))
    return file
