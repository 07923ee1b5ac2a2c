"""Every way of writing into a table ends in the same numbers, and each tensor counts once."""

import gc
import weakref
from functools import partial

import numpy as np
import pytest
import torch

from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.function import FunctionMean
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.kernels.writers import DirectWriter
from lightning_hooks.stats.measurement import Measurement, measure_all
from lightning_hooks.stats.moments import MOMENTS, merge
from lightning_hooks.stats.table import Table
from lightning_hooks.stats.user_statistics import user_statistic
from tests.stats._fallback import KeepsAll

TENSORS = [torch.tensor([1.0, 3.0]), torch.tensor([[2.0, -7.0], [0.0, float("inf")]]).t(), torch.ones(1000).double()]
needs_native = pytest.mark.skipif(kernels.host is kernels.no_kernel, reason="no tensor is written directly")


HISTOGRAM = Histogram()


def largest(tensor):
    return tensor.max()


def table():
    return Table(
        4, [AccumulatorRows(HISTOGRAM, (1,)), AccumulatorRows(FunctionMean("largest", user_statistic(largest, "stats")), (2,))]
    )


def test_a_row_is_the_union_of_what_was_added():
    kept, together = table(), table()
    for row in range(3):
        for tensor in TENSORS:
            kept.measuring.add(row, Measurement(tensor))
        together.measuring.add(row, Measurement(torch.cat([tensor.double().flatten() for tensor in TENSORS])))
    torch.testing.assert_close(kept.sections.split(kept.state)[:2], together.sections.split(together.state)[:2], equal_nan=True)
    assert kept.moments[3, 0] == 0


@pytest.mark.parametrize("threads", [1, 2])
@needs_native
def test_histograms_of_many_are_those_of_each(threads):
    before, tensors = (
        torch.get_num_threads(),
        [*TENSORS, torch.randn(300_000).exp(), torch.zeros(0), torch.ones(3).expand(4, 3)],
    )
    torch.set_num_threads(threads)
    try:
        rows = range(len(tensors))
        slots = tuple(row for row in rows if row != 1)
        each, many, changes = (Table(len(tensors), [AccumulatorRows(HISTOGRAM, slots)]) for _ in range(3))
        for row, tensor in enumerate(tensors):
            each.measuring.put(row, Measurement(tensor))
        many.state += 1.0  # previous numbers must be overwritten
        assert many.measure_all(rows, tensors) == []
        of_each, of_many = (table.sections.split(table.state) for table in (each, many))
        torch.testing.assert_close(of_many, of_each, rtol=0, atol=0, equal_nan=True)
        left = changes.measure_all(rows, [t + 0.0 for t in tensors], [torch.zeros_like(t) for t in tensors])
        counts = [part.sections.split(part.state)[1] for part in (changes, each)]
        kept = [slot for slot, row in enumerate(slots) if row not in left]
        assert len(kept) > 2
        torch.testing.assert_close(counts[0][kept], counts[1][kept], rtol=0, atol=0)
    finally:
        torch.set_num_threads(before)


@needs_native
def test_writers_write_what_adding_writes():
    added, written, fallback = table(), table(), KeepsAll()
    writers = [written.writer(row, fallback) for row in range(4)]
    assert [isinstance(writer, partial) for writer in writers] == [False, False, True, False]
    assert (writers[2].func, writers[2].args) == (fallback, (2,))
    for tensor in TENSORS:
        for row in (0, 1):
            added.measuring.add(row, Measurement(tensor))
            assert writers[row](tensor) is None
    torch.testing.assert_close(written.state, added.state, rtol=0, atol=0, equal_nan=True)
    written.clear()
    writers[0](TENSORS[0])
    assert written.moments[0, 1] == 2.0 and not fallback.came


@needs_native
def test_a_writer_leaves_alone_what_the_kernel_does_not_measure():
    kept, fallback = table(), KeepsAll()
    write = kept.writer(1, fallback)
    before = kept.state.clone()
    odd = [torch.ones(3, dtype=torch.complex64), torch.eye(3).to_sparse(), torch.ones(2, device="meta")]
    for tensor in odd:
        write(tensor)
    assert torch.equal(kept.state, before)
    assert [(row, id(tensor)) for row, tensor in fallback.came] == [(1, id(tensor)) for tensor in odd]
    write(torch.tensor([5.0]))
    kept.measuring.add(1, Measurement(torch.eye(2).to_sparse()))
    assert kept.moments[1, :2].tolist() == [5.0, 1.4]


def test_a_writer_asks_its_fallback_and_passes_errors_on():
    kept, fallback = table(), KeepsAll()
    write = kept.writer(0, fallback)
    fallback.direct = False
    write(TENSORS[0])
    fallback.direct = True
    kept.state = kept.state.float()  # the kernels cannot write a float32 state
    write(TENSORS[0])
    assert len(fallback.came) == 2 and not kept.state[0]

    class Fails(kernels.FallbackWriter):
        direct = True

        def __call__(self, row, tensor):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept.writer(0, Fails())(TENSORS[0])


def test_a_writer_takes_one_tensor():
    with pytest.raises(TypeError, match="expected the tensor|missing 1 required"):
        table().writer(0, KeepsAll())()


def test_a_writer_that_its_table_refers_to_is_collected():
    def made():
        kept = table()
        kept.write = kept.writer(0, KeepsAll())
        return weakref.ref(kept)

    known = made()
    gc.collect()
    assert known() is None


@needs_native
def test_a_state_that_cannot_be_written_is_refused():
    state = torch.zeros(20, dtype=torch.float64)

    def write(into, first, histogram=None):
        histograms = None if histogram is None else np.array([histogram])
        kernels.host.measure_many_into(into, np.array([first]), [torch.ones(3)], None, histograms)

    for first, histogram in ((12, None), (-9, None), (0, 9)):
        with pytest.raises(IndexError, match="outside of the state"):
            write(state, first, histogram)
    for other in (state[::2], state.float()):
        with pytest.raises(TypeError, match="contiguous float64"):
            write(other, 0)
    with pytest.raises(TypeError, match="in host memory"):
        write(state.to("meta"), 0)
    assert not state.any()


def test_several_rows_are_put_at_once_and_the_rest_is_named():
    one_by_one, at_once = table(), table()
    rows, tensors = [2, 1, 0, 3], [*TENSORS, torch.eye(2).to_sparse()]
    for row, tensor in zip(rows, tensors, strict=True):
        one_by_one.measuring.put(row, Measurement(torch.zeros(5)))
        one_by_one.measuring.put(row, Measurement(tensor))
    looks = measure_all(tensors)
    for row in rows:
        at_once.measuring.put(row, Measurement(torch.zeros(5)))
    left = at_once.measuring.put_all(rows, looks)
    assert left == [0]  # the row keeps a statistic of the user
    for position in left:
        at_once.measuring.put(rows[position], looks[position])
    torch.testing.assert_close(at_once.state, one_by_one.state, rtol=0, atol=0, equal_nan=True)


def test_a_measurement_gives_the_same_numbers_however_it_is_asked():
    tensor = torch.randn(5000)
    plain, with_histogram = Measurement(tensor), Measurement(tensor)
    assert torch.equal(plain.moments, measure_all([tensor])[0].moments)
    assert torch.equal(with_histogram.histogram, plain.histogram)
    assert torch.equal(with_histogram.moments, plain.moments)


def test_a_cleared_table_is_a_blank_one():
    table = Table(1000, [AccumulatorRows(HISTOGRAM, (3,))])
    table.measuring.add(3, Measurement(torch.ones(5)))
    table.clear()
    assert torch.equal(table.state, table.sections.blank()) and table.state.is_contiguous()
    table.measuring.add(3, Measurement(torch.ones(5)))
    assert table.moments[3, 0].item() == 5.0


def test_measurements_are_put_in_one_write_and_what_cannot_be_measured_is_named():
    function = FunctionMean("largest", user_statistic(largest, "stats"))
    table = Table(5, [AccumulatorRows(HISTOGRAM, (1, 4)), AccumulatorRows(function, (3,))])
    measurements = [Measurement(torch.full((n,), 2.0)) for n in (3, 4, 5, 9)] + [Measurement(torch.ones(2, device="meta"))]
    assert table.measuring.put_all([4, 0, 1, 3, 2], measurements) == [3, 4]
    assert table.moments[:, 0].tolist() == [4.0, 5.0, 0.0, 0.0, 3.0]
    histograms = table.sections.split(table.state)[2]
    assert torch.equal(histograms, torch.stack([measurements[2].histogram, measurements[0].histogram]))


@needs_native
def test_a_compiled_writer_refuses_a_fallback_of_another_type():
    with pytest.raises(TypeError, match="FallbackWriter"):
        Table(1).writer(0, print)


# Tables on a device, simulated by a kernel on the CPU.


class Kernel:
    """Counts its calls. Skips integer tensors, as the kernels do."""

    def __init__(self):
        self.calls, self.counted = [], []
        self.partial_rows = PartialRows

    def measure_many_into(self, out, places, tensors, before, magnitudes):
        self.calls.append(len(tensors))
        less = before or [torch.zeros_like(tensor) for tensor in tensors]
        for place, tensor, other in zip(places, tensors, less, strict=True):
            if tensor.is_floating_point():
                out[place : place + MOMENTS] = Measurement(tensor - other).moments
        return [position for position, tensor in enumerate(tensors) if not tensor.is_floating_point()]

    def count_many_into(self, out, places, tensors, before):
        self.counted.append(len(tensors))
        for place, tensor in zip(places, tensors, strict=True):
            out[place : place + HISTOGRAM.width] = Measurement(tensor).histogram
        return [position for position, tensor in enumerate(tensors) if len(tensor) == 9]


class PartialRows:
    """Keeps the measurements of tensors from hooks until they are merged."""

    fails = False

    def __init__(self, state, magnitudes, label):
        self.state, self.waiting = state, []

    def writer(self, offset):
        def write(tensor):
            if self.fails:
                raise RuntimeError("no launch")
            if tensor.is_floating_point():
                self.waiting.append((offset, tensor))
            return tensor.is_floating_point()

        return write

    def row_writer(self, row, offset, fallback):
        return DirectWriter(self.writer(offset), row, fallback)

    def flush(self):
        """Every tensor is measured at once."""

    def merge(self):
        for offset, tensor in self.waiting:
            row = self.state[offset : offset + MOMENTS]
            row[:] = merge(row, Measurement(tensor).moments)
        self.drop()

    def drop(self):
        self.waiting = []


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(kernels, "on_device", lambda tensor: kernel)
    return kernel


@needs_native
def test_rows_with_more_than_moments_are_skipped_and_the_others_go_in_one_call(kernel):
    own = AccumulatorRows(FunctionMean("largest", user_statistic(largest, "stats")), (1,))
    table = Table(4, [own, AccumulatorRows(HISTOGRAM, (1, 2, 3))])
    tensors = [torch.ones(5), torch.ones(6), torch.arange(7), torch.ones(8)]
    assert table.measure_all([3, 1, 2, 0], tensors) == [1, 2]
    assert kernel.calls == [3] and table.moments[:, 0].tolist() == [8.0, 0.0, 0.0, 5.0]
    assert kernel.counted == [1] and table.numbers("histogram", 3).sum() == 5
    assert table.measure_all([3, 2], [torch.ones(9), torch.ones(8)]) == [0]


@needs_native
def test_differences_go_in_one_call(kernel):
    table = Table(2)
    after, before = [torch.full((3,), 5.0), torch.ones(2)], [torch.ones(3), torch.ones(2)]
    assert table.measure_all([1, 0], after, before) == []
    assert kernel.calls == [2] and table.moments[:, 1].tolist() == [0.0, 4.0]


@needs_native
def test_a_writer_hands_on_what_is_not_written_and_what_fails(kernel, monkeypatch):
    table, fallback = Table(2), KeepsAll()
    write = table.writer(1, fallback)
    write(torch.ones(4))
    write(torch.arange(3))
    fallback.direct = False
    write(torch.ones(5))
    fallback.direct = True
    monkeypatch.setattr(PartialRows, "fails", True)
    write(torch.ones(6))
    assert table.moments[1, 0] == 4.0 and [(row, tensor.numel()) for row, tensor in fallback.came] == [(1, 3), (1, 5), (1, 6)]


@needs_native
def test_what_hooks_have_seen_is_in_the_table_whenever_it_is_read(kernel):
    table, fallback = Table(1), KeepsAll()
    write = table.writer(0, fallback)
    write(torch.tensor([1.0, 3.0]))
    assert table.moments[0, :2].tolist() == [2.0, 2.0]
    write(torch.tensor([5.0]))
    table.rescale([0], torch.tensor(2.0))
    write(torch.tensor([6.0]))
    state = table.exchange().merged.state
    assert state[:2].tolist() == [4.0, 6.0]
    write(torch.tensor([1.0]))
    table.clear()
    assert table.moments[0, 0] == 0.0


@needs_native
def test_numbers_on_request_are_measured_exchanged_and_cleared_only_where_they_are_due():
    table = Table(
        3,
        [AccumulatorRows(HISTOGRAM, (0, 2)), AccumulatorRows(FunctionMean("largest", user_statistic(largest, "stats")), (1,))],
    )
    fallback = KeepsAll()

    def step(due):
        """The histograms' sums after each way of writing a row, and the state that is exchanged."""
        table.expect({"histogram": due})
        table.clear()
        table.measure_all([0], [torch.ones(4)])
        table.writer(2, fallback, ["histogram"] if 2 in due else [])(torch.ones(5))
        table.measuring.add(2, Measurement(torch.ones(6)))
        table.measuring.put_all([0], [Measurement(torch.ones(3))])
        pending = table.exchange()
        state = pending.merged.state
        assert len(state) == pending.sections.size
        assert pending.sections.moments_of(state)[:, 0].tolist() == [3.0, 0.0, 11.0]
        return [part.sum(1).tolist() for part in pending.sections.split(state)[2:]]

    assert step({0, 2}) == [[3.0, 11.0]]
    assert step({2}) == [[0.0, 11.0]]
    assert step(()) == []
    assert step({0}) == [[3.0, 0.0]]
    assert len(table.sections.blank()) - table.sections.always.size == 2 * HISTOGRAM.width


def test_rows_are_rescaled_and_withdrawn_with_and_without_numbers_on_request():
    for due in ({0}, ()):
        table = Table(1, [AccumulatorRows(HISTOGRAM, (0,))])
        table.expect({"histogram": due})
        table.clear()
        table.measuring.add(0, Measurement(torch.full((4,), 3.0)))
        table.rescale([0], torch.tensor(0.5))
        numbers = table.exchange().sections.split(table.exchange().merged.state)
        assert numbers[0][0, :2].tolist() == [4.0, 1.5] and len(numbers) == 1 + len(due)
        if due:
            assert torch.equal(torch.from_numpy(numbers[1][0]), Measurement(torch.full((4,), 1.5)).histogram)
        table.withdraw([0], torch.tensor(1.0))
        assert torch.equal(table.state, table.sections.blank())
