"""Sharded parameters (FSDP2, two processes): statistics and transforms are those of the whole tensors on one process."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forked
from tests.conformance._own_hooks import assert_sums
from tests.conformance._sharded import run
from tests.conformance._tools import end_all, free_port, once
from tests.conformance._unit_truth import unit_truth

TOLERANCE = 1e-5

AS_ALONE = [
    *("watching", "a global norm", "each element", "norms of a tensor", "rows and matrices", "state and chance"),
    *("parameters read", "a skipped step", "flowing"),
]
REFUSED = {
    "backward": (
        "UnsupportedError: apply[0].transform: 'body.0.weight' is sharded (FSDP2), and torch never calls a tensor hook on "
        "such a parameter: the rule would do nothing. Use when='step', or a rule on modules"
    ),
    "own hooks on gradients": (
        "UnsupportedError: hooks[12].params: 'body.0.weight' is sharded (FSDP2), and torch never calls a tensor hook on "
        "such a parameter: the hook would never run. Use kind='post_accumulate_grad', which sees the gradient averaged "
        "over ranks, or GradientTransforms"
    ),
    "micro-batches": (
        "UnsupportedError: watch: 'body.0.weight' is sharded (FSDP2), and torch never calls a tensor hook on such a "
        "parameter: its micro-batches cannot be seen. Watch 'micro_cosine' and 'noise_scale' with DDP, or omit them"
    ),
}


def start(folder: Path, cases: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Run cases on two processes; what each rank saw, by case."""
    port = str(free_port())
    arguments = ["-m", "tests.conformance._sharded", str(folder), *cases]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "NODE_RANK": "0"}
    processes = []
    for rank in range(2):
        environment = {**common, "LOCAL_RANK": str(rank), "RANK": str(rank)}
        processes.append(forked.start(arguments, environment, folder / f"rank{rank}.log"))
    end_all(processes, 240)
    for rank, process in enumerate(processes):
        assert process.exitcode == 0, (folder / f"rank{rank}.log").read_text()[-3000:]
    each = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {case: [seen[case] for seen in each] for case in cases}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one process saw, by case: this one."""
    cases = [*AS_ALONE, "own hooks", "metrics"]
    return once(tmp_path_factory, "alone", lambda folder: {case: run(case, folder, ranks=1, rank=0) for case in cases})


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each of two ranks saw, by case; those that are refused last, which others could suffer from."""
    cases = [
        *AS_ALONE,
        "own hooks",
        "metrics",
        "a failure",
        "a failure to copy",
        "gatherings",
        "units",
        *REFUSED,
        "parameters read unasked",
    ]
    return once(tmp_path_factory, "sharded", lambda folder: start(folder, cases))


def assert_alike(got: dict[str, float], expected: dict[str, float], *, flowing: bool) -> None:
    got, expected = ({t: v for t, v in each.items() if t != "run/overhead"} for each in (got, expected))  # a time
    assert set(got) == set(expected)
    for tag, value in expected.items():
        if tag.startswith("transform_") and flowing:
            continue  # of a gradient that flows on one rank, the report is that of the rank that writes
        # With a mean loss the gradient that flows on a rank is that of its own, smaller batch: twice as large.
        factor = 2.0 if tag.startswith("output_grad") and "fraction" not in tag and "nonfinite" not in tag else 1.0
        assert got[tag] == pytest.approx(factor * value, rel=TOLERANCE, abs=1e-7), tag


@pytest.mark.parametrize("case", AS_ALONE)
def test_every_number_and_every_weight_is_that_of_one_process(alone: Any, sharded: Any, case: str) -> None:
    one, ranks = alone[case], sharded[case]
    assert one["error"] is None and [rank["error"] for rank in ranks] == [None, None]
    assert ranks[0]["weights"] == ranks[1]["weights"]  # to the last bit
    for name, weights in one["weights"].items():
        assert ranks[0]["weights"][name] == pytest.approx(weights, rel=1e-4, abs=1e-6), name
    assert len(ranks[0]["records"]) == len(one["records"]) == 4
    for got, expected in zip(ranks[0]["records"], one["records"], strict=True):
        assert_alike(got, expected, flowing=case == "flowing")


def test_own_hooks_are_called_as_on_one_process_and_what_they_change_is_changed(alone: Any, sharded: Any) -> None:
    one, ranks = alone["own hooks"], sharded["own hooks"]
    assert [run["error"] for run in (one, *ranks)] == [None] * 3
    assert_sums([rank["hooks"] for rank in ranks], one["hooks"], rel=TOLERANCE)
    for rank in ranks:  # the gradient of the whole batch, when a hook gets the parameter
        assert rank["hooks"]["post_accumulate_grad"] == pytest.approx(one["hooks"]["post_accumulate_grad"], rel=TOLERANCE)
    assert ranks[0]["weights"] == ranks[1]["weights"]
    for name, weights in one["weights"].items():
        assert ranks[0]["weights"][name] == pytest.approx(weights, rel=1e-4, abs=1e-6), name


def test_units_are_those_of_both_ranks(sharded: Any) -> None:
    ranks = sharded["units"]
    assert [rank["error"] for rank in ranks] == [None, None]
    values, tensors = ranks[0]["units"]["values"], [rank["units"]["tensors"] for rank in ranks]
    assert values == ranks[1]["units"]["values"] and len(values) == len(tensors[0]) == len(tensors[1]) == 4
    for step, rows in enumerate(values):
        assert rows.keys() == {"output/extra", *(f"{tensor}/body.{i}" for tensor in ("output", "output_grad") for i in (0, 2))}
        for row, found in rows.items():
            parts = [torch.tensor(rank[step][row]) for rank in tensors if row in rank[step]]
            assert len(parts) == (1 if row == "output/extra" else 2)
            assert found == pytest.approx(unit_truth(parts), rel=1e-6), (step, row)


def test_a_metric_of_a_sharded_parameter_sees_it_once(alone: Any, sharded: Any) -> None:
    for got, expected in zip(sharded["metrics"][0]["records"], alone["metrics"]["records"], strict=True):
        assert_alike(got, expected, flowing=False)


@pytest.mark.parametrize("case", ["a failure", "a failure to copy"])
def test_what_fails_on_one_rank_alone_keeps_no_other_waiting(alone: Any, sharded: Any, case: str) -> None:
    ranks = sharded[case]
    assert [rank["error"] for rank in ranks] == [None, None] and ranks[0]["weights"] == ranks[1]["weights"]
    for name, weights in alone["watching"]["weights"].items():
        assert ranks[0]["weights"][name] == pytest.approx(weights, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_a_tensor_hook_on_a_sharded_parameter_is_refused(sharded: Any, case: str) -> None:
    assert [rank["error"] for rank in sharded[case]] == [REFUSED[case]] * 2


def test_parameters_are_gathered_only_for_a_transform_that_asks_for_them(sharded: Any) -> None:
    expected = {"grad of body.0.weight": 4, "grad of body.2.weight": 4, "param of body.2.weight": 4}
    assert [rank["gathered"] for rank in sharded["gatherings"]] == [expected, expected]


def test_a_transform_that_reads_sharded_parameters_without_asking_for_them_is_told_how(sharded: Any) -> None:
    message = (
        "TransformError: apply[0].transform (TowardsZero) reads context.params, and the parameters are sharded (FSDP2): they "
        "are gathered only for a transform that asks for them. Set needs_params = True on it"
    )
    assert [rank["error"] for rank in sharded["parameters read unasked"]] == [message, message]
