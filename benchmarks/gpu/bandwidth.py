"""The kernel of a device: its bandwidth beside that of a copy, and what a call takes on the host.

python -m benchmarks.gpu.bandwidth
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from benchmarks import output
from benchmarks.repeat import repeat
from benchmarks.workloads import SIZES
from lightning_hooks.stats import kernels
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.table import Table

DTYPES = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
_CACHE = 256 << 20  # bytes: several times the cache of a device; smaller tensors take turns


class Fallback(kernels.FallbackWriter):
    """Takes what the kernel does not measure; nothing here is of that kind."""

    def __init__(self, table: Table) -> None:
        self.direct = True
        self._table = table

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        self._table.moments[row] = reference.measure(tensor)


def seconds_of(call: Callable[[Tensor], Any], tensors: Sequence[Tensor], tries: int, device: str) -> float:
    """Seconds of the device for one call: the median of several series, each over all tensors and at least ten calls."""
    calls = max(10, len(tensors))
    turns = cycle(tensors)
    found: list[float] = []
    for _ in range(tries + 1):  # the first compiles, and allocates
        if device == "cuda":
            begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begun.record()
            for _ in range(calls):
                call(next(turns))
            ended.record()
            torch.cuda.synchronize()
            found.append(begun.elapsed_time(ended) * 1e-3 / calls)
        else:
            started = time.perf_counter()
            for _ in range(calls):
                call(next(turns))
            found.append((time.perf_counter() - started) / calls)
    return sorted(found[1:])[tries // 2]


def one(size: int, dtype: torch.dtype, tries: int, device: str) -> dict[str, Any]:
    """A row of the table: bytes read a second of the kernel, without and with magnitudes, and of `sum`, and those of a copy.

    Args:
        size: elements.
        dtype: of the tensor.
        tries: series of calls.
        device: `cpu` or `cuda`.
    """
    bytes_read = size * torch.empty(0, dtype=dtype).element_size()
    many = min(max(1, _CACHE // bytes_read), 32) if device == "cuda" else 2
    dense = [torch.randn(size, device=device).to(dtype) for _ in range(many)]
    table, sized = (Table(1, device=device, magnitudes=magnitudes) for magnitudes in (False, True))
    write = table.writer(0, Fallback(table))
    target = torch.empty_like(dense[0])
    calls: dict[str, tuple[Callable[[Tensor], Any], list[Tensor], int]] = {
        "kernel": (write, dense, 1),
        "magnitudes": (sized.writer(0, Fallback(sized)), dense, 1),
        "sum": (torch.sum, dense, 1),
        "copy": (target.copy_, dense, 2),
    }
    row: dict[str, Any] = {"size": size, "dtype": str(dtype).removeprefix("torch."), "mb": bytes_read / 1e6}
    for name, (call, tensors, times) in calls.items():
        taken = seconds_of(call, tensors, tries, device)
        row[f"{name}_us"] = taken * 1e6
        row[f"{name}_gb_s"] = times * bytes_read / taken / 1e9
    for tensor in dense:
        tensor.relu_()
    row["with_zeros_gb_s"] = bytes_read / seconds_of(write, dense, tries, device) / 1e9
    row["share"] = row["kernel_gb_s"] / row["copy_gb_s"]
    assert table.moments[0, 0] > 0
    return row


def on_the_host(device: str, sizes: str, seconds: float) -> list[dict[str, Any]]:
    """Microseconds that the host takes: one small tensor of a hook, and the parameters of a workload in one call."""
    rows = []
    small = torch.randn(128, 256, device=device)
    table = Table(1, device=device, magnitudes=False)
    write = table.writer(0, Fallback(table))

    def flush() -> None:
        table.clear()
        if device == "cuda":
            torch.cuda.synchronize()

    def several() -> None:
        for _ in range(100):
            write(small)

    rows.append({"what": "a tensor of a module", "tensors": 1, "us": repeat(several, seconds, before=flush).best * 1e4})
    for letter in ("A", "D", "G"):
        parameters = list(SIZES[sizes][letter].net().to(device).parameters())
        whole = Table(len(parameters), device=device, magnitudes=False)
        offsets = whole.offsets(range(len(parameters)))
        taken = repeat(lambda: whole.measure_all(offsets, parameters), seconds, before=flush)  # noqa: B023
        rows.append({"what": f"the parameters of {letter}", "tensors": len(parameters), "us": taken.best * 1e6})
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    largest = 28 if options.device == "cuda" else 14
    rows: list[dict[str, Any]] = []
    for dtype in DTYPES:
        for power in range(largest - 12, largest + 1, 4):
            rows.append(one(1 << power, dtype, options.tries, options.device))
            last = rows[-1]
            print(f"{last['dtype']} 2**{power}: {last['kernel_gb_s']:.0f} GB/s, {last['share']:.2f} of a copy", flush=True)
            output.write(options.name or "bandwidth", rows, options.out, host=[])
    host = on_the_host(options.device, "gpu" if options.device == "cuda" else "tiny", options.seconds)
    for line in host:
        print(f"{line['what']}: {line['us']:.1f} µs on the host", flush=True)
    output.write(options.name or "bandwidth", rows, options.out, host=host)


if __name__ == "__main__":
    main()
