"""Ranks never wait for one another: what goes wrong on one alone takes effect on all, at the same later step.

Two processes with gloo train once for each run, under a time limit; a rank that waits for ever fails all tests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conformance._tools import end_all, free_port, once

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
LIMIT = 240.0
RUNS = [
    *("a statistic|0", "a statistic|1", "a statistic, at some steps|1", "the writing|1", "a validation|1"),
    *("the clock|0", "the clock|1", "a metric of a module that one rank calls|1"),
    *("a statistic|1|late", "the writing|1|late", "the clock|0|late", "the clock|1|late", "a validation|1|late"),
    *("a statistic|0|reduced", "the clock|1|reduced", "a statistic|1|late|reduced", "a validation|1|reduced"),
    "a metric of a module that one rank calls|1|reduced",
]
"""The case, the rank that fails or is slow, whether copies of tables come late, whether tables are reduced, not gathered."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each of two ranks saw, by run."""
    return once(tmp_path_factory, "ranks", start)


def start(folder: Path) -> dict[str, list[dict[str, Any]]]:
    ports = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    common = {**os.environ, **ports, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    arguments = ["-m", "tests.conformance._ranks", str(folder), *RUNS]
    started = []
    for rank in range(2):
        environment = {**common, "LOCAL_RANK": str(rank), "RANK": str(rank)}
        started.append(forked.start(arguments, environment, folder / f"rank{rank}.log", cwd=REPOSITORY))
    if not end_all(started, LIMIT):
        pytest.fail(f"a rank waits for ever:\n{logs(folder)}")
    codes = [process.exitcode for process in started]
    assert codes == [0, 0], logs(folder)
    each = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {run: [seen[run] for seen in each] for run in RUNS}


def logs(folder: Path) -> str:
    return "\n".join(f"--- rank {rank}\n{(folder / f'rank{rank}.log').read_text()[-3000:]}" for rank in range(2))


def same_weights(ranks: list[dict[str, Any]]) -> bool:
    return len({rank["weights"] for rank in ranks}) == 1


@pytest.mark.parametrize(("fails_on", "how"), [(0, ""), (1, ""), (0, "|reduced")])
def test_a_monitor_that_fails_on_one_rank_stops_on_both_at_the_same_step(ranks: Any, fails_on: int, how: str) -> None:
    found = ranks[f"a statistic|{fails_on}{how}"]
    assert [rank["hooked"] for rank in found] == [[True] * 3 + [False] * 5] * 2
    assert found[0]["steps"] == [0, 1] and found[1]["steps"] == []
    (own,), (others,) = found[fails_on]["warnings"], found[1 - fails_on]["warnings"]
    assert "ValueError: on this rank only" in own
    assert "on another rank" in others
    assert same_weights(found)


def test_where_some_steps_are_watched_it_stops_at_the_end_of_the_next_of_these(ranks: Any) -> None:
    found = ranks["a statistic, at some steps|1"]
    assert [rank["hooked"] for rank in found] == [[False, True, False, True, False, True, False, False]] * 2
    assert found[0]["steps"] == [1, 3]
    assert same_weights(found)


def test_what_fails_after_the_collective_takes_effect_one_watched_step_later(ranks: Any) -> None:
    found = ranks["the writing|1"]
    assert [rank["hooked"] for rank in found] == [[True] * 4 + [False] * 4] * 2
    assert found[0]["steps"] == [0, 1]
    assert ["No space left" in rank["warnings"][0] for rank in found] == [True, False]
    assert [len(rank["warnings"]) for rank in found] == [1, 1]
    assert same_weights(found)


@pytest.mark.parametrize("how", ["", "|reduced"])
def test_a_monitor_that_fails_in_validation_goes_on_in_training_on_both(ranks: Any, how: str) -> None:
    found = ranks[f"a validation|1{how}"]
    assert [rank["hooked"] for rank in found] == [[True] * 8] * 2
    assert [len(rank["warnings"]) for rank in found] == [1, 1]
    assert [step for step in found[0]["steps"] if step < 8] == list(range(8))
    assert same_weights(found)


@pytest.mark.parametrize(("slow", "how"), [(0, ""), (1, ""), (1, "|reduced")])
def test_an_interval_that_one_rank_wants_wider_is_wider_on_both_from_the_same_step(ranks: Any, slow: int, how: str) -> None:
    found = ranks[f"the clock|{slow}{how}"]
    watched = [*range(10), 11, 15, 19, 23]
    assert [[step for step, hooked in enumerate(rank["hooked"]) if hooked] for rank in found] == [watched] * 2
    assert found[0]["steps"] == watched and found[1]["steps"] == []
    at_fit_start = 1  # whether all ranks watch the same
    merging = {"all_reduce": 3 * len(watched)} if how else {"all_gather_single": len(watched), "all_reduce": 0}
    expected = {**merging, "all_reduce": merging["all_reduce"] + at_fit_start}
    assert [rank["collectives"] for rank in found] == [expected] * 2
    assert [len(rank["warnings"]) for rank in found] == [1, 1]
    assert "from 1 to 4" in found[0]["warnings"][0]
    assert same_weights(found)


@pytest.mark.parametrize("how", ["", "|reduced"])
def test_a_metric_of_a_module_that_one_rank_alone_calls(ranks: Any, how: str) -> None:
    found = ranks[f"a metric of a module that one rank calls|1{how}"]
    (mean, metric) = (found[0]["latest"][f"output_{stat}/extra"] for stat in ("mean", "MeanMetric"))
    assert metric == pytest.approx(mean, rel=1e-5)
    assert found[1]["latest"] == pytest.approx(found[0]["latest"])


# -- where tables are on their way from a device when a step ends ----------------------------------------------------------


@pytest.mark.parametrize("how", ["", "|reduced"])
def test_requests_that_come_late_take_effect_one_step_later_on_both(ranks: Any, how: str) -> None:
    found = ranks[f"a statistic|1|late{how}"]
    assert [rank["hooked"] for rank in found] == [[True] * 4 + [False] * 4] * 2
    assert found[0]["steps"] == [0, 1] and found[1]["steps"] == []
    assert "ValueError: on this rank only" in found[1]["warnings"][0] and "on another rank" in found[0]["warnings"][0]
    assert same_weights(found)


def test_a_rank_that_cannot_write_a_late_step_keeps_nobody_waiting(ranks: Any) -> None:
    found = ranks["the writing|1|late"]
    assert [rank["hooked"] for rank in found] == [[True] * 6 + [False] * 2] * 2
    assert found[0]["steps"] == [0, 1]
    assert ["No space left" in rank["warnings"][0] for rank in found] == [True, False]
    assert same_weights(found)


@pytest.mark.parametrize("slow", [0, 1])
def test_intervals_become_longer_from_the_same_step_where_requests_come_late(ranks: Any, slow: int) -> None:
    found = ranks[f"the clock|{slow}|late"]
    watched = [*range(11), 11, 15, 19, 23]
    assert [[step for step, hooked in enumerate(rank["hooked"]) if hooked] for rank in found] == [watched] * 2
    assert found[0]["steps"] == watched and found[1]["steps"] == []
    assert [rank["collectives"] for rank in found] == [{"all_gather_single": len(watched), "all_reduce": 1}] * 2
    assert "from 1 to 4" in found[0]["warnings"][0] and [len(rank["warnings"]) for rank in found] == [1, 1]
    assert same_weights(found)


def test_a_validation_between_late_steps_keeps_nobody_waiting(ranks: Any) -> None:
    found = ranks["a validation|1|late"]
    assert [rank["hooked"] for rank in found] == [[True] * 8] * 2
    assert [step for step in found[0]["steps"] if step < 8] == list(range(8))
    assert same_weights(found)
