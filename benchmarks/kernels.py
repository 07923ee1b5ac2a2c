"""The measurement of one tensor, beside what reading it once and copying it cost.

python -m benchmarks.kernels
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import output
from benchmarks.repeat import repeat
from benchmarks.workloads import WORKLOADS
from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import MOMENTS

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def into_a_row(tensor: Tensor, kernel: ModuleType) -> Callable[[], object]:
    """The measurement by a kernel, into a row of a table's state, without a histogram and magnitudes."""
    state = torch.zeros(MOMENTS, dtype=torch.float64)
    first = np.array([0])
    return lambda: kernel.measure_many_into(state, first, [tensor], None, None, False)


def one(size: int, dtype: torch.dtype, seconds: float) -> dict[str, Any]:
    """A row of the table: nanoseconds a call and gigabytes a second.

    Args:
        size: elements.
        dtype: of the tensor.
        seconds: for each of its figures.
    """
    tensor = torch.randn(size).to(dtype)
    target = torch.empty_like(tensor)
    calls: dict[str, Callable[[], Any]] = {
        "measure": into_a_row(tensor, kernels.host),
        "sum": tensor.sum,
        "copy": lambda: target.copy_(tensor),
    }
    row: dict[str, Any] = {"size": size, "dtype": str(dtype).removeprefix("torch."), "kernel": output.kernel_in_use()}
    bytes_read = tensor.numel() * tensor.element_size()
    for name, call in calls.items():
        taken = repeat(call, seconds).best
        row[f"{name}_ns"] = taken * 1e9
        row[f"{name}_gb_s"] = bytes_read / taken / 1e9  # of a copy: the bytes copied, each read and written
    return row


def many(letter: str, seconds: float) -> dict[str, Any]:
    """A list of tensors in one call: the parameters of a workload, beside their norms by torch.

    Args:
        letter: of the workload.
        seconds: for each of its figures.
    """
    tensors: list[Tensor] = [parameter.detach() for parameter in WORKLOADS[letter].net().parameters()]
    return {
        "workload": letter,
        "tensors": len(tensors),
        "elements": sum(tensor.numel() for tensor in tensors),
        "measure_many_ms": repeat(lambda: kernels.measure_many(tensors), seconds).best * 1e3,
        "foreach_norm_ms": repeat(lambda: torch._foreach_norm(tensors), seconds).best * 1e3,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--seconds", type=float, default=1.0 if output.full() else 0.1)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    one(SIZES[0], DTYPES[0], options.seconds)  # the first figures of a process are those of cold caches and a resting core
    rows = []
    for dtype in DTYPES:
        for size in SIZES:
            rows.append(one(size, dtype, options.seconds))
            print(
                f"{rows[-1]['dtype']} {size}: {rows[-1]['measure_ns']:.0f} ns, {rows[-1]['measure_gb_s']:.1f} GB/s", flush=True
            )
    lists = [many(letter, options.seconds) for letter in WORKLOADS]
    output.write(options.name or "kernels", rows, options.out, lists=lists)


if __name__ == "__main__":
    main()
