"""The numbers of units of a finished step: each row by its own size, heads and loss scale."""

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import RuleError
from lightning_hooks.stats.accumulators.store import StoreContext
from lightning_hooks.stats.accumulators.unit_store import UnitStore
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.units.spec import UnitSpec
from lightning_hooks.stats.units.statistics import NAMES, compute_all


def moments_of(tensor):
    return reference.measure(tensor).numpy()


LABEL = "output of layer {}".format


def stored(tensors, specs, scale=1.0, scaled=()):
    """What a store says of one tensor [elements, units] for each row; None for a row that was not measured."""
    rows = range(len(tensors))
    options = {row: (nn.Linear(1, 1), spec) for row, spec in enumerate(specs)}
    store = UnitStore([*rows], options, 1 + len(NAMES), StoreContext("cpu", True, LABEL, 1))
    store.due = {*rows}
    moments = np.zeros((len(tensors), 9))
    for row, tensor in enumerate(tensors):
        if tensor is not None:
            store.add(row, Measurement(tensor))
            moments[row] = moments_of(tensor / scale if row in scaled else tensor)
    return store.exchange().finish(moments, scale, scaled)


def expected(tensor, heads=None):
    units = tensor.reshape(-1, tensor.shape[-1]) if heads is None else tensor.reshape(len(tensor), heads, -1)
    columns = [units[:, k].double().flatten() for k in range(units.shape[1])]
    sums = np.array([[float(c.sum()), float(c.square().sum()), float(c.abs().max()), float((c == 0).sum())] for c in columns])
    return [len(columns), *compute_all(sums, float(columns[0].numel()), bool(tensor.min() >= 0)).tolist()]


def made(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_each_row_has_the_numbers_of_its_own_tensor():
    tensors = [made(6, 4), made(5, 8), None, made(7, 4).relu(), made(3, 8), made(9, 8), torch.zeros(0, 4)]
    specs = [
        UnitSpec(),
        UnitSpec(vectors=True),
        UnitSpec(),
        UnitSpec(),
        UnitSpec(heads=2),
        UnitSpec(heads=4, vectors=True),
        UnitSpec(),
    ]
    numbers, vectors = stored(tensors, specs)
    for row in (0, 1, 3):
        assert numbers[row].tolist() == pytest.approx(expected(tensors[row]), rel=1e-5)
    for row in (4, 5):
        assert numbers[row].tolist() == pytest.approx(expected(tensors[row], specs[row].heads), rel=1e-5)
    assert not numbers[[2, 6]].any()
    assert {row for row, _ in vectors} == {1, 5}
    assert vectors[1, "mean"] == pytest.approx(tensors[1].double().mean(0).numpy(), rel=1e-5)
    assert vectors[5, "abs_max"] == pytest.approx(tensors[5].view(9, 4, 2).abs().amax((0, 2)).double().numpy())


def test_only_rows_of_scaled_tensors_are_divided_by_the_loss_scale():
    tensors = [made(6, 4) * 1e-3, made(6, 4) * 1e-3]
    numbers, _ = stored([tensors[0], tensors[1] * 1024.0], [UnitSpec(vectors=True)] * 2, 1024.0, {1})
    for row, tensor in enumerate(tensors):
        assert numbers[row].tolist() == pytest.approx(expected(tensor), rel=1e-5)


def test_a_skipped_row_has_no_numbers():
    store = UnitStore(
        [0, 1], {row: (nn.Linear(1, 1), UnitSpec()) for row in (0, 1)}, 1 + len(NAMES), StoreContext("cpu", True, LABEL, 1)
    )
    store.due = {0, 1}
    store.add(0, Measurement(made(6, 4)))
    store.add(1, Measurement(made(6, 4)))
    with pytest.warns(
        UserWarning, match="the units of output of layer 0 are not measured: it had 4 units along dimension 1, and now has 5"
    ):
        store.add(0, Measurement(made(6, 5)))
    numbers = store.exchange().finish(np.stack([moments_of(made(6, 4))] * 2), 1.0, ()).numbers
    assert not numbers[0].any() and numbers[1].tolist() == pytest.approx(expected(made(6, 4)), rel=1e-5)


def test_units_that_no_user_asked_for_are_skipped_without_a_warning():
    store = UnitStore([0], {0: (nn.ReLU(), UnitSpec(is_written=False))}, 1 + len(NAMES), StoreContext("cpu", True, LABEL, 1))
    store.due = {0}
    for width in (4, 5):
        store.add(0, Measurement(made(6, width)))
    assert not store.exchange().finish(moments_of(made(6, 4))[None], 1.0, ()).numbers.any()


@pytest.mark.parametrize("layer", [nn.LSTM(3, 2, 2, bidirectional=True), nn.GRU(3, 2, bidirectional=True, batch_first=True)])
def test_states_of_a_bidirectional_layer_have_the_units_of_its_output(layer):
    store = UnitStore([0], {0: (layer, UnitSpec(vectors=True))}, 1 + len(NAMES), StoreContext("cpu", True, LABEL, 1))
    store.due = {0}
    with torch.no_grad():
        output, states = layer(made(5, 4, 3))
    states = states if isinstance(states, tuple) else (states,)
    # Each state is [layers * directions, batch, units]; the units of the directions stand side by side in the output.
    flat = [state.unflatten(0, (-1, 2)).permute(0, 2, 1, 3).reshape(-1, 4) for state in states]
    for tensor in (output, *states):
        store.add(0, Measurement(tensor))
    expected_sums = torch.cat([output.reshape(-1, 4), *flat]).double().sum(0)
    assert store.by_row[0][:, 0].tolist() == pytest.approx(expected_sums.tolist(), abs=1e-6)


def test_heads_that_do_not_divide_the_units_are_refused():
    with pytest.raises(
        RuleError, match="heads=3: the 4 units of output of layer 0 do not form so many groups of equal size; choose a"
    ):
        stored([made(6, 4)], [UnitSpec(heads=3)])


def test_one_fill_clears_all_rows():
    rows, context = (0, 2, 3), StoreContext("cpu", True, LABEL, 1)
    store = UnitStore(rows, {row: (nn.Linear(1, 1), UnitSpec()) for row in rows}, 1 + len(NAMES), context)
    store.clear()  # nothing is due, and there are no units yet
    store.due = {0, 2}
    store.clear()
    for row, units in ((0, 4), (2, 6)):
        store.add(row, Measurement(torch.ones(5, units)))
    with pytest.warns(UserWarning, match="it had 4 units along dimension 1, and now has 5"):
        store.add(0, Measurement(torch.ones(5, 5)))
    for _ in range(2):
        store.clear()
        kept = [units for units in store.by_row if units is not None]
        assert len({units.untyped_storage()._cdata for units in kept}) == 1 and [len(units) for units in kept] == [4, 6]
        store.add(2, Measurement(torch.ones(5, 6)))
    assert store.by_row[0].tolist() == [[0.0, 0.0, 0.0, -np.inf]] * 4
    assert store.by_row[2].tolist() == [[5.0, 5.0, 1.0, 0.0]] * 6
    store.due = {3}
    store.clear()
    store.add(3, Measurement(torch.ones(5, 2)))  # a new row, after which all are put together again
    store.due = {2, 3}
    store.clear()
    assert len({units.untyped_storage()._cdata for units in store.by_row if units is not None}) == 1
    store.add(3, Measurement(torch.full((5, 2), 2.0)))
    assert store.by_row[2].count_nonzero() == 0
    assert store.exchange().finish(np.ones((4, 9)), 1.0, ()).numbers[:, 0].tolist() == [0.0, 6.0, 2.0]
