"""Every way of writing into a table ends in the same numbers, and each tensor counts once."""

from functools import partial

import pytest
import torch

from lightning_hooks.stats import kernels
from lightning_hooks.stats.custom import user_statistic
from lightning_hooks.stats.measurement import Measurement, measure_all
from lightning_hooks.stats.table import Table
from tests.stats._detour import Detour

TENSORS = [torch.tensor([1.0, 3.0]), torch.tensor([[2.0, -7.0], [0.0, float("inf")]]).t(), torch.ones(1000).double()]
needs_native = pytest.mark.skipif(kernels.compiled is None, reason="the reference kernel serves")


def largest(tensor):
    return tensor.max()


def table():
    return Table(4, histogram_rows=(1,), users=[(2, user_statistic(largest, "stats"))])


def test_a_row_is_the_union_of_what_was_added():
    kept, together = table(), table()
    for row in range(3):
        for tensor in TENSORS:
            kept.add(row, Measurement(tensor))
        together.add(row, Measurement(torch.cat([tensor.double().flatten() for tensor in TENSORS])))
    torch.testing.assert_close(kept.sections.split(kept.state)[:2], together.sections.split(together.state)[:2], equal_nan=True)
    assert kept.moments[3, 0] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_histograms_of_many_are_those_of_each(threads):
    before, tensors = (
        torch.get_num_threads(),
        [*TENSORS, torch.randn(300_000).exp(), torch.zeros(0), torch.ones(3).expand(4, 3)],
    )
    torch.set_num_threads(threads)
    try:
        rows = range(len(tensors))
        slots = tuple(row for row in rows if row != 1)
        each, many, changes = (Table(len(tensors), histogram_rows=slots) for _ in range(3))
        for row, tensor in enumerate(tensors):
            each.put(row, Measurement(tensor))
        many.state += 1.0  # what was there before does not count
        assert many.measure_all(rows, tensors) == []
        torch.testing.assert_close(many.state[:-2], each.state[:-2], rtol=0, atol=0, equal_nan=True)
        left = changes.measure_all(rows, [t + 0.0 for t in tensors], [torch.zeros_like(t) for t in tensors])
        counts = [part.sections.split(part.state)[1] for part in (changes, each)]
        kept = [slot for slot, row in enumerate(slots) if row not in left]
        assert len(kept) > 2
        torch.testing.assert_close(counts[0][kept], counts[1][kept], rtol=0, atol=0)
    finally:
        torch.set_num_threads(before)


def test_writers_write_what_adding_writes():
    added, written, detour = table(), table(), Detour()
    writers = [written.writer(row, detour) for row in range(4)]
    assert [isinstance(writer, partial) for writer in writers] == [False, False, True, False]
    assert (writers[2].func, writers[2].args) == (detour, (2,))
    for tensor in TENSORS:
        for row in (0, 1):
            added.add(row, Measurement(tensor))
            assert writers[row](tensor) is None
    torch.testing.assert_close(written.state, added.state, rtol=0, atol=0, equal_nan=True)
    written.clear()
    writers[0](TENSORS[0])
    assert written.moments[0, 1] == 2.0 and not detour.came


def test_a_writer_leaves_alone_what_the_kernel_does_not_measure():
    kept, detour = table(), Detour()
    write = kept.writer(1, detour)
    before = kept.state.clone()
    odd = [torch.ones(3, dtype=torch.complex64), torch.eye(3).to_sparse(), torch.ones(2, device="meta")]
    for tensor in odd:
        write(tensor)
    assert torch.equal(kept.state, before)
    assert [(row, id(tensor)) for row, tensor in detour.came] == [(1, id(tensor)) for tensor in odd]
    write(torch.tensor([5.0]))
    kept.add(1, Measurement(torch.eye(2).to_sparse()))
    assert kept.moments[1, :2].tolist() == [5.0, 1.4]


def test_a_writer_asks_its_detour_and_hands_errors_on():
    kept, detour = table(), Detour()
    write = kept.writer(0, detour)
    detour.direct = False
    write(TENSORS[0])
    detour.direct = True
    kept.state = kept.state.float()  # cannot be written
    write(TENSORS[0])
    assert len(detour.came) == 2 and not kept.state[0]

    class Fails:
        direct = True

        def __call__(self, row, tensor):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept.writer(0, Fails())(TENSORS[0])


@needs_native
def test_a_state_that_cannot_be_written_is_refused():
    state, tensor = torch.zeros(20, dtype=torch.float64), torch.ones(3)
    native = kernels.compiled
    with pytest.raises(IndexError, match="outside of the state"):
        native.measure_into(state, 12, None, tensor, False)
    with pytest.raises(IndexError, match="outside of the state"):
        native.measure_into(state, 0, 9, tensor, False)
    with pytest.raises(TypeError, match="contiguous float64"):
        native.measure_into(state[::2], 0, None, tensor, False)
    with pytest.raises(TypeError, match="contiguous float64"):
        native.measure_into(state.float(), 0, None, tensor, False)
    assert not state.any()
    assert not native.measure_into(state.to("meta"), 0, None, tensor, False)
    for place, histogram, error in (
        (-9, None, IndexError),
        (0, -1, IndexError),
        (0, -509, IndexError),
        (None, None, TypeError),
    ):
        with pytest.raises(error):
            native.measure_into(state, place, histogram, tensor, False)
    assert not state.any()


def test_several_rows_are_put_at_once_and_the_rest_is_named():
    one_by_one, at_once = table(), table()
    rows, tensors = [2, 1, 0, 3], [*TENSORS, torch.eye(2).to_sparse()]
    for row, tensor in zip(rows, tensors, strict=True):
        one_by_one.put(row, Measurement(torch.zeros(5)))
        one_by_one.put(row, Measurement(tensor))
    looks = measure_all(tensors)
    for row in rows:
        at_once.put(row, Measurement(torch.zeros(5)))
    left = at_once.put_all(rows, looks)
    assert left == [0, 1, 3]  # a statistic of a user, a histogram, sparse
    for position in left:
        at_once.put(rows[position], looks[position])
    torch.testing.assert_close(at_once.state, one_by_one.state, rtol=0, atol=0, equal_nan=True)


def test_a_measurement_gives_the_same_numbers_however_it_is_asked():
    tensor = torch.randn(5000)
    plain, with_histogram = Measurement(tensor), Measurement(tensor)
    with_histogram.packed(with_histogram=True)
    assert torch.equal(plain.moments, with_histogram.moments)
    assert torch.equal(plain.histogram, with_histogram.histogram)
    assert torch.equal(measure_all([tensor])[0].moments, plain.moments)


def test_a_cleared_table_is_a_blank_one():
    table = Table(1000, histogram_rows=(3,))
    table.add(3, Measurement(torch.ones(5)))
    table.clear()
    assert torch.equal(table.state, table.sections.blank()) and table.state.is_contiguous()
    table.add(3, Measurement(torch.ones(5)))
    assert table.moments[3, 0].item() == 5.0
