"""The kernel on tensors that have just been written, as those of a hook are: part of them is still in the cache of the device.

python -m benchmarks.gpu.hot

A series writes each tensor and measures it at once; a second series only writes. The difference is the time of the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, product
from typing import Any
from unittest.mock import patch

import torch

from benchmarks import output
from benchmarks.gpu.bandwidth import Fallback
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.table import Table

MEGABYTES = (4, 8, 16, 32, 64)
DTYPES = (torch.bfloat16, torch.float32)
PROGRAMS = (None, 264, 528, 1024)  # of a launch; None for as many as the package takes for the size
_CALLS = 40  # of a series; as many launches fit into the queue of a device and into the partial rows of a table
_SLEEP = 4_000_000  # cycles, about 2 ms, in which the host prepares a series


def seconds_of(
    call: Callable[[], Any], tries: int, device: str, clear: Callable[[], Any], calls: int = _CALLS, sleep: int = _SLEEP
) -> float:
    """Seconds of the device for one call: the median of several series.

    Args:
        call: what is timed.
        tries: the number of series.
        device: `cpu` or `cuda`.
        clear: called between series and not timed.
        calls: of a series.
        sleep: cycles of the device in which the host prepares a series.
    """
    found: list[float] = []
    for _ in range(tries + 1):  # the first compiles
        clear()
        if device == "cuda":
            begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            # While the device sleeps, the host fills the queue. So the series takes as long as the device needs.
            torch.cuda._sleep(sleep)
            begun.record()
            for _ in range(calls):
                call()
            ended.record()
            torch.cuda.synchronize()
            found.append(begun.elapsed_time(ended) * 1e-3 / calls)
        else:
            started = time.perf_counter()
            for _ in range(2):
                call()
            found.append((time.perf_counter() - started) / 2)
    return sorted(found[1:])[tries // 2]


@contextmanager
def _dividing(programs: int | None, device: str) -> Iterator[None]:
    """Divide tensors among so many programs of a launch, of up to 32 blocks each; None to do as the package does."""
    if device == "cpu" or programs is None:
        yield
        return
    from lightning_hooks.stats.kernels import cuda

    # The package takes half of these programs while a span has at most half of these blocks.
    with patch.multiple(cuda, _PROGRAMS=2 * programs, _MOST_BLOCKS=64):
        yield


def one(
    megabytes: float,
    dtype: torch.dtype,
    magnitudes: bool,
    programs: int | None,
    tries: int,
    device: str,
    counted: bool = False,
) -> dict[str, Any]:
    """A row of the table: microseconds to measure a tensor that has just been written.

    Args:
        megabytes: the size of the tensor.
        dtype: of the tensor.
        magnitudes: whether sums of magnitudes and underflow are measured.
        programs: among which a tensor is divided; None for as many as the package takes.
        tries: series of calls.
        device: `cpu` or `cuda`.
        counted: whether a histogram is counted too. The tensors then hold normal random numbers, which span many buckets.
    """
    size = round(megabytes * 1e6) // torch.empty(0, dtype=dtype).element_size()
    tensors = [torch.randn(size, device=device).to(dtype) for _ in range(3)]
    turns = cycle(tensors)
    with _dividing(programs, device):
        kept = [AccumulatorRows(Histogram(), (0,))] if counted else []
        table = Table(1, kept, device=device, magnitudes=magnitudes)
        write = table.writer(0, Fallback(table))

        def filled() -> torch.Tensor:
            return next(turns).neg_() if counted else next(turns).fill_(1.5)

        both = seconds_of(lambda: write(filled()), tries, device, table.clear)
    alone = seconds_of(filled, tries, device, table.clear)
    taken = both - alone
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "mb": megabytes,
        "magnitudes": magnitudes,
        "programs": programs,
        "counted": counted,
        "write_us": alone * 1e6,
        "us": taken * 1e6,
        "gb_s": megabytes / 1e3 / taken if taken > 0 else 0.0,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tries", type=int, default=9)
    options = parser.parse_args(arguments)
    is_cuda = options.device == "cuda"
    several = PROGRAMS if is_cuda else PROGRAMS[:1]
    rows: list[dict[str, Any]] = []
    for dtype in DTYPES:
        for megabytes in MEGABYTES if is_cuda else (0.1, 0.2):
            for magnitudes, programs, counted in (
                (True, None, False),
                *product([False], several, [False]),
                (False, None, True),
            ):
                tries = options.tries if is_cuda else 1
                row = one(megabytes, dtype, magnitudes, programs, tries, options.device, counted)
                rows.append(row)
                print(
                    f"{row['dtype']} {row['mb']} MB, {'with' if magnitudes else 'without'} magnitudes, "
                    f"{programs or 'usual'} programs{', counted' if counted else ''}: "
                    f"{row['us']:.1f} µs, {row['gb_s']:.0f} GB/s",
                    flush=True,
                )
    output.write(options.name or "hot", rows, options.out)


if __name__ == "__main__":
    main()
