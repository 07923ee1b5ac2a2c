"""Rows with units in host memory, measured as on a device: C++ launches three kernels through the pointers of a driver in C."""

import functools
import gc
import threading
import weakref

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.accumulators.units import Units
from lightning_hooks.stats.histogram import histogram
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.schema import COUNT, M2, MAX, MEAN, MIN, NONFINITE
from lightning_hooks.stats.table import Table
from lightning_hooks.stats.units import reference as units_reference
from lightning_hooks.stats.units.spec import UnitSpec
from tests.stats._fallback import KeepsAll
from tests.stats.kernels import stand_in
from tests.stats.kernels.frames import frames, idle

pytestmark = pytest.mark.skipif(stand_in.missing() is not None, reason=str(stand_in.missing()))
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
COLUMNS = ["measure_one", "measure_columns", "merge_parts"]
RUNS = ["measure_one", "measure_runs", "merge_parts"]


@pytest.fixture
def device(monkeypatch):
    """The driver that stands in for that of a device."""
    return stand_in.install(monkeypatch)


class Adds(KeepsAll):
    """Keeps tensors, and measures them in Python unless they are to be rejected."""

    def __init__(self, table):
        super().__init__()
        self.table, self.rejects = table, False

    def __call__(self, row, tensor):
        super().__call__(row, tensor)
        if not self.rejects:
            self.table.measuring.add(row, Measurement(tensor))


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).relu().to(dtype)


def with_units(rows, on_request=("units",)):
    """A table whose rows keep units along dimension 1, with their writers and the fallback."""
    kept = [AccumulatorRows(Units(), (*range(rows),), {row: (nn.Identity(), UnitSpec(axis=1)) for row in range(rows)})]
    kept += [AccumulatorRows(Histogram(), (*range(rows),))] if "histogram" in on_request else []
    table = Table(rows, kept)
    table.expect({name: {*range(rows)} for name in on_request})
    table.clear()
    fallback = Adds(table)
    return table, [table.writer(row, fallback, on_request) for row in range(rows)], fallback


def ready(*shapes, dtype=torch.float32, on_request=("units",)):
    """As `with_units`, with a row for each shape, after the tensors that go through Python."""
    table, writes, fallback = with_units(len(shapes), on_request)
    for _ in range(2):  # the fallback takes the first one, which determines the axis; after the second the kernels are loaded
        for write, shape in zip(writes, shapes, strict=True):
            write(torch.ones(shape, dtype=dtype))
    assert len(fallback.came) == len(shapes)
    fallback.came.clear()
    table.clear()
    return table, writes, fallback


def same(table, row, tensors, axis=1):
    """Assert that a row has the moments and the units of tensors."""
    want = reference.measure(torch.cat([tensor.flatten().double() for tensor in tensors]))
    places = [COUNT, MEAN, M2, MIN, MAX, NONFINITE]
    torch.testing.assert_close(table.moments[row][places], want[places], rtol=2e-6, atol=1e-9, equal_nan=True)
    units = functools.reduce(units_reference.merge, [units_reference.measure(tensor, axis) for tensor in tensors])
    torch.testing.assert_close(table.units[row], units, rtol=1e-12, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "kernels"),
    [
        ((40, 6), COLUMNS),
        ((7000, 130), COLUMNS),
        ((4, 1), COLUMNS),
        ((2, 6, 5, 1), COLUMNS),  # short runs
        ((300, 5, 7), COLUMNS),
        ((3, 200, 8), RUNS),
        ((2, 3, 60, 50), RUNS),
        ((1, 1, 9), RUNS),
    ],
    ids=str,
)
def test_a_tensor_takes_three_launches_from_cpp(device, shape, kernels, dtype):
    table, (write,), fallback = ready(shape, dtype=dtype)
    tensors = [normal(*shape, dtype=dtype, seed=seed) for seed in range(2)]
    tensors[1].view(-1)[3:5] = torch.tensor([float("nan"), float("inf")])[: len(tensors[1].view(-1)[3:5])]
    device.from_python.clear()
    before = device.launches
    for tensor in (*tensors, nn.Parameter(tensors[0]), tensors[0][:0]):
        write(tensor)
    assert device.last(9) == kernels * 3 and device.launches - before == 9
    assert device.from_python == [] and fallback.came == [] and fallback.calls == 5
    same(table, 0, [*tensors, tensors[0]])


def test_dense_layouts_are_launched_from_cpp_and_units_of_copies_from_python(device):
    table, (write,), fallback = ready((4, 24, 5, 6))
    dense = [normal(4, 5, 6, 24).permute(0, 3, 1, 2), normal(24, 6, 5, 4).permute(3, 0, 2, 1)]
    gaps = [normal(4, 24, 5, 12)[..., ::2], normal(4, 1, 5, 6).expand(4, 24, 5, 6), normal(2881)[1:].view(4, 24, 5, 6)]
    device.from_python.clear()
    for tensor in dense:
        write(tensor)
    assert device.last(6) == COLUMNS + RUNS and device.from_python == []
    for tensor in gaps:
        write(tensor)
    assert device.from_python == ["measure_runs", "merge_parts"] * 3 and fallback.came == []
    same(table, 0, dense + gaps)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    outer=st.integers(1, 300),
    units=st.integers(1, 300),
    inner=st.sampled_from([1, 1, 2, 3, 7, 8, 49, 1025]),
    programs=st.sampled_from([1, 3, 16, 1024]),
)
def test_cpp_divides_tensors_as_python_does(outer, units, inner, programs):
    from lightning_hooks.stats.kernels import cuda_units, driver

    tensor, found = normal(min(outer, 1 + 60_000 // (units * inner)), units, inner, seed=units), []
    with pytest.MonkeyPatch.context() as patch:
        device = stand_in.install(patch)
        patch.setattr(cuda_units, "_PROGRAMS", programs)
        for through in (True, False):
            patch.setattr(driver, "is_used", through)
            table, (write,), _ = ready(tuple(tensor.shape))
            device.from_python.clear()
            write(tensor)
            assert device.from_python == ([] if through else [device.last(3)[0], "measure_one", "merge_parts"])
            found.append((table.units[0].view(torch.int64), sorted(device.last(3))))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]


def test_other_tensors_go_to_the_fallback(device):
    table, (write,), fallback = ready((4, 6))
    others = [torch.ones(2, 6, dtype=torch.int32), torch.eye(6).to_sparse(), torch.ones(2, 6).as_subclass(Wrapped)]
    fallback.rejects, before = True, device.launches
    for tensor in (*others, torch.ones(2, 7), torch.ones(6), torch.ones(0, 7), torch.tensor(1.0)):
        write(tensor)
    assert len(fallback.came) == 7 and device.launches == before
    fallback.direct = False
    write(torch.ones(2, 6))
    assert len(fallback.came) == 8 and device.launches == before
    fallback.direct, fallback.rejects = True, False
    with pytest.warns(UserWarning, match="it had 6 units along dimension 1, and now has 7"):
        write(torch.ones(2, 7))
    assert table.moments[0, COUNT] == 14 and (table.units[0] == torch.tensor([0, 0, 0, -torch.inf])).all()


class Wrapped(torch.Tensor):
    """A subclass."""


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("failing", [*COLUMNS, "measure_runs"])
def test_moments_and_units_succeed_or_fall_back_together(monkeypatch, failing, through):
    device = stand_in.install(monkeypatch, through=through)
    shape = (4, 6, 20) if failing == "measure_runs" else (4, 6, 3)
    table, (write,), fallback = ready(shape)
    tensors = [normal(*shape, seed=seed) for seed in range(3)]
    write(tensors[0])
    device.failing, fallback.rejects = failing, True
    write(tensors[1])
    device.failing = None
    if failing == "merge_parts":
        # Its moments were accepted, so the units are merged in another way.
        assert fallback.came == []
        same(table, 0, tensors[:2])
    else:
        assert [tensor is tensors[1] for _, tensor in fallback.came] == [True]
        same(table, 0, tensors[:1])
    device.from_python.clear()
    write(tensors[2])
    assert len(device.from_python) == (0 if through else 3)
    same(table, 0, [*tensors[: 2 if failing == "merge_parts" else 1], tensors[2]])


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("failing", [None, *COLUMNS, "count_one"])
def test_a_row_that_also_keeps_a_histogram(monkeypatch, failing, through):
    device = stand_in.install(monkeypatch, through=through)
    table, (write,), fallback = ready((4, 6), on_request=("units", "histogram"))
    tensors = [normal(4, 6, seed=seed) for seed in range(2)]
    write(tensors[0])
    device.failing, fallback.rejects = failing, True
    write(tensors[1])
    device.failing = None
    seen = tensors[:1] if failing in ("measure_one", "measure_columns") else tensors
    assert len(fallback.came) == 2 - len(seen)
    same(table, 0, seen)
    assert torch.equal(table.numbers("histogram", 0), histogram(torch.cat(seen)))


def test_memory_grows_and_belongs_to_one_stream(device, monkeypatch):
    from lightning_hooks.stats.kernels import cuda_units

    monkeypatch.setattr(cuda_units, "_PROGRAMS", 3)
    table, (small, large), fallback = with_units(2)
    for write, units in ((small, 6), (small, 6), (large, 900)):
        write(torch.ones(4, units))
    table.clear()
    tensors = [normal(400, 900, seed=seed) for seed in range(4)]
    of_units = ["measure_columns", "merge_parts"]  # from Python; C++ launches the moments
    for tensor, stream, from_python in zip(tensors, (0, 0, 64, 64), (of_units, [], of_units, []), strict=True):
        device.stream = stream
        device.from_python.clear()
        large(tensor)
        small(tensor[:, :6].contiguous())
        assert device.from_python == from_python
        assert table.moments[1, COUNT] > 0  # merges, so that nothing waits on the stream
    assert len(fallback.came) == 2
    same(table, 1, tensors)
    same(table, 0, [tensor[:, :6] for tensor in tensors])


def test_a_tensor_on_another_stream_than_those_that_wait_goes_to_the_fallback(device):
    table, (write,), fallback = ready((4, 6))
    write(torch.ones(4, 6))
    device.stream, fallback.rejects = 64, True
    write(torch.ones(5, 6))
    assert [len(tensor) for _, tensor in fallback.came] == [5]
    same(table, 0, [torch.ones(4, 6)])


def test_a_thread_without_a_context_goes_through_python(device):
    table, (write,), fallback = ready((4, 6))
    device.from_python.clear()
    device.context = 1
    write(torch.ones(3, 6))
    assert device.from_python == ["measure_columns", "measure_one", "merge_parts"] and fallback.came == []
    device.context = device.own_context
    write(torch.ones(5, 6))
    assert len(device.from_python) == 3
    same(table, 0, [torch.ones(8, 6)])


def test_kernels_that_were_loaded_without_a_context_are_passed_later(device):
    device.context = 0
    table, (write,), _ = ready((4, 6))
    device.context = device.own_context
    for launched in (3, 0):
        device.from_python.clear()
        write(torch.ones(3, 6))
        assert len(device.from_python) == launched
    same(table, 0, [torch.ones(6, 6)])


def test_threads_do_not_overwrite_the_parts_of_others(device):
    shapes = [(40, 6), (70, 40), (5, 9, 30), (6, 5, 3)]
    table, writes, fallback = ready(*shapes)
    tensors = [torch.randint(-9, 9, shape).float() for shape in shapes]  # whose sums are exact in any order

    def many(row):
        for _ in range(200):
            writes[row](tensors[row])

    threads = [threading.Thread(target=many, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fallback.came == []
    for row, tensor in enumerate(tensors):
        one = units_reference.measure(tensor, 1)
        assert torch.equal(table.units[row], one * torch.tensor([200, 200, 1, 200]))


def test_what_a_queue_holds_is_freed(device):
    table, writes, _ = ready((4, 6))
    parts = weakref.ref(table._partial._units._parts)
    del table, writes, _
    gc.collect()
    assert parts() is None


def test_what_is_given_to_the_compiled_part_is_checked(device):
    table, _, fallback = ready((4, 6))
    rows = table._partial
    with pytest.raises(TypeError, match="expected the units of rows and their axes, or neither"):
        rows._native.device_writer(rows.queue, 0, 0, rows, print, fallback, table.units)
    with pytest.raises(ValueError, match="no type has the code 4"):
        rows.queue.set_unit_kernels(4, *[(1, 0, 128)] * 3, (1,) * 5)
    with pytest.raises(ValueError, match="expected sizes of at least 1"):
        rows.queue.set_unit_kernels(0, *[(1, 0, 128)] * 3, (1, 1, 0, 1, 1))


class Net(nn.Module):
    """Layers with short and long runs of units, and without neighbours."""

    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(1, 5, 3), nn.ReLU()
        self.small, self.other = nn.Conv2d(5, 4, 5), nn.Tanh()
        self.head, self.last = nn.Linear(16, 7), nn.Linear(7, 3).bfloat16()

    def forward(self, x):
        return self.last(self.head(self.other(self.small(self.act(self.conv(x)))).flatten(1)).bfloat16())


def fit(steps=4):
    torch.manual_seed(0)
    model, found = Net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    stats = ["mean", "std", "dead_units", "unit_max_over_median", "unit_variation"]
    rule = Watch(
        modules="*", select="leaves", tensors=["input", "output", "output_grad"], stats=stats, units="auto", every_n_steps=1
    )
    with instrument(model, [StatsMonitor([rule])], optimizer=optimizer) as watched:
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(2):
                model(normal(4, 1, 8, 8, seed=2 * step + part)).square().sum().backward()
            optimizer.step()
            found.append(dict(watched.latest))
    return found, [parameter.detach() for parameter in model.parameters()]


def test_a_fit_has_the_numbers_of_the_other_ways(monkeypatch):
    for step in stand_in.numbers_of_the_ways(monkeypatch, fit, "merge_parts"):
        assert any("unit_variation" in tag for tag in step)


def test_a_gradient_with_units_takes_no_frame_of_python_and_an_output_two(monkeypatch):
    device = stand_in.install(monkeypatch)
    x, counts = normal(4, 6).requires_grad_(), {}
    stats = ["mean", "std", "dead_units"]
    rule = Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=stats, units="auto", every_n_steps=1)
    for layers in (2, 9):
        model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers)))
        forward = functools.partial(model, x)
        with instrument(model, [StatsMonitor([rule])]) as watched:
            for _ in range(4):
                model(x).square().sum().backward()
                watched.step()
            device.from_python.clear()
            before, output = device.launches, model(x).square()
            # No loss: one that is found is measured too.
            backward = frames(functools.partial(output.backward, torch.ones_like(output)))
            assert device.last(6 * layers) == COLUMNS * 2 * layers and device.launches - before == 6 * layers
            assert device.from_python == []
            of_forward = frames(forward)
        for module in model:
            module.register_forward_hook(idle)
        counts[layers] = backward, of_forward - frames(forward)
    assert counts[9][0] == counts[2][0]  # so no gradient takes any
    assert counts[9][1] - counts[2][1] == 7 * (2 - 1)  # an idle hook is one
