"""Data-parallel training, two processes: one step is one step of all ranks, whoever looks.

Activations are those of the whole batch. The gradient of an output is that of each rank's own loss, which for a mean loss is
world size times that of the whole batch; gradients of parameters are averaged, and so those of the whole batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_hooks.stats.units.statistics import NAMES as UNIT_STATS
from lightning_hooks.stats.units.statistics import compute
from tests.callbacks.models import trainer_of
from tests.conformance._own_hooks import OwnHooks, assert_sums, weights_of
from tests.conformance._tools import Book, Seen, Witness, compare, loader, once, run_ranks
from tests.conformance.ddp_cases import BATCH, net, whole_batches

CASES = [
    *("numbers", "numbers_accumulated", "numbers_static_graph", "watching_changes_nothing", "collectives", "random"),
    *("random_in_a_loop", "on_one_device", "other_rules_on_each_rank", "reports_of_two_optimizers"),
    *("stages", "files", "pairs", "one_rank_skips", "other_modules_on_each_rank", "own_hooks", "consumers"),
    *("no_batches_on_one_rank", "own_accumulator", "units", "consumers_act", "histograms_at_some_steps"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What the two processes returned, by case."""
    results = once(tmp_path_factory, "ddp", lambda folder: run_ranks("tests.conformance.ddp_cases", CASES, folder))
    for case in CASES:
        for rank, result in enumerate(results):
            assert "error" not in result[case], f"{case}, rank {rank}: {result[case]['error']}"
    return {case: [result[case] for result in results] for case in CASES}


def on_the_whole_batch(root: Path, accumulate: int = 1) -> dict[int, Seen]:
    """What one process sees, with the gradients that flow multiplied by the world size."""
    witness = Witness()
    data = loader(*whole_batches(4))
    trainer_of(root, witness, precision="64-true", accumulate_grad_batches=accumulate).fit(net(), data)
    return {
        step: {
            key: [(t, 0.5 if key[0] in ("input_grad", "output_grad") else 1.0) for t, _ in parts] for key, parts in seen.items()
        }
        for step, seen in witness.steps.items()
    }


def book_of(result: dict[str, Any]) -> Book:
    book = Book()
    book.rows = {int(step): rows for step, rows in result["rows"].items()}
    book.histograms = {int(s): {tag: np.array(h) for tag, h in named.items()} for s, named in result["histograms"].items()}
    return book


@pytest.mark.parametrize(("case", "accumulate"), [("numbers", 1), ("numbers_accumulated", 2), ("numbers_static_graph", 1)])
def test_every_number_is_that_of_one_process_on_the_whole_batch(ranks: Any, tmp_path: Path, case: str, accumulate: int) -> None:
    expected = on_the_whole_batch(tmp_path, accumulate)
    for result in ranks[case]:
        compare(book_of(result), expected)


def test_histograms_are_merged_in_the_steps_that_have_them(ranks: Any) -> None:
    one, other = ranks["histograms_at_some_steps"]
    assert one == other and one["0"] == one["2"] == {}
    model = net()
    weights = {f"param_histogram/{name}": float(parameter.numel()) for name, parameter in model.named_parameters()}
    for step in ("1", "3"):
        assert {tag: one[step][tag] for tag in weights} == weights
        assert one[step]["output_histogram/body.3"] == 2 * BATCH * 3


def test_weights_are_the_same_bits_with_and_without_watching(ranks: Any) -> None:
    one, other = ranks["watching_changes_nothing"]
    assert one["bare"] == one["watched"] == one["changed"] == other["bare"] == other["watched"] == other["changed"]


def test_one_collective_for_each_logged_step_and_none_for_the_others(ranks: Any) -> None:
    for result in ranks["collectives"]:
        assert result == {"1,1": [1] * 6, "3,1": [0, 0, 1, 0, 0, 1], "1,2": [0, 1, 0, 1, 0, 1]}


@pytest.mark.parametrize("case", ["random", "random_in_a_loop"])
def test_random_rules_at_the_step_draw_the_same_on_every_rank(ranks: Any, case: str) -> None:
    one, other = ranks[case]
    assert one["step"] == other["step"]


@pytest.mark.parametrize("case", ["random", "random_in_a_loop"])
def test_random_rules_in_backward_draw_their_own_on_each_rank_and_replicas_stay_equal(ranks: Any, case: str) -> None:
    one, other = ranks[case]
    assert one["backward"]["weights"] == other["backward"]["weights"]
    assert one["backward"]["given"] != other["backward"]["given"]


def test_rules_at_the_step_are_given_the_average_of_what_rules_in_backward_are_given(ranks: Any) -> None:
    one, other = ranks["stages"]
    assert one["step"] == other["step"]
    mean = (torch.tensor(one["backward"]) + torch.tensor(other["backward"])) / 2
    torch.testing.assert_close(torch.tensor(one["step"]), mean, rtol=1e-6, atol=1e-9)
    assert one["backward"] != other["backward"]


def test_rank_0_alone_writes_event_files(ranks: Any) -> None:
    one, other = ranks["files"]
    assert len(one["files"]) == 1 and one == {**other, "files": one["files"]}


def test_consumers_are_given_the_same_views_on_every_rank(ranks: Any) -> None:
    one, other = ranks["consumers"]
    assert one == other and [(step, many) for step, _, _, many in one["seen"]] == [(0, 2), (1, 2), (2, 2)]


def test_pairs_of_gradients_are_those_of_all_micro_batches_of_all_ranks(ranks: Any) -> None:
    one, other = ranks["pairs"]
    assert one == other and len(one) == 3
    halves = (
        torch.stack([x for x, _ in whole_batches(6)]).view(3, 2, 2, BATCH, -1).mean(3).flatten(1, 2)
    )  # step, micro, feature
    before = estimates = None
    for step, parts in enumerate(halves):
        rows = one[str(step)]
        mean = parts.mean(0)
        assert rows["grad_norm/layer.weight"] == pytest.approx(mean.norm().item(), rel=1e-6)
        products = parts @ parts.T
        micro = (products.sum() - products.trace()) / 3 / products.trace()
        assert rows["grad_micro_cosine/layer.weight"] == pytest.approx(micro.item(), rel=1e-6)
        if before is not None:
            cosine = torch.nn.functional.cosine_similarity(before, mean, dim=0)
            assert rows["grad_cosine/layer.weight"] == pytest.approx(cosine.item(), rel=1e-6)
        before = mean
        big, small = mean.square().sum(), parts.square().sum(1).mean()
        new = torch.stack([(4 * big - small) / 3, (small - big) / (1 - 1 / 4)])
        estimates = new if estimates is None else 0.95 * estimates + 0.05 * new
        scale = (estimates[1] / estimates[0]).item()
        if estimates[0] > 0:
            assert rows["grad_noise_scale/layer.weight"] == pytest.approx(scale, rel=1e-6)
        else:
            assert "grad_noise_scale/layer.weight" not in rows


def test_where_one_rank_asks_to_skip_a_step_all_do(ranks: Any) -> None:
    one, other = ranks["one_rank_skips"]
    assert one == other
    assert one["updates"] == [0, 2, 3] and one["skipped"] == [0.0, 1.0, 1.0, 1.0]
    assert [a == b for a, b in zip(one["weights"], one["weights"][1:], strict=False)] == [True, False, False]


def test_own_hooks_are_called_on_every_rank_and_what_they_change_is_changed_for_all(ranks: Any, tmp_path: Path) -> None:
    hooks, model = OwnHooks("body.0", "body.3"), net()
    trainer_of(tmp_path, hooks, precision="64-true").fit(model, loader(*whole_batches(4)))
    one, other = ranks["own_hooks"]
    assert_sums([one["seen"], other["seen"]], hooks.seen, rel=1e-9)
    for kind in ("param_grad", "post_accumulate_grad"):  # of this rank, before the average
        means = [(a + b) / 2 for a, b in zip(one["seen"][kind], other["seen"][kind], strict=True)]
        assert means == pytest.approx(hooks.seen[kind], rel=1e-9) and one["seen"][kind] != other["seen"][kind]
    assert one["weights"] == other["weights"]  # to the last bit
    for name, weights in weights_of(model).items():
        assert one["weights"][name] == pytest.approx(weights, rel=1e-9, abs=1e-12), name


def test_a_module_that_one_rank_alone_calls_has_the_row_of_that_rank(ranks: Any) -> None:
    one, other = ranks["other_modules_on_each_rank"]
    assert one["latest"] == other["latest"]
    for rank, result in enumerate((one, other)):
        assert one["latest"][f"output_norm/branches.{rank}"] == pytest.approx(result["norm"], rel=1e-6)
        assert one["latest"][f"output_grad_norm/branches.{rank}"] > 0


def test_a_trainer_of_one_device_exchanges_nothing_with_the_processes_around_it(ranks: Any) -> None:
    for rank, result in enumerate(ranks["on_one_device"]):
        sums, latest = result["sums"], result["latest"]
        assert len(sums) == 2 + rank
        assert latest["param_mean/body.0.weight"] == pytest.approx(sums[-1] / 48, rel=1e-6)
        assert latest["param_SumMetric/body.0.weight"] == pytest.approx(sums[-1], rel=1e-5)
        assert [view[-1] for view in result["seen"]] == [1] * 3  # of rank 0 one is a validation


def test_rules_that_differ_between_ranks_are_an_error_on_all(ranks: Any) -> None:
    for number, rows in enumerate((["output of body.0"], ["output of body.1"])):
        found = ranks["other_rules_on_each_rank"][number]
        assert found.keys() == {"names", "sizes", "schedules", "nothing", "groups", "a loop"}
        assert found["names"] == (
            f"RuleError: watch: the processes watch different rows or statistics, or at different steps: process {number} "
            f"watches 1 ({rows[0]}). Their tables are merged row by row, so every process needs the same model and "
            "the same callbacks"
        )


def test_a_stage_that_one_rank_may_skip_is_refused_on_all(ranks: Any) -> None:
    for found in ranks["no_batches_on_one_rank"]:
        assert found.pop("training") == found.pop("a folder") == ""
        for case, message in found.items():
            where = "ActivationCapture: " if case == "a capture" else ""
            assert message == (
                f"UnsupportedError: {where}stages: with allow_zero_length_dataloader_with_multiple_devices = True a process "
                "without batches skips 'validate', and the others would wait for it for ever. Give every process at least one "
                "batch and leave it False, or omit 'validate'"
            ), case


def test_reports_count_each_element_once_whichever_optimizer_steps_it(ranks: Any) -> None:
    assert ranks["reports_of_two_optimizers"] == [[pytest.approx(8**0.5)] * 3] * 2


def test_spawned_processes(tmp_path: Path) -> None:
    (result,) = run_ranks("tests.conformance.ddp_cases", ["spawned"], tmp_path, world=1)
    assert result == {"spawned": {}}, result["spawned"].get("error")
    expected = on_the_whole_batch(tmp_path)
    for rank in range(2):
        written = json.loads((tmp_path / "spawned" / f"spawned{rank}.json").read_text())
        compare(book_of(written), expected)


def test_an_accumulator_of_a_users_is_merged_exactly_over_ranks_and_micro_batches(ranks: dict[str, list[Any]]) -> None:
    results = ranks["own_accumulator"]
    assert results[0]["values"] == results[1]["values"] and len(results[0]["values"]) == 1
    together = np.concatenate([np.array(output) for result in results for output in result["outputs"]])
    assert results[0]["values"][0] == pytest.approx(np.linalg.norm(together, 2), rel=1e-9)


def test_units_are_those_of_all_ranks_and_micro_batches(ranks: dict[str, list[Any]]) -> None:
    results = ranks["units"]
    assert repr(results[0]["values"]) == repr(results[1]["values"])  # where a NaN equals a NaN
    outputs = {"body.0": [np.array(output) for result in results for output in result["outputs"]]}
    outputs["extra"] = [np.array(output) for output in results[1]["outputs"]]
    for name, found in outputs.items():
        x = np.concatenate(found)
        held = np.stack([x.sum(0), (x**2).sum(0), np.abs(x).max(0), (x == 0).sum(0)], axis=1)
        for stat in UNIT_STATS:
            wanted = compute(stat, held, float(len(x)), bool((x >= 0).all()))
            assert results[0]["values"][stat][name] == pytest.approx(wanted, rel=1e-9, nan_ok=True), (name, stat)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("how", ["at once", "late"])
def test_what_a_consumer_asks_for_happens_at_the_same_step_on_every_rank(ranks: Any, how: str, every: int) -> None:
    first, second = (result[f"{how}, every {every}"] for result in ranks["consumers_act"])
    late = how == "late"
    assert first == second
    assert first["saved_at"] == [2 + late] and first["stopped_at"] == 4 + late
    assert first["files"] == ["spike.ckpt"] and Path(first["folder"]).name == f"{how}{every}" and first["ranks"] == 2
