"""An autopsy names verdict, operation, module, line and direction of planted faults, and says nothing of healthy steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, distributed, nn

from lightning_hooks.engine.recording import provenance
from lightning_hooks.engine.recording.autopsy import Autopsy, autopsy
from tests.engine.recording import faults
from tests.engine.recording.faults import FAULTS, HEALTHY, Case, of_net


def found_in(case: Case, limit: float = 60.0) -> Autopsy:
    return autopsy(case.model, case.step, batch=case.batch, update=case.update, optimizers=case.optimizers, limit=limit)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_has_its_verdict_operation_module_and_direction(name: str) -> None:
    build, expected = FAULTS[name]
    found = found_in(build())
    operation = None if found.operation is None else found.operation.name
    assert found.reproduced, found
    assert (found.verdict, operation, found.module, found.direction, found.call) == (
        expected.verdict,
        expected.operation,
        expected.module,
        expected.direction,
        expected.call,
    ), found
    if expected.line:
        assert found.operation is not None and found.operation.line == expected.line, found
        assert found.operation.source.startswith("tests/engine/recording/faults.py:")
    assert found.result is not None and found.result.nonfinite > 0


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_a_healthy_step_has_no_verdict(name: str) -> None:
    found = found_in(HEALTHY[name]())
    assert (found.reproduced, found.verdict, found.operation, found.notes) == (False, None, None, ())


def test_operands_of_an_overflow_have_their_ranges_and_headroom() -> None:
    found = found_in(of_net(faults.half_exp))
    (operand,) = found.inputs
    assert (operand.name, operand.dtype, operand.nonfinite) == ("self", "float16", 0)
    assert operand.abs_max is not None and 12 < operand.abs_max < 14
    assert any(note.startswith("float16 ends at 6.55e+04; the operands reach 1") for note in found.notes), found.notes
    assert found.result is not None and found.result.positive_infinite > 0 and found.result.first is not None


def test_a_division_by_zero_is_no_lack_of_range() -> None:
    found = found_in(FAULTS["third_call"][0]())
    assert found.notes == () and found.inputs[0].abs_max == 0.0


def test_a_bad_batch_is_named_with_its_coordinates() -> None:
    found = found_in(faults.batch_with(float("nan")))
    assert found.noticed == "loss" and found.tensor == "batch"
    (bad,) = found.inputs
    assert (bad.name, bad.nan, bad.first) == ("batch", 1, (1, 2))


def test_the_infinity_behind_a_gradient_is_told() -> None:
    found = found_in(of_net(faults.where_trap_of_exp))
    assert found.noticed.startswith("grad of first.") and found.operation is not None
    assert found.operation.node == "ExpBackward0"
    (note,) = [note for note in found.notes if "does not contain" in note]
    assert "aten.exp in middle (tests/engine/recording/faults.py:" in note


def test_notes_name_what_has_no_origin() -> None:
    assert "its argument value is -inf" in found_in(FAULTS["infinite_rate"][0]()).notes
    uninitialised = found_in(FAULTS["uninitialised"][0]()).notes
    assert "other is memory that nothing has initialised, as torch.empty returns it" in uninitialised


def test_the_place_is_that_of_the_module_and_its_call() -> None:
    place = found_in(FAULTS["third_call"][0]()).place(step=7, micro_batch=1)
    assert place is not None
    assert (place.module, place.type, place.call, place.tensor) == ("block", "Function", 2, "output")
    assert (place.step, place.micro_batch, place.rank, place.world_size) == (7, 1, 0, 1)


def test_gradients_that_no_optimizer_uses_do_not_count() -> None:
    case = of_net(faults.square_root_of_zero)
    optimizer = torch.optim.SGD(case.model.last.parameters(), lr=0.1)
    assert found_in(case).reproduced
    assert not found_in(case._replace(optimizers=(optimizer,))).reproduced


def test_a_step_that_takes_too_long_is_stopped() -> None:
    case = of_net(faults.log_of_zero)
    found = found_in(case, limit=0.0)
    assert not found.reproduced and found.notes == ("the step was stopped after 0 s",)
    assert_nothing_left()


def test_a_step_that_raises_names_the_first_nan() -> None:
    def check(x: Tensor) -> Tensor:
        x = log_and_root(x)
        if x.isnan().any():
            raise ValueError("the probabilities are not valid")
        return x

    def log_and_root(x: Tensor) -> Tensor:
        return (x * 0 - 1).sqrt()

    found = found_in(of_net(check))
    assert found.operation is not None and (found.operation.name, found.module) == ("aten.sqrt", "middle")
    assert found.notes[0] == "the step raised ValueError: the probabilities are not valid"
    assert "the step did not end: the first NaN is named, whether or not it reaches the loss" in found.notes
    assert_nothing_left()


def test_a_step_that_gives_bad_numbers_once_in_two_runs_is_not_blamed_on_an_operator() -> None:
    runs: list[int] = []

    def second_is_bad(x: Tensor) -> Tensor:
        runs.append(1)
        return x if len(runs) == 1 else x / 0

    found = found_in(of_net(second_is_bad))
    assert (found.reproduced, found.verdict, found.operation) == (True, "forward", None)
    assert found.notes[-1].startswith("the numbers are finite when each operator runs alone")


def test_anomaly_mode_that_raises_does_not_hide_the_operation() -> None:
    with torch.autograd.set_detect_anomaly(True):
        found = found_in(of_net(faults.square_root_of_zero))
    assert found.operation is not None and (found.verdict, found.operation.node) == ("backward", "SqrtBackward0")
    assert found.notes[0].startswith("the step raised RuntimeError: Function 'MulBackward0' returned nan values")


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_step_with_a_collective_is_not_run_to_its_end(group: None) -> None:
    def reduced(x: Tensor) -> Tensor:
        distributed.all_reduce(x.detach().clone())
        return x / 0

    found = found_in(of_net(reduced))
    note = "the step waits for other ranks (c10d.allreduce_), so it was not run again to its end"
    assert (found.reproduced, found.notes) == (False, (note,))
    assert_nothing_left()


def test_a_tensor_that_cannot_be_read_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(tensor: Tensor) -> None:
        raise NotImplementedError("no range of such a tensor")

    monkeypatch.setattr(provenance, "range_of", unreadable)
    found = found_in(of_net(faults.log_of_zero))
    assert found.reproduced and found.operation is None
    assert "the tensors of aten.log could not be read (NotImplementedError: no range of such a tensor)" in found.notes


def test_hooks_of_the_user_run_and_none_of_ours_stay() -> None:
    case = of_net(faults.log_of_zero)
    calls: list[str] = []
    handle = case.model.first.register_forward_hook(lambda *_: calls.append("first"))
    assert found_in(case).module == "middle"
    assert calls == ["first"] and len(case.model.first._forward_hooks) == 1
    handle.remove()
    assert_nothing_left()


def assert_nothing_left() -> None:
    from torch.nn.modules import module
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    assert not module._global_forward_hooks and not module._global_forward_pre_hooks
    assert _get_current_dispatch_mode() is None
    assert isinstance(nn.Linear(1, 1)(torch.ones(1, 1)), Tensor)
