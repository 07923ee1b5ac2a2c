"""`HealthMonitor` and `FlightRecorder` change nothing in any way to train, and all ranks decide alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from lightning.pytorch import LightningModule
from torch import Tensor
from torch._dynamo.utils import counters

from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor, assert_no_hooks
from lightning_hooks.health.journal import read_findings
from tests.callbacks.models import Net, adamw, data, trainer_of
from tests.conformance import test_compiled as compiled
from tests.conformance._tools import once, run_ranks
from tests.conformance.health_cases import AMONG
from tests.conformance.test_manual import ByHand, Gan
from tests.conformance.test_precision import scaler
from tests.engine.lookouts.faulty import FOUND

ALONE = "the first of several ranks ran the checks alone; those whose step exchanges tensors with others are skipped"
CASES = ["same_bits", "first_batch", "sharded", "healthy", "forgotten", "acts", "replicas", "forgotten_on_one_rank"]
CASES += ["faulty_data", "fails"]
"""The last one leaves a process group that cannot be used."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What the two processes returned, by case."""
    results = once(
        tmp_path_factory,
        "health",
        lambda folder: run_ranks("tests.conformance.health_cases", CASES, folder, timeout=240),
    )
    for case in CASES[:-1]:
        for rank, result in enumerate(results):
            assert "error" not in result[case], f"{case}, rank {rank}: {result[case]['error']}"
    return {case: [result[case] for result in results] for case in CASES}


def found(ranks: dict[str, list[Any]], case: str, name: str) -> dict[str, Any]:
    """What rank 0 returned of a fit, which is what rank 1 returned but for what is printed."""
    one, other = (result[name] for result in ranks[case])
    assert other["printed"] == [], "rank 0 alone prints"
    assert one == {**other, "printed": one["printed"]}
    assert one["error"] == ""
    return one


def of_finding(finding: dict[str, Any]) -> dict[str, Any]:
    """What does not change while a finding stands, since no event tells that it still does."""
    return {key: finding[key] for key in ("rule", "rows", "tensor", "first_step", "severity", "message", "number")}


def assert_journal(told: dict[str, Any]) -> None:
    """`findings.jsonl` has the findings of the run, and each new one once."""
    read = read_findings(told["folder"])
    assert [of_finding(finding.to_dict()) for finding in read.findings] == [*map(of_finding, told["findings"])]
    new = [event.finding.number for event in read.events if event.finding is not None and event.kind == "new"]
    assert new == [finding["number"] for finding in told["findings"]]
    assert read.summary is not None and read.summary["line"] == told["line"]


# -- two ranks -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "accumulation", "unused"])
def test_replicas_have_the_same_bits_with_and_without_it(ranks: Any, how: str) -> None:
    assert len({bits for result in ranks["same_bits"] for bits in result[how].values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["automatic", "manual"])
def test_one_rank_checks_the_first_batch_and_all_train_the_same(ranks: Any, how: str) -> None:
    first, second = (result[how] for result in ranks["first_batch"])
    for bare, checked in (first["bits"], second["bits"]):
        assert bare == checked
    statuses = {check: status for check, (status, _) in first["report"].items()}
    assert second["report"] is None and "fail" not in statuses.values()
    assert statuses["StepRuns"] == statuses["UnchangedParameter"] == statuses["EvalIsDeterministic"] == "pass"
    assert first["notes"] == [ALONE]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exchanging", "both"])
def test_checks_whose_step_exchanges_tensors_are_skipped_and_all_train_the_same(ranks: Any, how: str) -> None:
    first, second = (result[how] for result in ranks["first_batch"])
    for bare, checked in (first["bits"], second["bits"]):
        assert bare == checked
    reason = "the step exchanges tensors with other ranks (c10d.allgather_), which do not run the check"
    assert first["report"]["StepRuns"] == first["report"]["InputNotNormalised"] == ["skip", reason]
    assert {status for status, _ in first["report"].values()} <= {"skip", "pass"} and first["notes"] == [ALONE]


@pytest.mark.slow
def test_all_ranks_find_and_do_what_the_check_on_one_rank_asks_for(ranks: Any) -> None:
    first, second = (result["fault"] for result in ranks["first_batch"])
    assert first == second and first["stopped"] == 1 and first["calls"] == [["NotInOptimizer/body.2.*", 0]]


@pytest.mark.slow
def test_sharded_parameters_have_the_same_bits_and_no_finding(ranks: Any) -> None:
    for result in ranks["sharded"]:
        assert result["bare"] == result["alone"] == result["beside"]
        assert result["findings alone"] == result["findings beside"] == []


@pytest.mark.slow
def test_a_healthy_run_says_one_line_on_rank_0_and_writes_no_finding(ranks: Any) -> None:
    told = found(ranks, "healthy", "beside")
    assert told["findings"] == told["calls"] == [] and told["printed"] == [
        f"{told['line']} Page: lightning-hooks view {told['folder']}"
    ]
    assert told["line"].startswith("Healthy in ")
    assert (Path(told["folder"]) / "summary.json").exists() and read_findings(told["folder"]).findings == []


@pytest.mark.slow
@pytest.mark.parametrize("name", AMONG)
def test_all_ranks_find_the_same_and_rank_0_alone_prints_and_writes(ranks: Any, name: str) -> None:
    told = found(ranks, "forgotten", name)
    assert [finding["fingerprint"] for finding in told["findings"]] == ["NotInOptimizer/body.2.*"]
    assert [name for name, *_ in told["causes"]] == ["ParametersForgotten"]
    assert [line.partition(".")[0] for line in told["printed"]][:1] == ["WARNING: ParametersForgotten (certain)"]
    assert told["printed"][1:] == [f"{told['line']} Page: lightning-hooks view {told['folder']}"]
    assert_journal(told)


@pytest.mark.slow
def test_all_ranks_tell_the_same_of_their_data_and_teachers_once(ranks: Any) -> None:
    told = found(ranks, "faulty_data", "told")
    rows = {finding["rule"]: tuple(finding["rows"]) for finding in told["findings"] if finding["rule"] in FOUND}
    assert rows == {rule: tuple(f"net.{row}" for row in rows) for rule, rows in FOUND.items()}
    assert sum("TeacherTrained" in line for line in told["printed"]) == 2, "a warning, and the line at the end"
    for rank in ranks["faulty_data"]:
        assert rank["bits"]["bare"] == rank["bits"]["beside"] == rank["bits"]["alone"]


@pytest.mark.slow
@pytest.mark.parametrize("name", AMONG)
def test_all_ranks_stop_and_save_at_the_same_step(ranks: Any, name: str) -> None:
    """The loss of one rank alone is not finite."""
    told = found(ranks, "acts", name)
    assert [(rule, first) for rule, _, first, _ in told["calls"]] == [("NonFinite", 3)]
    assert told["saved"] == [4] and told["stopped"] == 4
    assert [path.name for path in Path(told["folder"]).glob("*.ckpt")] == ["NonFinite__-step3.ckpt"]
    assert_journal(told)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alone", "beside"])
def test_a_replica_that_went_its_own_way_is_found_on_every_rank(ranks: Any, name: str) -> None:
    told = found(ranks, "replicas", name)
    ((rule, rows, first, last),) = told["calls"]
    assert (rule, rows) == ("ReplicasDiffer", ["body.2.weight"]) and 101 <= first <= last == 104
    assert [name for name, *_ in told["causes"]] == ["ReplicasApart"]
    assert told["stopped"] == 105
    assert_journal(told)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["at once", "late"])
def test_facts_that_differ_between_ranks_are_those_of_rank_0_on_all(ranks: Any, how: str) -> None:
    """If the optimizer of one rank lacks a layer, that rank alone would stop and save, and the other would wait for ever."""
    told = found(ranks, "forgotten_on_one_rank", f"{how}, rank 0")
    first = 1 if how == "late" else 0
    assert told["calls"][0] == ["NotInOptimizer", ["body.2.bias", "body.2.weight"], first, 4]
    assert len(told["saved"]) == 1 and told["stopped"] == told["saved"][0]
    told = found(ranks, "forgotten_on_one_rank", f"{how}, rank 1")
    assert {rule for rule, *_ in told["calls"]} == {"ReplicasDiffer"} and told["stopped"] == 12


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_run_with_its_own_error_and_findings_can_be_read(ranks: Any) -> None:
    one, other = ranks["fails"]
    assert other["error"] == "ValueError: on this rank only"
    assert one["error"].startswith("RuntimeError: ") and says_that_a_rank_is_gone(one["error"])
    assert one["findings"] == other["findings"] and one["findings"]
    assert other["printed"] == [] and len(one["printed"]) == 1
    assert_journal(one)
    summary = read_findings(one["folder"]).summary
    assert summary is not None and summary["steps"] == 20 and says_that_a_rank_is_gone(summary["error"])


def says_that_a_rank_is_gone(error: str) -> bool:
    """Whether an error is one of the two of gloo for a connection that the other rank no longer holds."""
    return "closed by peer" in error or "reset by peer" in error


# -- one process -----------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[Callable[[], LightningModule], Callable[[], dict[str, Any]]]] = {
    "an uneven last window, clipped": (lambda: Net(adamw), lambda: {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1}),
    "two optimizers, toggled": (lambda: Gan(3), dict),
    "two optimizers, frozen by hand": (lambda: ByHand(toggle=False), dict),
    "two optimizers, a loss scaler": (lambda: Gan(3), lambda: {"plugins": scaler()}),
    "skipped steps": (lambda: Overflows(), lambda: {"plugins": scaler()}),
    "closures": (lambda: Net(lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3), dropout=0.0), dict),
}


class Overflows(Net):
    """The loss scaler skips some steps."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * float("inf") if batch_idx in (3, 4, 9) else loss


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_the_same_bits_with_and_without_it(tmp_path: Path, way: str) -> None:
    def weights(*callbacks: Any) -> list[Tensor]:
        make, options = WAYS[way]
        torch.manual_seed(0)
        model = make()
        torch.manual_seed(1)
        trainer_of(tmp_path, *callbacks, **options()).fit(model, data(16))
        assert_no_hooks(model)
        return [value.clone() for value in model.state_dict().values()]

    bare = weights()
    recorders = [FlightRecorder(), FlightRecorder()]
    for callbacks in ([HealthMonitor()], [recorders[0]], [StatsMonitor(loggers=[]), HealthMonitor(), recorders[1]]):
        assert all(map(torch.equal, bare, weights(*callbacks))), callbacks
    assert [recorder.record for recorder in recorders] == [None, None]


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("way", "backend"), [(compiled.in_place, "aot_eager"), (compiled.regional, compiled.BACKENDS[-1])])
def test_compiled_models_have_the_same_bits_and_as_many_graphs(tmp_path: Path, way: Any, backend: str, beside: bool) -> None:
    def fit(*callbacks: Any) -> tuple[LightningModule, int]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = compiled.Model()
        trainer = compiled.trainer(tmp_path, *callbacks, max_epochs=4, limit_val_batches=0)
        trainer.fit(way(model, backend), compiled.data(), compiled.data())
        assert_no_hooks(model)
        assert not counters["graph_break"]
        return model, counters["stats"]["unique_graphs"]

    bare, graphs = fit()
    recorder = FlightRecorder()
    watched, others = fit(*([StatsMonitor(loggers=[]), recorder] if beside else []), HealthMonitor())
    assert others == graphs and recorder.record is None
    assert all(map(torch.equal, bare.parameters(), watched.parameters()))
