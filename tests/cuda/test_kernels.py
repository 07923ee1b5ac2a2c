"""The numbers of the Triton kernels on a device, and of the tensors that they do not measure; nothing waits."""

import importlib.util

import numpy as np
import pytest
import torch

from lightning_hooks.stats import host_copy, kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.histogram import histogram
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import merge, neutral
from lightning_hooks.stats.table import Table
from tests.stats._fallback import KeepsAll

pytestmark = pytest.mark.cuda
CHECKS = (
    "sizes",
    "counted",
    "counted_at_random",
    "counted_in_lists",
    "counted_in_a_table",
    "several_blocks_each",
    "magnitudes",
    "without_magnitudes",
    "offsets",
    "odd",
    "units",
    "units_in_parts",
    "units_that_are_not_finite",
    "units_of_a_table",
    "views",
    "differences",
    "fuzz",
    "lists",
    "comparisons",
    "partial_rows",
    "places",
)


def test_triton_serves(device):
    if device == "cuda":
        assert kernels.in_use_on_cuda().startswith("triton"), kernels.in_use_on_cuda()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("check", CHECKS)
def test_numbers(device, check, monkeypatch):
    if device == "cpu":
        pytest.skip("in the interpreter: tests/stats/kernels/test_triton.py")
    if check == "counted_at_random":
        pytest.importorskip("hypothesis")
    from lightning_hooks.stats.kernels import cuda, cuda_units
    from tests.stats.kernels import count_checks, triton_checks

    monkeypatch.setattr(triton_checks, "DEVICE", device)
    for module, name in ((cuda, "_PROGRAMS"), (cuda, "_CAPACITY"), (cuda_units, "_PROGRAMS")):  # some checks change them
        monkeypatch.setattr(module, name, getattr(module, name))
    with np.errstate(all="ignore"):
        (triton_checks.CHECKS | count_checks.CHECKS)[check]()


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
OTHERS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)


def kinds(dtype, device):
    """Tensors of a dtype in every layout, made on the CPU, on the device."""
    values = torch.randn(40, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    base = (
        values.to(torch.complex64) * (1 + 2j) if dtype.is_complex else (values > 0 if dtype is torch.bool else values.to(dtype))
    )
    made = {
        "dense": base,
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "empty": base[:0],
        "one": base[3, 4],
        "row": base[5, 1:],
    }
    if dtype in DTYPES:
        made["expanded"] = base[:, :1].expand(-1, 9)
        made["sparse"] = (base * (values > 2)).to_sparse()
        made["csr"] = (base * (values > 2)).to_sparse_csr() if dtype in (torch.float32, torch.float64) else base
    return {name: (tensor, tensor.to(device)) for name, tensor in made.items()}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("dtype", [*DTYPES, *OTHERS], ids=str)
def test_every_kind_of_tensor_has_the_numbers_of_the_cpu(device, dtype):
    for name, (here, there) in kinds(dtype, device).items():
        want, got = Measurement(here), Measurement(there)
        assert got.moments.device.type == device
        torch.testing.assert_close(got.moments.cpu(), want.moments, rtol=2e-6, atol=1e-6, msg=f"{name}: {got.moments.tolist()}")
        if dtype in DTYPES:
            assert torch.equal(got.histogram.cpu(), want.histogram), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_huge_tensor(device, dtype):
    size = 300_000_001 if device == "cuda" and dtype in (torch.bfloat16, torch.float32) else 3_000_001
    tensor = torch.ones(size, dtype=dtype, device=device)
    tensor[::2] = 3
    tensor[-1] = -7
    count, mean, m2, abs_sum, low, high, zeros, nonfinite, underflow = kernels.measure(tensor).tolist()
    odd = size // 2
    total = odd + 3 * odd - 7.0  # elements 0, 2, … are 3 but for the last one
    assert (count, low, high, zeros, nonfinite, underflow) == (size, -7, 3, 0, 0, 0)
    assert mean == pytest.approx(total / size, rel=1e-6) and abs_sum == pytest.approx(total + 14, rel=1e-6)
    assert m2 == pytest.approx(odd + 9.0 * odd + 49 - size * (total / size) ** 2, rel=3e-6)


def test_a_tensor_of_more_than_two_to_the_31_elements(device):
    if device == "cpu":
        pytest.skip("needs gigabytes")
    tensor = torch.zeros((1 << 31) + 9, dtype=torch.float16, device=device)
    tensor[-1] = 5
    found = kernels.measure(tensor).tolist()
    assert found[0] == (1 << 31) + 9 and found[3:7] == [5, 0, 5, (1 << 31) + 8]


def test_hooks_lists_and_copies_wait_for_nothing(device, without_waiting):
    tensors = [torch.randn(n, device=device).to(t) for n in (0, 5, 9_999) for t in (torch.float32, torch.bfloat16)]
    tensors.append(torch.randn(30, 40, device=device).t())
    before = [tensor / 2 for tensor in tensors]
    table = Table(3 * len(tensors), [AccumulatorRows(Histogram(), (0,))], device=device)
    fallback = KeepsAll()
    count = len(tensors)
    writes = [table.writer(2 * count + row, fallback) for row in range(count)]
    offsets = table.offsets(range(1, count))

    def step():
        table.clear()
        for write, tensor in zip(writes, tensors, strict=True):
            write(tensor)
        left = table.measure_all(offsets, tensors[1:])
        left += table.measure_all(range(count, 2 * count), tensors, before)
        table.measuring.put(0, Measurement(tensors[2]))
        return left, table.exchange()

    step()  # compiles
    with without_waiting():
        left, pending = step()
        table.clear()
        many = kernels.measure_many(tensors)
    assert left == [] and fallback.came == []
    moments = torch.from_numpy(table.sections.moments_of(pending.merged.state).copy())
    torch.testing.assert_close(
        many.cpu(), torch.stack([reference.measure(each.cpu()) for each in tensors]), rtol=2e-6, atol=1e-6
    )
    torch.testing.assert_close(moments[1:count], many.cpu()[1:], rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(moments[2 * count :], many.cpu(), rtol=2e-6, atol=1e-6)
    less = [reference.measure(tensor.cpu().float() - other.cpu()) for tensor, other in zip(tensors, before, strict=True)]
    torch.testing.assert_close(moments[count : 2 * count], torch.stack(less), rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(moments[0], many.cpu()[2], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("count", [histogram, kernels.histogram], ids=["by torch", "by a kernel"])
def test_a_histogram_waits_for_nothing(device, without_waiting, count):
    tensor = torch.randn(5000, device=device)
    count(tensor)
    with without_waiting():
        found = count(tensor)
    assert torch.equal(found.cpu(), histogram(tensor.cpu()))


def test_histograms_of_hooks_and_lists_are_those_of_the_cpu_and_wait_for_nothing(device, without_waiting):
    sizes = (1, 4096, 100_003) if device == "cpu" else (1, 4096, 100_003, 40_000_001)
    tensors = [(torch.randn(n, device=device) * 3).to(dtype).relu_() for n in sizes for dtype in DTYPES]
    before = [tensor.roll(1) for tensor in tensors]
    many = len(tensors)
    table = Table(3 * many, [AccumulatorRows(Histogram(), tuple(range(3 * many)))], device=device)
    fallback = KeepsAll()
    writes = [table.writer(row, fallback) for row in range(many)]

    def step():
        table.clear()
        for write, tensor in zip(writes, tensors, strict=True):
            write(tensor)
            write(tensor)
        return table.measure_all(range(many, 2 * many), tensors) + table.measure_all(range(2 * many, 3 * many), tensors, before)

    step()  # compiles
    with without_waiting():
        left = step()
    assert left == [] and fallback.came == []
    for row, (tensor, other) in enumerate(zip(tensors, before, strict=True)):
        want, wide = histogram(tensor.cpu()), torch.promote_types(tensor.dtype, torch.float32)
        assert torch.equal(table.numbers("histogram", row).cpu(), 2 * want), (tensor.dtype, len(tensor))
        assert torch.equal(table.numbers("histogram", many + row).cpu(), want), (tensor.dtype, len(tensor))
        change = histogram(tensor.cpu().to(wide) - other.cpu())
        assert torch.equal(table.numbers("histogram", 2 * many + row).cpu(), change), (tensor.dtype, len(tensor))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64], ids=str)
def test_whether_tensors_of_several_devices_are_finite(device, dtype):
    last = torch.ones(5000, dtype=dtype, device=device)
    tensors = [torch.ones(3), torch.nn.Parameter(torch.ones(0, device=device)), torch.arange(4, device=device), last]
    assert kernels.are_finite(tensors)
    last[-1] = torch.inf
    assert not kernels.are_finite(tensors)


def test_tensors_of_a_module_come_on_several_streams(device):
    if device == "cpu":
        pytest.skip("there are no streams")
    table, fallback = Table(1, device=device), KeepsAll()
    write = table.writer(0, fallback)
    parts = [torch.randn(100_000, device=device) for _ in range(3)]
    write(parts[0])
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        write(parts[1])  # to the fallback, which takes what cannot wait
    torch.cuda.current_stream().wait_stream(other)
    write(parts[2])
    assert [tensor is parts[1] for _, tensor in fallback.came] == [True]
    want = neutral(1)[0]
    for part in (parts[0], parts[2]):
        want = merge(want, reference.measure(part.cpu()))
    torch.testing.assert_close(table.moments[0].cpu(), want, rtol=2e-6, atol=1e-6)


def test_a_copy_is_what_was_there_when_it_was_requested(device, without_waiting):
    tensor = torch.arange(100_000, device=device, dtype=torch.float64)
    with without_waiting():
        copy = host_copy.begin_copy(tensor)
        if device == "cuda":
            tensor.zero_()
        index = host_copy.to_device([5, 6], tensor.device)
    assert copy.ready == (device == "cpu") and copy.wait().tolist() == list(range(100_000))
    assert index.tolist() == [5, 6]


def test_rows_that_a_scaler_withdraws_and_rescales(device, without_waiting):
    tensors = [torch.randn(50, device=device) for _ in range(2)]
    table = Table(2, [AccumulatorRows(Histogram(), (0, 1))], device=device)
    fallback = KeepsAll()
    write = table.writer(1, fallback)
    write(tensors[1])  # compiles
    table.clear()
    found_inf, factor = torch.ones(1, device=device), torch.tensor(0.5, device=device)
    table.measure_all([0], tensors[:1])
    with without_waiting():
        write(tensors[1])
        table.rescale([1], factor)
        table.withdraw([0], found_inf)
    assert table.moments[0, 0] == 0 and fallback.came == []
    assert torch.equal(table.numbers("histogram", 1).cpu(), histogram(tensors[1].cpu() / 2))
    assert not table.numbers("histogram", 0).any()
    torch.testing.assert_close(table.moments[1].cpu(), reference.measure(tensors[1].cpu() / 2), rtol=2e-6, atol=1e-6)
