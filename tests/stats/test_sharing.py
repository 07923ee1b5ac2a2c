"""One measurement for several rows: each has the numbers that it would have alone."""

import gc
import weakref
from functools import partial

import pytest
import torch

from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.function import FunctionMean
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.kernels import numpy_kernel
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.sharing import measured_for, share
from lightning_hooks.stats.table import Table
from lightning_hooks.stats.user_statistics import user_statistic

TENSORS = [
    torch.tensor([1.0, 3.0]),
    torch.tensor([[2.0, -7.0], [0.0, float("inf")]]).t(),
    torch.ones(1000).double(),
    torch.linspace(-3, 3, 20_000).half(),
    torch.tensor([1.0, float("nan")]),
    torch.ones(0),
    torch.full((4,), 1 + 1j),
]


@pytest.fixture(params=["in use", "numpy"])
def host(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "host", numpy_kernel)
    return kernels.host


class Reader:
    """A monitor's row: a table with its fallback, which counts what Python writes."""

    def __init__(self, *, histogram=False, user=False, magnitudes=True, direct=True):
        kept = [AccumulatorRows(Histogram(), (0,))] if histogram else []
        kept += [AccumulatorRows(FunctionMean("largest", user_statistic(torch.max, "stats")), (0,))] if user else []
        self.table = Table(1, kept, magnitudes=magnitudes)
        reader = self

        class Fallback(kernels.host.FallbackWriter):
            def __call__(self, row, tensor):
                reader.merge(Measurement(tensor))

        self.fallback, self.python = Fallback(), 0
        self.fallback.direct = direct
        self.write = self.table.writer(0, self.fallback)

    def merge(self, measurement):
        self.python += 1
        self.table.add(0, measurement)


READERS = {
    "two": [{}, {}],
    "histogram": [{}, {"histogram": True}, {}],
    "magnitudes": [{"magnitudes": False}, {}, {"magnitudes": False, "histogram": True}],
    "no magnitudes": [{"magnitudes": False}, {"magnitudes": False}],
    "not direct": [{}, {"direct": False}],
    "a statistic of the user's": [{"magnitudes": False}, {"user": True}, {"histogram": True}],
    "Python alone": [{"user": True}, {"direct": False}],
}


@pytest.mark.parametrize("options", READERS.values(), ids=READERS)
def test_each_row_has_the_numbers_that_it_has_alone(host, options):
    alone, together = [Reader(**each) for each in options], [Reader(**each) for each in options]
    write = share([reader.write for reader in together], [reader.merge for reader in together])
    for tensor in TENSORS[:-1]:
        for reader in alone:
            reader.write(tensor)
        assert write(tensor) is None
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(other.table.state, one.table.state, rtol=0, atol=0, equal_nan=True)
        assert (other.python, other.fallback.calls) == (one.python, one.fallback.calls)
        assert other.python in (0, len(TENSORS) - 1) and (other.fallback.nanoseconds > 0) == (other.python == 0)


def test_a_tensor_is_measured_once(host, monkeypatch):
    readers = [Reader(), Reader(direct=False), Reader(user=True), Reader(direct=False)]
    given = []
    merges = [lambda measurement, reader=reader: given.append(measurement) or reader.merge(measurement) for reader in readers]
    write = share([reader.write for reader in readers], merges)
    monkeypatch.setattr(Measurement, "_measure", lambda *args: pytest.fail("measured again"))
    monkeypatch.setattr(kernels.host, "read", lambda tensor: pytest.fail("measured again"))
    write(TENSORS[0])
    assert len(given) == 3 and len(set(map(id, given))) == 1
    assert [reader.table.moments[0, 1].item() for reader in readers] == [2.0] * 4
    assert [reader.fallback.calls for reader in readers] == [1, 0, 0, 0]


def test_what_the_kernel_does_not_measure_is_shared_in_python(host):
    readers, given = [Reader(), Reader()], []
    write = share([reader.write for reader in readers], [given.append, given.append])
    write(TENSORS[-1])
    assert len(given) == 2 and given[0] is given[1] and given[0].tensor is TENSORS[-1]


def test_a_row_that_cannot_be_written_takes_no_other_with_it(host):
    readers = [Reader(), Reader(), Reader()]
    given = []
    readers[1].table.state = readers[1].table.state.float()
    write = share([reader.write for reader in readers], [pytest.fail, given.append, pytest.fail])
    write(TENSORS[0])
    assert [reader.table.moments[0, 1].item() for reader in (readers[0], readers[2])] == [2.0, 2.0]
    assert [measurement.moments[1].item() for measurement in given] == [2.0]


def test_errors_of_python_are_passed_on(host):
    def fails(measurement):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        share([Reader(direct=False).write, Reader().write], [fails, print])(TENSORS[0])
    with pytest.raises(ValueError, match="no"):
        measured_for(fails)(TENSORS[0])


def test_writers_that_point_at_one_another_are_collected(host):
    class Owner:
        pass

    def made():
        owner, reader = Owner(), Reader()
        owner.write = share([reader.write, reader.write], [lambda measurement: owner] * 2)
        return weakref.ref(owner)

    known = made()
    gc.collect()
    assert known() is None


@pytest.mark.skipif(kernels.host is numpy_kernel, reason="there is no compiled kernel")
def test_wrong_arguments_are_refused():
    for wrong in ([None], (print,)):
        with pytest.raises(TypeError, match="expected a tuple of writers"):
            kernels.host.SharedWriter(wrong, print)
    with pytest.raises(TypeError, match="expected 2 arguments"):
        kernels.host.SharedWriter((None,))
    with pytest.raises(TypeError, match="expected the tensor"):
        kernels.host.SharedWriter((None,), print)()


class OnDevice:
    """Stands in for a writer on a device."""

    def __init__(self, name, log, takes=True):
        self.name, self.log, self.takes = name, log, takes

    def __call__(self, tensor):
        return self.share(tensor) is not None

    def share(self, tensor):
        self.log.append(f"{self.name} measures")
        return (lambda other: self.log.append(f"{other.name} merges") or other.takes) if self.takes else None


def on_device(log, **takes):
    return [kernels.DeviceWriter(OnDevice(name, log, take), 0, Reader().fallback) for name, take in takes.items()]


def test_rows_on_a_device_are_measured_once():
    log, given = [], []
    python = partial(print)
    writes = [*on_device(log, a=True, b=True), python, python]
    share(writes, [pytest.fail, pytest.fail, given.append, given.append])(TENSORS[0])
    assert log == ["a measures", "b merges"] and len(given) == 2 and given[0] is given[1]
    log.clear()
    share(writes[:1], [pytest.fail])(TENSORS[0])
    assert log == ["a measures"]


def test_what_a_device_does_not_write_is_measured_once_in_python():
    log, given = [], []
    share(on_device(log, a=False, b=False, c=True, d=False), [given.append, given.append, pytest.fail, given.append])(
        TENSORS[0]
    )
    assert log == ["a measures", "b measures", "c measures", "d merges", "d measures"]
    assert len(given) == 3 and len({id(each) for each in given}) == 1
