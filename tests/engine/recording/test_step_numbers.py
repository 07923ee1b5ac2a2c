"""The numbers of a step of a recorder on a device: what the block holds, and how often something is launched."""

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks.engine.recording.step_numbers import StepNumbers
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.table import Table
from tests.stats.kernels import stand_in

INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=[False, True], ids=["without a kernel", "on a device"])
def device(request, monkeypatch):
    """A driver that stands in for that of a device; None to measure by plain torch."""
    if not request.param:
        return None
    if stand_in.missing() is not None:
        pytest.skip(str(stand_in.missing()))
    return stand_in.install(monkeypatch)


def figures(numbers, table, scale=None):
    return numbers.copied(table, scale).wait()


def test_the_rows_of_the_recorder_and_the_loss_scale_are_copied(device):
    table, numbers = Table(3), StepNumbers(np.array([0, 2]))
    for row in range(3):
        table.measuring.add(row, Measurement(torch.tensor([1.0, row])))
    found = figures(numbers, table, torch.tensor(1024.0))
    assert found.moments[:, 5].tolist() == [1.0, 2.0] and found.scale == 1024.0 and not found.has_bad_parameter
    numbers.begin_step()
    assert figures(numbers, table).scale is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_parameter_that_is_not_finite_is_found_in_any_optimizer(device, dtype, bad):
    table, numbers = Table(1), StepNumbers(np.array([0]))
    good = [nn.Parameter(torch.ones(3, 2, dtype=dtype).t()), nn.Parameter(torch.ones(0, dtype=dtype))]
    worse = [nn.Parameter(torch.ones(5)), nn.Parameter(torch.full((7,), bad, dtype=dtype))]
    for step, (first, second) in enumerate(((good, good), (good, worse), (worse, good), (good, good[:1]))):
        numbers.begin_step()
        numbers.measure(table, first)
        numbers.measure(table, second)
        assert figures(numbers, table).has_bad_parameter == (step in (1, 2)), step


def test_a_copy_keeps_its_numbers_while_the_next_step_is_measured(device):
    table, numbers = Table(1), StepNumbers(np.array([0]))
    weight = nn.Parameter(torch.ones(4))
    copies = []
    for value in (1.0, NAN, 2.0):
        with torch.no_grad():
            weight.fill_(value)
        numbers.begin_step()
        numbers.measure(table, [weight])
        copies.append(numbers.copied(table, None))
    assert [each.wait().has_bad_parameter for each in copies] == [False, True, False]


def test_changes_are_taken_from_the_table_beside_parameters_that_are_measured(device):
    table, numbers = Table(4), StepNumbers(np.array([0]))
    rows = [3, 1]
    for bad_change, bad_parameter in ((False, False), (True, False), (False, True), (True, True)):
        table.clear()
        numbers.begin_step()
        table.measuring.put(3, Measurement(torch.tensor([1.0, INF if bad_change else 2.0])))
        table.measuring.put(1, Measurement(torch.tensor([1.0])))
        numbers.take_changes(table, rows)
        numbers.measure(table, [nn.Parameter(torch.tensor([NAN if bad_parameter else 1.0]))])
        found = figures(numbers, table)
        assert (found.has_bad_change, found.has_bad_parameter) == (bad_change, bad_parameter)


def test_all_parameters_of_a_dtype_take_one_launch_and_one_that_merges(device):
    if device is None:
        pytest.skip("there is nothing to launch")
    table, numbers = Table(1), StepNumbers(np.array([0]))
    parameters = [nn.Parameter(torch.ones(8 * size)) for size in range(1, 30)]
    for _ in range(2):
        device.from_python.clear()
        numbers.begin_step()
        numbers.measure(table, parameters)
        assert device.from_python == ["measure_list", "merge_rows"]
