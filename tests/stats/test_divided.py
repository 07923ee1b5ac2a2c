"""Gradients that are still multiplied by a loss scale are measured together, and have the numbers of the quotients."""

from __future__ import annotations

import pytest
import torch

from lightning_hooks.stats.accumulators import BUILT_IN, AccumulatorRows
from lightning_hooks.stats.divided import measure_divided
from lightning_hooks.stats.measurement import Measurement, UnscaledMeasurement
from lightning_hooks.stats.schema import COUNT, MAX, MIN, NONFINITE, UNDERFLOW, ZEROS
from lightning_hooks.stats.table import Table
from tests.stats.kernels import stand_in

EXACT = [COUNT, MIN, MAX, ZEROS, NONFINITE, UNDERFLOW]
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("scale", [65536.0, 3.0, 0.25])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("on", ["host", "device"])
def test_rows_have_the_numbers_of_the_quotients(monkeypatch: pytest.MonkeyPatch, on: str, scale: float, counted: bool) -> None:
    if on == "device":
        if stand_in.missing() is not None:
            pytest.skip(str(stand_in.missing()))
        stand_in.install(monkeypatch)
    tensors = [
        torch.tensor([1.0, -6.0, 0.0, 1e-40]),
        torch.tensor([NAN, INF, -2.0]),
        torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double(),
        torch.tensor([3.0, 6e-8, 65504.0], dtype=torch.float16),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.zeros(0),
        torch.randn(4, 6)[:, ::2],
        torch.tensor([[0.0, 3.0]]).to_sparse(),
    ]
    table, divisor = Table(9, [AccumulatorRows(BUILT_IN[1], (0, 1, 2, 3, 4))]), torch.tensor(scale)
    table.expect({"histogram": (0, 1, 2, 3, 4)} if counted else {})
    table.clear()
    table.measuring.add(8, Measurement(torch.tensor([2.0, 4.0])))  # the row of another tensor stays as it is
    assert measure_divided(table, table.offsets(range(8)), tensors, divisor) == [7]
    assert table.moments[8, :2].tolist() == [2.0, 3.0] and table.moments[7, 0] == 0
    for row, tensor in enumerate(tensors[:7]):
        want = UnscaledMeasurement(Measurement(tensor), divisor)
        torch.testing.assert_close(table.moments[row], want.moments, rtol=1e-6, atol=0, equal_nan=True)
        torch.testing.assert_close(table.moments[row, EXACT], want.moments[EXACT], rtol=0, atol=0, equal_nan=True)
        if counted and row < 5:
            assert torch.equal(table.numbers("histogram", row), want.histogram)
