"""Sharded parameters on two ranks: a `FlightRecorder` reads what a rank holds, waits for no other, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance._tools import once, run_ranks

NETS = ["even", "uneven", "empty", "parallel"]
NOT_AGAIN = {
    "": "The step was not run again: an update of sharded parameters may wait for other ranks.",
    ", late": "The step was not run again: the numbers came from a device one step late, and the weights have changed since.",
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the two processes returned, by case."""
    cases = ["healthy", "bad_shard", "plain_loop"]
    module = "tests.conformance.sharded_recorder_cases"
    results = once(tmp_path_factory, "recorder", lambda folder: run_ranks(module, cases, folder, timeout=240))
    for case in cases:
        for rank, result in enumerate(results):
            assert "error" not in result[case], f"{case}, rank {rank}: {result[case]['error']}"
    return {case: [result[case] for result in results] for case in cases}


@pytest.mark.parametrize("how", ["", ", late", ", beside"])
@pytest.mark.parametrize("net", NETS)
def test_a_healthy_fit_ends_with_the_weights_of_a_bare_one_and_without_a_record(ranks: Any, net: str, how: str) -> None:
    for rank in ranks["healthy"]:
        found = rank[net + how]
        assert found["bits"][0] == found["bits"][1]
        assert (found["record"], found["files"], found["findings"]) == (None, [], [])


@pytest.mark.parametrize("how", ["", ", late"])
@pytest.mark.parametrize("net", ["sharded", "parallel"])
def test_the_rank_that_holds_a_bad_element_names_its_parameter(ranks: Any, net: str, how: str) -> None:
    other, holder = (rank[net + how] for rank in ranks["bad_shard"])
    assert all(found["bits"][0] == found["bits"][1] for found in (other, holder))
    record = holder["record"]
    assert (record["verdict"], record["step"], record["place"]["module"]) == ("update", 3, "body.0.weight")
    assert record["message"].startswith("The gradients of step 3 are finite. After the optimizer's update, body.0.weight")
    kept = "The weights are not kept: they are sharded, and gathering them would wait for other ranks."
    assert {NOT_AGAIN[how], kept} <= {*record["notes"]}
    assert record["place"]["result"]["nan"] > 0
    assert {"rank-0.json", "rank-1.json", "record.json"} <= {*holder["files"]} and "weights.json" not in holder["files"]
    # The other rank meets the number in the next forward pass, and says that it has not seen all parameters.
    assert other["record"]["step"] == 4
    assert any(
        note.startswith("The parameters are sharded: this rank has looked at what it holds")
        for note in other["record"]["notes"]
    )


def test_health_rules_of_a_plain_loop_do_without_units_under_tensor_parallelism(ranks: Any) -> None:
    for rank in ranks["plain_loop"]:
        assert rank == {"findings": [], "could not": "`dead_units` of `output` is not measured"}
