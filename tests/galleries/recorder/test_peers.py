"""Other tools say of the gallery what they are known to say, and their answers are read rightly."""

from __future__ import annotations

from typing import Any

import pytest

from galleries.recorder.catalogue import faulty, healthy
from galleries.recorder.peers import Anomaly, Finite, LightningAnomaly, Tool, Transformers
from galleries.recorder.run import run

FAULTS = {fault.name: fault for fault in [*faulty(), *healthy()]}


@pytest.mark.parametrize("tool", [Anomaly, LightningAnomaly])
def test_anomaly_mode_names_a_node_and_a_line(tool: type[Tool]) -> None:
    found = run(FAULTS["equal-eigenvalues"], tool)
    assert found["answer"]["node"] == "LinalgEighBackward0"
    assert [found["right"][part] for part in ("verdict", "module", "step", "operation")] == [True] * 4


def test_anomaly_mode_blames_the_node_that_reads_the_infinity() -> None:
    found = run(FAULTS["root-at-zero"], Anomaly)
    assert found["answer"]["node"] == "PowBackward0"
    assert not found["right"]["operation"]


def test_a_check_of_the_loss_names_the_step_alone() -> None:
    answer = run(FAULTS["log-of-zero"], Finite)["answer"]
    said = {name: value for name, value in answer.items() if value is not None and name != "text"}
    assert said == {"step": 5}


def test_transformers_names_the_module_of_a_forward_fault() -> None:
    pytest.importorskip("transformers")
    found = run(FAULTS["log-of-zero"], Transformers)
    assert (found["answer"]["module"], found["answer"]["step"]) == ("body.energy", 5)


@pytest.mark.parametrize(
    ("name", "verdict", "module"),
    [("nan-in-the-batch", "batch", "body.stem"), ("weight-set-to-nan", "weights", "body.head.weight")],
)
def test_transformers_tells_inputs_from_weights(name: str, verdict: str, module: str) -> None:
    pytest.importorskip("transformers")
    answer: dict[str, Any] = run(FAULTS[name], Transformers)["answer"]
    assert (answer["verdict"], answer["module"]) == (verdict, module)


def test_transformers_takes_a_mask_for_a_fault() -> None:
    pytest.importorskip("transformers")
    assert run(FAULTS["mask-module"], Transformers)["right"] == {"silent": False}
