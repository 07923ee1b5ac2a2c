"""Launches from C++ on a device: the bits of Triton's own launches, on every thread and stream, and nothing waits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.moments import neutral
from lightning_hooks.stats.schema import COUNT, MAX, MEAN, MIN
from lightning_hooks.stats.table import Table
from tests.stats._fallback import KeepsAll
from tests.stats.kernels import stand_in

pytestmark = pytest.mark.cuda
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.fixture(autouse=True)
def on_a_device(device: str) -> None:
    if device == "cpu":
        pytest.skip("through a driver in C: tests/stats/kernels/test_device_rows.py")
    missing = stand_in.missing()
    if missing is not None and "compiler" not in missing:
        pytest.skip(missing)


@pytest.fixture
def from_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts the launches of hooks from Python, by dtype."""
    from lightning_hooks.stats.kernels.queued_rows import QueuedRows

    counts: Counter[str] = Counter()
    reserve = QueuedRows._reserve

    def counted(self: Any, programs: int, stream: int) -> int:
        counts["all"] += 1
        return reserve(self, programs, stream)

    monkeypatch.setattr(QueuedRows, "_reserve", counted)
    yield counts


def ready(rows: int = 2) -> tuple[Table, list[Callable[[Tensor], None]], KeepsAll]:
    """A table whose kernels are loaded, with its writers and its fallback."""
    table, fallback = Table(rows, device="cuda"), KeepsAll()
    writes = [table.writer(row, fallback) for row in range(rows)]
    for dtype in DTYPES:
        writes[0](torch.ones(4, dtype=dtype, device="cuda"))  # from Python, which loads the kernel
    table.clear()
    return table, writes, fallback


def bits(tensor: Tensor) -> list[Any]:
    return list(tensor.view(torch.int64).tolist())


def test_the_driver_launches_the_kernels_of_hooks() -> None:
    from lightning_hooks.stats.kernels.on_cuda import driver_of

    assert driver_of(torch.cuda.current_device()) is not None
    assert type(Table(1, device="cuda").writer(0, KeepsAll())).__name__ == "DeviceWriter"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_has_the_bits_of_the_launch_of_triton(dtype: torch.dtype, from_python: Counter[str]) -> None:
    table, writes, fallback = ready()
    from_python.clear()
    for size in (1, 2, 7, 1023, 4096, 4097, 100_000, 1024 * 4096, 1024 * 4096 + 1, 3 * 1024 * 4096 + 5, 70_000_001):
        tensor = torch.randn(size, device="cuda").to(dtype) * 3 + 1
        if size > 5000:
            tensor[17], tensor[4099] = torch.nan, torch.inf
        writes[0](tensor)
        assert from_python["all"] == 0
        assert table._partial.writer(9)(tensor)
        direct, in_python = table.moments
        assert direct[COUNT] == size and bits(direct) == bits(in_python), size
        from_python.clear()
        table.clear()
    assert fallback.came == []


def test_a_tensor_is_read_before_it_is_overwritten() -> None:
    table, writes, _ = ready()
    big = torch.empty(60_000_000, device="cuda")
    for value in range(1, 30):
        table.clear()
        big.fill_(value)
        writes[0](big)
        big.fill_(-1)
        small = torch.full((7,), float(value), device="cuda")
        writes[1](small)
        del small
        torch.zeros(7, device="cuda")  # in the memory that was freed
        assert table.moments[:, [MIN, MAX]].tolist() == [[value] * 2] * 2
        assert table.moments[:, MEAN].tolist() == pytest.approx([value] * 2, rel=1e-12)


def test_hooks_and_lists_wait_for_nothing(
    without_waiting: Callable[[], AbstractContextManager[None]], from_python: Counter[str]
) -> None:
    table, writes, fallback = ready(6)
    tensors = [torch.randn(n, device="cuda").to(dtype) for n in (9, 99_999) for dtype in DTYPES]
    before = [tensor / 2 for tensor in tensors]

    def step() -> list[int]:
        table.clear()
        for _ in range(3):
            for tensor in tensors:
                writes[0](tensor)
                writes[1](tensor)
        left = table.measure_all([2, 3], tensors[:2]) + table.measure_all([4, 5], tensors[:2], before[:2])
        table.exchange()
        return left

    step()
    from_python.clear()
    with without_waiting():
        for _ in range(20):
            assert step() == []
    assert fallback.came == [] and from_python["all"] == 0
    assert table.moments[0, COUNT] == 3 * sum(tensor.numel() for tensor in tensors)


@pytest.mark.parametrize("pairs", [False, True])
def test_lists_have_the_bits_of_those_that_python_makes(monkeypatch: pytest.MonkeyPatch, pairs: bool) -> None:
    from lightning_hooks.stats.kernels import driver, on_cuda

    sizes = (0, 1, 5, 4096, 4097, 99_999, 2_000_003)
    tensors = [torch.randn(n, device="cuda").to(dtype) for n in sizes for dtype in DTYPES]
    tensors.append(torch.randn(30, 40, device="cuda").t())
    before = [tensor / 3 for tensor in tensors] if pairs else None
    found = []
    for is_used in (True, False, True):
        monkeypatch.setattr(driver, "is_used", is_used)
        out = neutral(len(tensors), "cuda")
        assert on_cuda.measure_many_into(out, range(0, out.numel(), 9), tensors, before) == []
        found.append(out)
    assert bits(found[0]) == bits(found[1]) == bits(found[2])


def test_the_threads_of_autograd_launch_without_python(from_python: Counter[str]) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6))).cuda()
    threads: set[int] = set()

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda grad: threads.add(threading.get_ident()))

    model[0].register_forward_hook(hook)
    rule = Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=["mean", "std"])
    x = torch.randn(8, 64, device="cuda")
    with instrument(model, [StatsMonitor([rule])]) as watched:
        for step in range(5):
            if step == 3:
                from_python.clear()
            model(x).square().sum().backward()
            watched.step()
        assert from_python["all"] == 0 and threads - {threading.get_ident()}
        assert watched.latest["output_grad_std/0.0"] > 0


def test_a_fit_on_a_stream_of_its_own(from_python: Counter[str]) -> None:
    table, writes, fallback = ready()
    from_python.clear()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tensor = torch.randn(500_000, device="cuda") + 2
        writes[0](tensor)
        tensor.zero_()
        found = table.moments[0].tolist()
    assert fallback.came == [] and from_python["all"] == 0 and found[COUNT] == 500_000 and 1.9 < found[MEAN] < 2.1
    with torch.cuda.stream(stream):
        writes[0](torch.ones(3, device="cuda"))
    other = torch.ones(5, device="cuda")
    writes[0](other)  # to the fallback, because others wait on another stream
    assert [given is other for _, given in fallback.came] == [True]
    torch.cuda.current_stream().wait_stream(stream)
    assert table.moments[0, COUNT] == 500_003


def test_an_error_of_the_driver_goes_through_python(from_python: Counter[str]) -> None:
    from lightning_hooks.stats.kernels import triton_code
    from lightning_hooks.stats.kernels.addresses import CODES
    from lightning_hooks.stats.kernels.launching import handle

    table, writes, fallback = ready()
    partial = table._partial
    device = torch.cuda.current_device()
    loaded = handle(triton_code.measure_one, device, **partial._constants(torch.float32))
    assert loaded is not None
    partial.queue.set_kernel(CODES[torch.float32], loaded.function, loaded.shared, 1 << 20)  # more threads than there are
    from_python.clear()
    tensor = torch.randn(5000, device="cuda")
    writes[0](tensor)
    assert from_python["all"] == 1 and fallback.came == []
    torch.testing.assert_close(table.moments[0].cpu(), reference.measure(tensor.cpu()), rtol=2e-6, atol=1e-6)


def test_nothing_is_launched_into_a_graph_that_is_captured() -> None:
    table, _, _ = ready()
    static, graph = torch.zeros(100, device="cuda"), torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        launched = table._partial.launch(0, static)
        static += 1
    graph.replay()
    assert not launched and static.tolist() == [1.0] * 100 and table.moments[0, COUNT] == 0


def test_a_full_queue_of_the_device_stops_no_other_thread() -> None:
    table, writes, fallback = ready()
    tensor, ticks, is_done = torch.randn(200_000_000, device="cuda"), 0, threading.Event()

    def launch() -> None:
        for _ in range(3000):  # more than a device queues
            writes[0](tensor)
        is_done.set()

    thread = threading.Thread(target=launch)
    thread.start()
    while not is_done.wait(0.001):
        ticks += 1
    thread.join()
    assert fallback.came == [] and ticks > 5
    assert table.moments[0, COUNT] == 3000 * tensor.numel()
