"""Lists of tensors on a device: parameters and gradients that are measured, gradients that are compared, and a row with units.

python -m benchmarks.gpu.lists
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks import output
from benchmarks.gpu.hot import seconds_of
from benchmarks.repeat import repeat
from benchmarks.workloads import SIZES
from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.pairs import Pairs
from lightning_hooks.stats.accumulators.units import Units
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.table import Table
from lightning_hooks.stats.units.spec import UnitSpec

WORKLOADS = ("A", "D", "G")
_CALLS = 8  # of a series of the device
_SLEEP = 80_000_000  # cycles, about 40 ms, in which the host prepares a series


class Way(NamedTuple):
    """A way to measure tensors.

    Args:
        what: of its row.
        tensors: how many there are.
        megabytes: that are read.
        call: measures the tensors once.
    """

    what: str
    tensors: int
    megabytes: float
    call: Callable[[], Any]


class _InPython(kernels.FallbackWriter):
    """Measures in Python, as it happens to the first tensor of a row with units."""

    def __init__(self, table: Table) -> None:
        self.direct, self._table = True, table

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        self._table.measuring.add(row, Measurement(tensor))


def ways(letter: str, sizes: str, device: str) -> Iterator[Way]:
    """The ways to measure the parameters of a workload.

    Args:
        letter: of the workload.
        sizes: of the workload.
        device: `cpu` or `cuda`.
    """
    parameters = [each.detach() for each in SIZES[sizes][letter].net().to(device).parameters()]
    gradients = [torch.randn_like(each) for each in parameters]
    before = [each + 0.1 for each in gradients]
    many = len(parameters)
    megabytes = sum(each.numel() * each.element_size() for each in parameters) / 1e6
    table = Table(2 * many, [AccumulatorRows(Pairs(), tuple(range(many)))], device=device, magnitudes=False)
    first, second, both = (table.offsets(rows) for rows in (range(many), range(many, 2 * many), range(2 * many)))
    firsts = table.sections.starts("pairs", range(many))

    def apart() -> None:
        table.measure_all(first, parameters)
        table.measure_all(second, gradients)

    yield Way("parameters and gradients, a call for each", 2 * many, 2 * megabytes, apart)
    together = [*parameters, *gradients]
    yield Way("parameters and gradients, one call", 2 * many, 2 * megabytes, lambda: table.measure_all(both, together))
    yield Way("gradients compared", many, 2 * megabytes, lambda: kernels.compare_many(table.state, firsts, gradients, before))

    def in_torch() -> None:
        for row, (new, old) in enumerate(zip(gradients, before, strict=True)):
            x, y, sums = new.flatten().double(), old.flatten().double(), table.numbers("pairs", row)
            sums[0], sums[1], sums[2] = torch.dot(x, y), torch.dot(y, y), torch.dot(x, x)

    yield Way("gradients compared in torch", many, 2 * megabytes, in_torch)


def with_units(device: str) -> Iterator[Way]:
    """A row with units that a hook measures, and clearing many of these rows.

    Args:
        device: `cpu` or `cuda`.
    """
    rows = 340 if device == "cuda" else 5
    kept = AccumulatorRows(Units(), tuple(range(rows)), {row: (nn.Linear(1, 1), UnitSpec()) for row in range(rows)})
    table = Table(rows, [kept], device=device, magnitudes=False)
    table.expect({"units": frozenset(range(rows))})
    fallback, tensor = _InPython(table), torch.randn(128, 256, device=device)
    writes = [table.writer(row, fallback, {"units"}) for row in range(rows)]
    for write in writes:
        write(tensor)  # determines the axis
    table.clear()
    yield Way("a tensor with its units", 1, tensor.numel() * 4e-6, lambda: writes[0](tensor))
    yield Way("clearing the rows with units", rows, 0.0, table.clear)


@contextmanager
def _counting(names: list[str]) -> Iterator[None]:
    """Note the kernels that Python launches; nothing where Triton is not in use."""
    if not kernels.in_use_on_cuda().startswith("triton"):
        yield
        return
    from lightning_hooks.stats.kernels import cuda, cuda_units

    launch = cuda._launch

    def noting(kernel: Any, *args: Any, **constants: Any) -> None:
        names.append(kernel.fn.__name__)
        launch(kernel, *args, **constants)

    with patch.object(cuda, "_launch", noting), patch.object(cuda_units, "_launch", noting):
        yield


def one(way: Way, workload: str, seconds: float, device: str) -> dict[str, Any]:
    """A row of the table: microseconds of the host and of the device for a call.

    Args:
        way: what is timed.
        workload: for the row.
        seconds: of the host, about.
        device: `cpu` or `cuda`.
    """
    is_cuda = device == "cuda"
    wait = torch.cuda.synchronize if is_cuda else time.perf_counter
    way.call()  # compiles
    names: list[str] = []
    with _counting(names):
        way.call()
    host = repeat(way.call, seconds, before=wait)
    return {
        "workload": workload,
        "what": way.what,
        "tensors": way.tensors,
        "mb": way.megabytes,
        "launches": len(names),
        "host_us": host.median * 1e6,
        "device_us": seconds_of(way.call, 5, "cuda", lambda: None, _CALLS, _SLEEP) * 1e6 if is_cuda else None,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--seconds", type=float, default=0.3)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    sizes = "gpu" if options.device == "cuda" else "tiny"
    rows: list[dict[str, Any]] = []

    def measure(found: Iterator[Way], workload: str) -> None:
        for way in found:
            rows.append(one(way, workload, options.seconds, options.device))
            row = rows[-1]
            on_device = "" if row["device_us"] is None else f", {row['device_us']:.1f} of the device"
            print(f"{workload} {way.what}: {row['host_us']:.1f} µs of the host{on_device}", flush=True)
            output.write(options.name or "lists", rows, options.out)

    for letter in WORKLOADS:
        measure(ways(letter, sizes, options.device), letter)
    measure(with_units(options.device), "–")


if __name__ == "__main__":
    main()
