"""The measurement of a tensor with its units, beside that of its scalars alone.

python -m benchmarks.units
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks import output
from benchmarks.repeat import repeat
from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import MOMENTS

# Features last, as of language models; then channels first, with images of 64², 32², 14² and 7².
SHAPES = ((2048, 768), (512, 4096), (64, 32_000), (8, 32, 64, 64), (16, 64, 32, 32), (32, 128, 14, 14), (64, 256, 7, 7))
DTYPES = (torch.float32, torch.bfloat16)


class _Refuses(kernels.FallbackWriter):
    """A fallback that must not be needed."""

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        raise AssertionError(f"a tensor {tuple(tensor.shape)} was not written directly")


def writers(tensor: Tensor) -> tuple[Callable[[], None], Callable[[], None]]:
    """The calls of a hook for a tensor: with its scalars alone, and with the units of dimension 1 too."""
    units = [torch.zeros(tensor.shape[1], 4, dtype=torch.float64)]
    table = SimpleNamespace(state=torch.zeros(MOMENTS, dtype=torch.float64), magnitudes=False, units=units)
    fallback = _Refuses()
    fallback.direct = True
    scalars, with_units = (kernels.host.writer(table, 0, None, fallback, axis) for axis in (None, 1))
    return lambda: scalars(tensor), lambda: with_units(tensor)


def one(shape: tuple[int, ...], dtype: torch.dtype, rectified: bool, seconds: float) -> dict[str, Any]:
    """A row of the table: nanoseconds for 1000 elements, and the ratio.

    Args:
        shape: of the tensor; its units are along dimension 1.
        dtype: of the tensor.
        rectified: whether half of it is zero.
        seconds: for each of its figures.
    """
    tensor = torch.randn(shape)
    tensor = (tensor.relu() if rectified else tensor).to(dtype)
    calls = writers(tensor)
    # In turns: other processes and the clock of the processor change within a second.
    taken = [[repeat(call, seconds / 4).best for call in calls] for _ in range(4)]
    scalars, with_units = (min(several) for several in zip(*taken, strict=True))
    return {
        "shape": "x".join(map(str, shape)),
        "dtype": str(dtype).removeprefix("torch."),
        "rectified": rectified,
        "kernel": output.kernel_in_use(),
        "scalars_ns": scalars * 1e12 / tensor.numel(),
        "units_ns": with_units * 1e12 / tensor.numel(),
        "ratio": with_units / scalars,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--seconds", type=float, default=1.0 if output.full() else 0.1)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    one(SHAPES[0], DTYPES[0], False, options.seconds)  # the first figures of a process are those of cold caches
    rows = []
    for dtype in DTYPES:
        for rectified in (False, True):
            for shape in SHAPES:
                rows.append(one(shape, dtype, rectified, options.seconds))
                row = rows[-1]
                print(
                    f"{row['dtype']} {row['shape']}{' rectified' if rectified else ''}: {row['scalars_ns']:.0f} and "
                    f"{row['units_ns']:.0f} ns for 1000 elements, {row['ratio']:.2f} times",
                    flush=True,
                )
    output.write(options.name or "units", rows, options.out)


if __name__ == "__main__":
    main()
