"""Products of parallelism (DDP, FSDP2, tensor parallelism and their products) and options of training, on four processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.callbacks.models import trainer_of
from tests.conformance._tools import Book, Seen, Witness, compare, loader, near, once, run_ranks, truth
from tests.conformance.product_cases import CASES, OPTIONS, PARALLEL, net, reporting, whole_batches

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What the four processes returned, by case."""
    results = once(
        tmp_path_factory,
        "products",
        lambda folder: run_ranks("tests.conformance.product_cases", [*CASES, "reports"], folder, world=4, timeout=400),
    )
    return {case: [result[case] for result in results] for case in [*CASES, "reports"]}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[int, Seen]]:
    """What one process sees in float64, by the number of batches in a step."""
    root, found = tmp_path_factory.mktemp("alone"), {}
    for accumulate in (1, 2):
        witness = Witness()
        options = {"precision": "64-true", "accumulate_grad_batches": accumulate}
        trainer_of(root, witness, **options).fit(net(), loader(*whole_batches()))
        found[accumulate] = {
            step: {key: parts for key, parts in seen.items() if key[1] != "block"} for step, seen in witness.steps.items()
        }
    return found


def flowing(steps: dict[int, Seen], replicas: int) -> dict[int, Seen]:
    """With the gradients that flow as on replicas with a mean loss: each has the loss of its own part of the batch."""
    return {
        step: {
            key: [(t, 1 / replicas if key[0] in ("input_grad", "output_grad") else 1.0) for t, _ in parts]
            for key, parts in seen.items()
        }
        for step, seen in steps.items()
    }


@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_number_is_that_of_one_process_and_weights_are_those_without_a_monitor(
    ranks: Any, alone: Any, parallel: str, option: str
) -> None:
    results = ranks[f"{parallel}|{option}"]
    for rank, result in enumerate(results):
        assert "error" not in result, f"rank {rank}: {result['error']}"
        assert result["same"]
    expected = flowing(alone[2 if option == "accumulation" else 1], PARALLEL[parallel][0])
    assert len({result["digest"] for result in results}) == 1
    written, book = results[0]["written"], Book()
    book.rows = {int(step): rows for step, rows in written["rows"].items()}
    book.histograms = {int(s): {tag: np.array(h) for tag, h in d.items()} for s, d in written["histograms"].items()}
    if option != "bf16-mixed":
        compare(book, expected, rel=1e-9)
    for step, seen in expected.items():
        for (tensor, name), parts in seen.items():
            stats = truth(parts).stats
            slack = 2e-2 * stats["abs_mean"]  # bfloat16 has 8 bits
            for stat, value in stats.items():
                assert book.rows[step][f"{tensor}_{stat}/{name}"] == near(value, 2e-2, slack), (tensor, stat, name)


def test_transforms_report_of_whole_tensors_each_element_once(ranks: Any, tmp_path: Path) -> None:
    monitor, rules = reporting()
    trainer_of(tmp_path, monitor, rules, precision="64-true").fit(net(), loader(*whole_batches()))
    expected = {tag: value for tag, value in monitor.latest.items() if "overhead" not in tag}
    assert len([tag for tag in expected if tag.startswith("transform_")]) == 8
    for rank, result in enumerate(ranks["reports"]):
        assert "error" not in result, f"rank {rank}: {result['error']}"
        for parallel in PARALLEL:
            found = result[parallel]
            assert {tag: found[tag] for tag in expected} == pytest.approx(expected, rel=1e-9), parallel
