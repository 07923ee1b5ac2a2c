"""Tables in host memory that measure as on a device: C++ launches kernels through the pointers of a driver, which is in C."""

import ctypes
import functools
import gc
import threading
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.histogram import histogram
from lightning_hooks.stats.kernels import cuda_counts, reference
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.schema import COUNT, M2, MAX, MEAN, MIN, NONFINITE, TRAIL_ENTRY
from lightning_hooks.stats.table import Table
from tests.stats._fallback import KeepsAll
from tests.stats.kernels import stand_in
from tests.stats.kernels.frames import frames, idle

pytestmark = pytest.mark.skipif(stand_in.missing() is not None, reason=str(stand_in.missing()))
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.fixture
def device(monkeypatch):
    """The driver that stands in for that of a device."""
    return stand_in.install(monkeypatch)


class Adds(kernels.FallbackWriter):
    """Measures in Python, and counts."""

    def __init__(self, table):
        self.direct, self.table, self.came = True, table, 0

    def __call__(self, row, tensor):
        self.came += 1
        self.table.measuring.add(row, Measurement(tensor))


def normal(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 1).to(dtype)


def same(got, tensors, factor=1.0):
    want = reference.measure(torch.cat([tensor.flatten().double() for tensor in tensors]) * factor)
    places = [COUNT, MEAN, M2, MIN, MAX, NONFINITE]
    torch.testing.assert_close(got[places], want[places], rtol=2e-6, atol=1e-9, equal_nan=True)


def ready(dtype=torch.float32, rows=2):
    """A table whose kernel for a dtype is loaded, with its writers and its fallback."""
    table = Table(rows)
    fallback = KeepsAll()
    writes = [table.writer(row, fallback) for row in range(rows)]
    writes[0](torch.ones(4, dtype=dtype))  # from Python, which loads the kernel
    table.clear()
    return table, writes, fallback


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_a_hook_is_launched_without_python(device, dtype):
    table, writes, fallback = ready(dtype)
    device.from_python.clear()
    tensors = [normal(*shape, dtype=dtype) for shape in ((), (1,), (7, 5), (70_000,), (3, 4, 5))]
    tensors += [tensors[2].t(), nn.Parameter(tensors[3]), tensors[0][None].expand(1, 1), torch.ones(0, dtype=dtype)]
    for tensor in tensors:
        writes[1](tensor)
    assert device.from_python == [] and fallback.came == [] and fallback.calls == 10
    same(table.moments[1], tensors)
    assert device.from_python == ["merge_rows"] and table.moments[0, COUNT] == 0


@pytest.mark.parametrize("size", [1, 4096, 4097, 1024 * 4096, 1024 * 4096 + 1, 3 * 1024 * 4096 + 5])
def test_a_tensor_is_divided_as_from_python(device, size):
    tensor = normal(size)
    found = []
    for through in (True, False):
        table, writes, _ = ready()
        table._partial.queue.drop(9)
        (writes[0] if through else table._partial.writer(0))(tensor)
        spans = np.frombuffer(table._partial.queue.spans(), dtype=np.int64).reshape(-1, 4)
        found.append((spans.tolist(), table.moments[0].tolist()))
    assert found[0] == found[1] and found[0][0][0][3] <= 1024


@pytest.mark.parametrize(
    ("blocks", "programs"),
    [(1, 1), (4, 4), (5, 3), (8, 4), (9, 3), (32, 4), (33, 7), (40, 8), (64, 8), (65, 8), (128, 8), (129, 9), (1000, 63)],
)
def test_half_of_the_programs_measure_up_to_eight_blocks_each(device, monkeypatch, blocks, programs):
    from lightning_hooks.stats.kernels import cuda, on_cuda

    monkeypatch.setattr(cuda, "_PROGRAMS", 8)
    assert cuda._spans(blocks * 4096)[1] == cuda._spans(blocks * 4096 - 4095)[1] == programs
    table, writes, _ = ready()
    table._partial.queue.drop(9)
    tensor = torch.ones(blocks * 4096 - 7)
    writes[0](tensor)
    assert np.frombuffer(table._partial.queue.spans(), dtype=np.int64)[3] == programs
    launched = []
    monkeypatch.setattr(cuda, "_launch", lambda kernel, programs, *_, **constants: launched.append(programs))
    on_cuda.measure_many_into(table.state, [0], [tensor])
    assert launched == [programs, 1]  # the second launch merges


def test_tensors_that_need_a_copy_are_launched_from_python(device):
    table, writes, fallback = ready()
    grid = normal(40, 30)
    odd = [grid[:, ::2], grid[:, :1].expand(-1, 9), grid.flatten()[1:], torch.complex(grid, grid).conj().imag]
    device.from_python.clear()
    for tensor in odd:
        writes[0](tensor)
    assert device.from_python == ["measure_one"] * 4 and fallback.came == []
    same(table.moments[0], odd)


class Wrapped(torch.Tensor):
    """A subclass."""


def test_other_tensors_go_to_the_fallback(device):
    table, writes, fallback = ready()
    other = [torch.arange(3), torch.eye(3).to_sparse(), torch._efficientzerotensor(5), torch.ones(3).as_subclass(Wrapped)]
    other += [torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.float8_e4m3fn), torch.ones(3, device="meta")]
    for tensor in other:
        writes[0](tensor)
    assert len(fallback.came) == len(other)
    before = device.launches
    torch.func.vmap(lambda x: (writes[0](x), x)[1])(torch.ones(2, 3))
    assert len(fallback.came) == len(other) + 1 and device.launches == before and fallback.calls == 1
    fallback.direct = False
    writes[0](torch.ones(3))
    assert len(fallback.came) == len(other) + 2 and table.moments[0, COUNT] == 0


def test_a_thread_without_a_context_goes_through_python(device):
    table, writes, fallback = ready()
    device.from_python.clear()
    device.context = 1
    writes[0](torch.ones(3))
    assert device.from_python == ["measure_one"] and fallback.came == []
    device.context = device.own_context
    writes[0](torch.ones(5))
    assert device.from_python == ["measure_one"] and table.moments[0, COUNT] == 8


def test_a_kernel_that_was_loaded_without_a_context_is_passed_later(device):
    device.context = 0
    table, writes, _ = ready()
    device.context = device.own_context
    device.from_python.clear()
    writes[0](torch.ones(3))
    writes[0](torch.ones(5))
    assert device.from_python == ["measure_one"] and table.moments[0, COUNT] == 8


def test_an_error_of_the_driver_loses_no_tensor(device):
    table, writes, fallback = ready()
    device.status = 700
    writes[0](torch.ones(3))  # C++, then Python, then the fallback
    assert [tensor.numel() for _, tensor in fallback.came] == [3] and fallback.calls == 1
    device.status = 0
    writes[0](torch.ones(5))
    assert table.moments[0, COUNT] == 5 and len(fallback.came) == 1


def test_a_tensor_on_another_stream_than_those_that_wait_goes_to_the_fallback(device):
    table, writes, fallback = ready()
    writes[0](torch.ones(3))
    device.stream = 64
    writes[0](torch.ones(5))
    assert [tensor.numel() for _, tensor in fallback.came] == [5]
    assert table.moments[0, COUNT] == 3
    writes[1](torch.ones(7))  # nothing waits
    assert len(fallback.came) == 1 and table.moments[1, COUNT] == 7


def test_partial_rows_are_merged_when_there_is_no_room(device, monkeypatch):
    from lightning_hooks.stats.kernels import cuda

    monkeypatch.setattr(cuda, "_CAPACITY", 6)
    table, writes, fallback = ready()
    device.from_python.clear()
    parts = [normal(4096 * count, seed=count) for count in (2, 3, 2, 6, 1)]
    for part in parts:
        writes[0](part)
    assert device.from_python.count("merge_rows") == 3 and fallback.came == []
    writes[0](normal(7 * 4096))
    assert len(fallback.came) == 1
    same(table.moments[0], parts)


def test_threads_launch_at_once(device):
    table, writes, fallback = ready(rows=4)
    tensors = [normal(50, seed=row) for row in range(4)]

    def many(row):
        for _ in range(300):
            writes[row](tensors[row])

    threads = [threading.Thread(target=many, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fallback.calls == 1201
    for row in range(4):
        same(table.moments[row], [tensors[row]] * 300)


def counting(dtype=torch.float32):
    """A table with a histogram whose kernels for a dtype are loaded, with the writer of its row and its fallback."""
    table, fallback = Table(2, [AccumulatorRows(Histogram(), (1,))]), KeepsAll()
    write = table.writer(1, fallback)
    write(torch.ones(4, dtype=dtype))  # from Python, which loads the kernels
    table.clear()
    return table, write, fallback


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_that_is_counted_is_launched_twice_from_cpp(device, dtype):
    table, write, fallback = counting(dtype)
    tensors = [normal(*shape, dtype=dtype) for shape in ((), (7, 5), (70_000,))]
    device.from_python.clear()
    before = device.launches
    for tensor in (*tensors, torch.ones(0, dtype=dtype)):
        write(tensor)
    assert device.from_python == [] and device.launches - before == 6 and fallback.came == []
    write(tensors[2][::2])
    assert device.from_python == ["count_one"]  # of a copy
    everything = torch.cat([*(tensor.flatten() for tensor in tensors), tensors[2][::2]])
    same(table.moments[1], [everything])
    assert torch.equal(table.numbers("histogram", 1), histogram(everything))


def test_nothing_of_a_tensor_is_merged_if_it_cannot_be_counted(device, monkeypatch):
    table, write, fallback = counting()
    # The driver launches no kernel with so many threads; the moments were launched before.
    table._partial.queue.set_counter(0, 1, 0, 129)
    monkeypatch.setattr(cuda_counts, "find", lambda *_: None)
    write(torch.ones(8))
    assert [tensor.numel() for _, tensor in fallback.came] == [8]
    assert table.moments[1, COUNT] == 0 and not table.numbers("histogram", 1).any()


def test_the_order_of_calls_is_noted(device):
    table, writes, fallback = ready()
    fallback.trail = kernels.Trail(10, np.array([10, 11], np.int32).tobytes())
    for row in (1, 0, 1):
        writes[row](torch.ones(3))
    entries = np.frombuffer(fallback.trail.entries(0), TRAIL_ENTRY)
    assert entries["row"].tolist() == [11, 10, 11] and fallback.trail.bad == 0
    assert all(np.isnan(entries[name]).all() for name in ("minimum", "maximum", "nonfinite", "abs_min"))


def test_an_interruption_in_python_is_not_ignored(device, monkeypatch):
    table, writes, _ = ready()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(table._partial, "_reserve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writes[0](torch.ones(8)[1:])


@pytest.mark.parametrize("pairs", [False, True])
def test_lists_have_the_tables_that_python_makes(device, monkeypatch, pairs):
    from lightning_hooks.stats.kernels import cuda, driver, on_cuda

    tensors = [normal(n, dtype=dtype, seed=n) for n in (0, 1, 999, 4096, 3 * 4096 + 5) for dtype in DTYPES]
    tensors += [normal(9, 7).t(), torch.arange(5), normal(40)[::2]]
    before = [tensor / 2 for tensor in tensors] if pairs else None
    launched = []

    def noting(kernel, programs, out, table, *integers, **constants):
        many = integers[0] if kernel.fn.__name__ == "measure_list" else None
        size = 4 * many + programs if many is not None else 3 * integers[0] + 1 + 2 * integers[1]
        launched.append((kernel.fn.__name__, programs, list((ctypes.c_int64 * size).from_address(table)), constants))
        launch(kernel, programs, out, table, *integers, **constants)

    launch = cuda._launch
    monkeypatch.setattr(cuda, "_launch", noting)
    found = []
    for is_used in (True, False):
        monkeypatch.setattr(driver, "is_used", is_used)
        launched.clear()
        out = torch.full((len(tensors), 9), -1.0, dtype=torch.float64)
        places = torch.arange(len(tensors)).flip(0).mul(9).tolist()
        # Python also takes the tensor with gaps, in a list of its own, so compare the lists without it.
        most = len(tensors) - 2
        left = on_cuda.measure_many_into(out, places[:most], tensors[:most], before and before[:most])
        left += on_cuda.measure_many_into(out, places[most:], tensors[most:], before and before[most:])
        found.append(([each for each in launched], left, out))
    assert found[0][0][:5] == found[1][0][:5] and len(found[0][0]) == len(found[1][0]) == 7
    assert found[0][1] == found[1][1] == [0] and torch.equal(found[0][2], found[1][2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pairs_are_compared_as_in_host_memory(device, dtype):
    news = [normal(n, dtype=dtype, seed=n) for n in (0, 1, 999, 4096, 70_000)] + [normal(9, 7, dtype=dtype).t()]
    olds = [normal(n, dtype=dtype, seed=n + 1) for n in (0, 1, 999, 4096, 70_000)] + [normal(9, 7, dtype=dtype, seed=1).t()]
    other = torch.float64 if dtype is torch.float32 else torch.float32
    wrong = [(torch.arange(3),) * 2, (news[2], news[3]), (news[2], news[2].to(other)), (news[5], news[5].t())]
    news, olds = news + [new for new, _ in wrong], olds + [old for _, old in wrong]
    firsts = 2 + 3 * np.arange(len(news))[::-1]
    found = []
    for compare in (kernels.compare_many, kernels.host.compare_many):
        state = torch.full((3 * len(news) + 2,), -7.0, dtype=torch.float64)
        found.append((state, compare(state, firsts, news, olds)))
    assert found[0][1] == found[1][1] == [6, 7, 8, 9]
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-12)
    assert device.from_python == ["compare_list", "merge_products"]


def test_tables_are_copied_once(device, monkeypatch):
    from lightning_hooks.stats.kernels import kept_tables

    copies = []
    to_device = kept_tables.to_device
    monkeypatch.setattr(kept_tables, "to_device", lambda *args: copies.append(1) or to_device(*args))
    table, writes, _ = ready()
    tensors = [normal(30, seed=seed) for seed in range(3)]

    def step(tensors):
        table.clear()
        for write in writes:
            write(tensors[0])
        assert table.measure_all([0], tensors[:1]) == []
        return table.moments[0].tolist()

    first = step(tensors)
    assert len(copies) == 3 and step(tensors) == first and len(copies) == 3
    assert step(tensors[1:]) != first and len(copies) == 4  # another address
    device.stream = 64
    step(tensors)
    assert len(copies) == 7


def test_what_a_queue_holds_is_freed(device):
    table, writes, _ = ready()
    queue = weakref.ref(table._partial)
    del table, writes
    gc.collect()
    assert queue() is None


def test_a_driver_is_compared_with_triton_before_its_first_use(monkeypatch):
    from lightning_hooks.stats.kernels import driver, on_cuda

    tried = on_cuda.driver_of.__wrapped__
    device = stand_in.install(monkeypatch)

    @contextmanager
    def on_stream(stream):
        before, device.stream = device.stream, stream.cuda_stream
        yield
        device.stream = before

    functions = {
        "device": lambda index: nullcontext(),
        "stream": on_stream,
        "Stream": lambda index: SimpleNamespace(cuda_stream=64),
        "current_stream": lambda index: SimpleNamespace(cuda_stream=device.stream),
        "get_sync_debug_mode": lambda: 0,
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(driver, "cuda_driver", lambda: device.driver)
    assert tried("cpu") is device.driver
    silent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)(lambda *_: 0)
    of_silent = ctypes.cast(silent, ctypes.c_void_p).value
    monkeypatch.setattr(driver, "cuda_driver", lambda: device.driver._replace(stream=of_silent))
    assert tried("cpu") is None  # another stream
    measures_nothing = stand_in.StandIn("nothing")  # its function is freed with the object
    monkeypatch.setattr(driver, "cuda_driver", lambda: device.driver._replace(launch=measures_nothing.driver.launch))
    assert tried("cpu") is None  # other numbers
    device.context = 0
    assert tried("cpu") is None  # nothing is launched


ACTIONS = st.one_of(
    st.tuples(st.just("hook"), st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("hook"), st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.sampled_from(["write", "data"]), st.integers(0, 5)),
    st.tuples(st.just("list"), st.lists(st.integers(0, 5), min_size=2, max_size=2)),
    st.tuples(st.just("stream"), st.sampled_from([0, 64])),
    st.tuples(st.just("status"), st.sampled_from([0, 0, 1])),
    st.tuples(st.just("context"), st.sampled_from([7, 7, 8])),
    st.tuples(st.sampled_from(["clear", "rescale", "read"])),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTIONS, max_size=25))
def test_every_sequence_gives_the_moments_at_the_time_of_the_hook(actions):
    with pytest.MonkeyPatch.context() as patch:
        device = stand_in.install(patch)
        tables = [Table(4), Table(4)]
        fallbacks = [Adds(table) for table in tables]
        writes = [table.writer(row, fallback) for table, fallback in zip(tables, fallbacks, strict=True) for row in (0, 1)]
        pool = [normal(size, dtype=DTYPES[size % 4], seed=size) for size in (1, 5, 9000, 64, 4099, 3)]
        pool[3] = pool[3].view(8, 8)[:, ::2]
        seen = [[] for _ in range(8)]

        def check():
            for row, tensors in enumerate(seen):
                moments = tables[row // 4].moments[row % 4]
                assert moments[COUNT] == sum(tensor.numel() for tensor in tensors)
                if tensors:
                    same(moments, tensors)

        for action, *details in actions:
            match action, details:
                case "hook", [which, row]:
                    writes[row](pool[which])
                    seen[(0, 1, 4, 5)[row]].append(pool[which].double().clone())
                case "write", [which]:
                    pool[which].mul_(2)
                case "data", [which]:
                    pool[which].data.add_(1)
                case "list", [[one, other]]:
                    if device.status == 0:
                        assert tables[0].measure_all([2, 3], [pool[one], pool[other]]) == []
                        seen[2:4] = [pool[one].double().clone()], [pool[other].double().clone()]
                case "stream" | "status" | "context", [value]:
                    setattr(device, action, value)
                case "clear", []:
                    tables[0].clear()
                    seen[:4] = [[] for _ in range(4)]
                case _:
                    device.status = 0
                    if action == "rescale":
                        tables[1].rescale([0, 1], torch.tensor(0.5))
                        seen[4:6] = [[tensor / 2 for tensor in tensors] for tensors in seen[4:6]]
                    check()
        device.status = 0
        check()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.act = nn.Linear(6, 50), nn.LayerNorm(50), nn.ReLU(inplace=True)
        self.two, self.last = nn.Linear(50, 3), nn.Linear(3, 3).bfloat16()

    def forward(self, x):
        return self.last(self.two(self.act(self.norm(self.one(x)))).bfloat16())


STATS = ["mean", "std", "norm", "min", "max", "zero_fraction", "nonfinite"]
RULES = [
    Watch(modules="*", tensors=["input", "output", "output_grad"], stats=STATS),
    Watch(params="*", tensors=["param", "grad", "update"], stats=STATS),
]


def fit(steps=4):
    torch.manual_seed(0)
    model, found = Net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with instrument(model, [StatsMonitor(RULES)], optimizer=optimizer) as watched:
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(2):
                model(normal(4, 6, seed=2 * step + part)).square().sum().backward()
            optimizer.step()
            found.append(dict(watched.latest))
    return found, [parameter.detach() for parameter in model.parameters()]


def test_parameters_and_gradients_are_measured_in_one_launch_for_each_dtype(device):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    rule = Watch(params="*", tensors=["param", "grad", "state.exp_avg", "state.exp_avg_sq"], stats=["norm", "max"])
    with instrument(model, [StatsMonitor([rule])], optimizer=optimizer) as watched:
        for step in range(3):
            device.from_python.clear()
            optimizer.zero_grad()
            # The first step has no gradients of the other layers.
            loss = model(normal(4, 6, seed=step)).square().sum() if step else model.one(normal(4, 6)).sum()
            loss.backward()
            found = {name: (p.detach().clone(), p.grad) for name, p in model.named_parameters()}
            optimizer.step()
            values = watched.latest
            assert values["run/loss"] == loss.item()
            for name, (parameter, gradient) in found.items():
                assert values[f"param_norm/{name}"] == pytest.approx(parameter.double().norm().item(), rel=1e-6)
                assert (f"grad_max/{name}" in values) == (gradient is not None)
                if gradient is not None:
                    assert values[f"grad_max/{name}"] == gradient.max().item()
    # The loss is launched without Python, and merged.
    assert device.from_python == ["measure_list", "measure_list", "merge_rows"] * 2 + ["merge_rows"]


def test_a_fit_has_the_numbers_of_the_other_ways(monkeypatch):
    stand_in.numbers_of_the_ways(monkeypatch, fit, "measure_one")


@pytest.mark.parametrize("through", [True, False])
def test_nothing_is_launched_while_a_graph_is_captured(monkeypatch, through):
    device = stand_in.install(monkeypatch, through=through)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [
        Watch(modules="*", tensors=["output", "output_grad"], stats=["mean", "std", "dead_units"]),
        Watch(params="*", tensors=["param", "grad", "update"], stats=["std", "cosine"]),
    ]

    def train(part):
        loss = model[part](normal(4, 6)).square().sum()
        loss.backward()
        return loss

    views = []
    with instrument(model, [StatsMonitor(rules)], optimizer=optimizer) as watched:
        for step in range(5):
            whole = slice(0, 3)
            if step == 3:
                device.capturing, launched = 1, device.launches
                with pytest.warns(UserWarning, match="nothing is measured while a CUDA graph is captured") as told:
                    watched.note_loss(train(whole))
                    optimizer.step()
                device.capturing = 0
                assert len(told) == 1 and device.launches == launched
            watched.note_loss(train(whole))
            optimizer.step()
            views.append(dict(watched.latest))
    assert [view.keys() == views[1].keys() for view in views[2:]] == [True] * 3


@pytest.mark.parametrize("late", [False, True])
def test_a_gradient_takes_no_frame_of_python_and_an_output_two(monkeypatch, late):
    device = stand_in.install(monkeypatch, late=(late, late))
    x, counts = normal(4, 6).requires_grad_(), {}
    rule = Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=["mean", "std"])
    for layers in (2, 9):
        model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers)))
        forward = functools.partial(model, x)
        with instrument(model, [StatsMonitor([rule])]) as watched:
            for _ in range(4):
                model(x).square().sum().backward()
                watched.step()
            before, output = device.launches, model(x).square()
            # No loss: one that is found is measured too.
            backward = frames(functools.partial(output.backward, torch.ones_like(output)))
            assert device.launches - before == ({2: 1, 9: 3}[layers] if late else 2 * layers)
            of_forward = frames(forward)
        for module in model:
            module.register_forward_hook(idle)
        counts[layers] = backward, of_forward - frames(forward)
    assert counts[9][0] == counts[2][0]  # so no gradient takes any
    assert counts[9][1] - counts[2][1] == 7 * (2 - 1)  # an idle hook is one


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_tensor_in_a_compiled_module_takes_two_frames(monkeypatch):
    device = stand_in.install(monkeypatch, "nothing")
    rule = Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=["mean", "std"])
    x, counts = normal(4, 6).requires_grad_(), {}
    for layers in (2, 5):
        model = torch.compile(nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers))), backend="aot_eager", fullgraph=True)
        with instrument(model, [StatsMonitor([rule])]) as watched:
            for _ in range(2):
                model(x).square().sum().backward()
                watched.step()
            before, output = device.launches, model(x).square()
            backward = frames(functools.partial(output.backward, torch.ones_like(output)), "lightning_hooks/hooks")
            assert device.launches - before == 2 * layers
            counts[layers] = frames(functools.partial(model, x), "lightning_hooks/hooks"), backward
        torch._dynamo.reset()
    # An operation of torch in Python, and what it calls. Beside them torch has one frame.
    assert [many - few for few, many in zip(counts[2], counts[5], strict=True)] == [3 * 2, 3 * 2]
