"""The flight recorder names every fault of the gallery, and is silent on the healthy trainings."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from galleries.recorder.answer import Answer, answer_of, expectations
from galleries.recorder.catalogue import faulty, healthy
from galleries.recorder.fault import Fault, fit
from lightning_hooks import FlightRecorder
from lightning_hooks.recorder.files import read_record
from lightning_hooks.recorder.record import FlightRecord, Verdict
from tests.conformance._tools import run_ranks

ROOT = Path(__file__).parents[3]


def recorded(fault: Fault, folder: Path, **options: Any) -> FlightRecord | None:
    recorder = FlightRecorder()
    try:
        fit(fault, folder, [recorder], **options)
    except Exception as error:
        assert type(error).__name__ == fault.failure
    return recorder.record


def parts(fault: Fault, answer: Answer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in expectations(fault)}


@pytest.mark.parametrize("fault", faulty(), ids=lambda fault: fault.name)
def test_the_record_names_the_fault(fault: Fault, tmp_path: Path) -> None:
    record = recorded(fault, tmp_path)
    assert record is not None
    assert parts(fault, answer_of(record)) == expectations(fault)
    written = read_record(tmp_path / "flight_record")
    # An infinite learning rate is a word in JSON.
    assert replace(written, context=record.context) == record


@pytest.mark.parametrize("fault", healthy(), ids=lambda fault: fault.name)
def test_there_is_no_record_of_a_healthy_training(fault: Fault, tmp_path: Path) -> None:
    assert recorded(fault, tmp_path) is None
    assert not (tmp_path / "flight_record").exists()


@pytest.mark.slow
def test_faults_of_two_ranks_are_named(tmp_path: Path) -> None:
    cases = ["nan_in_one_batch", "overflow_in_the_reduction", "nothing_wrong"]
    first, second = run_ranks("galleries.recorder.ranks", cases, tmp_path)
    assert [rank["nothing_wrong"] for rank in (first, second)] == [{"record": None}] * 2
    told = [[rank[case]["record"] for rank in (first, second)] for case in cases[:2]]

    for record in told[0]:
        assert record["step"] == 5
    assert [record["verdict"] for record in told[0]] == ["all_reduce", "batch"]
    assert told[0][1]["place"]["rank"] == 1
    assert told[0][1]["place"]["result"]["first"] == [3, 4]
    for record in told[1]:
        assert (record["verdict"], record["step"], record["place"]["direction"]) == ("all_reduce", 4, "backward")


@pytest.mark.slow
def test_a_signal_leaves_a_record(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "galleries.recorder.terminated", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if line.startswith("under way"):
                break
        process.send_signal(signal.SIGTERM)
        seen += process.stdout.readlines()
    assert (tmp_path / "flight_record").exists(), "".join(seen)
    record = read_record(tmp_path / "flight_record")
    assert record.verdict is Verdict.SIGNAL
    assert record.failure is not None
    assert record.failure.type == "SIGTERMException"
    assert record.step >= 5
