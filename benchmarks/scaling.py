"""How the cost of a row changes with their number, and how much memory one takes.

python -m benchmarks.scaling
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks import output
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.modes import Mode, everything, monitor_mode
from benchmarks.workloads import chain
from lightning_hooks.hooks import OurHook

ROWS = (100, 300, 1_000, 3_000, 10_000)
_ON = "everything"
_MEMORY = "memory"


def cost(rows: int, rounds: int) -> dict[str, Any]:
    """Microseconds a row and step, under `Trainer.fit`.

    Args:
        rows: about how many.
        rounds: of the alternation.
    """
    workload = chain(rows)
    layout = Layout((OFF, _ON), rounds=rounds, length=4 if rows > 1000 else 20)
    module, loader = workload.make(layout.steps)
    mode = monitor_mode(_ON, everything(), layout)
    clock = fit(module, loader, layout, [mode])
    ratio = compare(clock.blocks(_ON), clock.blocks(OFF))
    exact = rows_of(module)
    return {"rows": exact, "ratio": ratio.median, "extra_ms": ratio.extra_ms, "us_per_row": ratio.extra_ms * 1e3 / exact}


def rows_of(module: LightningModule) -> int:
    """Rows of "everything": two a leaf module, two a parameter."""
    return 2 * sum(not list(part.children()) for part in module.modules()) + 2 * len(list(module.parameters()))


class Weigh(Callback):
    """The resident memory of the process at the end of a fit's last step; counts the hooks of its batch."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.bytes = self.hooks = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == self.last:
            self.bytes = resident()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == self.last:  # hooks are off between batches, and in the one step that follows
            every = [hook for module in pl_module.modules() for hook in module._forward_hooks.values()]
            self.hooks = sum(isinstance(hook, OurHook) for hook in every)


class WeighMode(Mode):
    """Brings the scale into the trainer."""

    def __init__(self, last: int) -> None:
        super().__init__("weigh")
        self.scale = Weigh(last)

    @property
    def callbacks(self) -> list[Callback]:
        """The scale."""
        return [self.scale]


def memory(rows: int) -> dict[str, Any]:
    """Bytes of a row: the same fit without and then with a monitor, in a process that has done nothing else.

    Args:
        rows: about how many.
    """
    module, _ = chain(rows).make(0)
    few, _ = chain(12).make(0)
    weights = []
    # The first two fits bring in what any fit and any monitor brings in, however few its rows.
    layout = Layout((OFF, _ON), rounds=1, length=4)
    for model, watched in ((module, False), (few, True), (module, False), (module, True)):
        weigh = WeighMode(layout.steps - 2)
        watching: list[Mode] = [monitor_mode(_ON, everything(), layout)] if watched else []
        fit(model, chain(12).make(layout.steps)[1], layout, [*watching, weigh])
        if bool(weigh.scale.hooks) != watched:
            raise RuntimeError(f"{weigh.scale.hooks} hooks where watched={watched}: this weighs something else")
        weights.append(weigh.scale.bytes)
    exact, grown = rows_of(module), weights[3] - weights[2]
    return {"rows": exact, "bytes": grown, "mb_per_1000_rows": grown / exact / 1e3}


def resident() -> int:
    """Resident bytes of this process, with what was freed given back first."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass  # not the C library of GNU: the figure is a little rougher
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def in_a_process_of_its_own(rows: int) -> dict[str, Any]:
    """`memory` in a fresh interpreter: in a used one the monitor moves into memory that others have left."""
    command = [sys.executable, "-m", "benchmarks.scaling", f"--{_MEMORY}", str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(sizes: Sequence[int], rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The two tables."""
    costs = []
    for number in sizes:
        costs.append(cost(number, rounds))
        print(f"{costs[-1]['rows']} rows: {costs[-1]['us_per_row']:.1f} µs a row", flush=True)
    weights = [in_a_process_of_its_own(number) for number in (sizes[len(sizes) // 2], sizes[-1])]
    for row in weights:
        print(f"{row['rows']} rows: {row['mb_per_1000_rows']:.2f} MB per 1,000", flush=True)
    return costs, weights


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--rounds", type=int, default=12 if output.full() else 4)
    parser.add_argument(f"--{_MEMORY}", type=int, help="weigh so many rows in this process, and print it")
    options = parser.parse_args(arguments)
    if options.memory is not None:
        print(json.dumps(memory(options.memory)))
        return
    costs, weights = measure(options.rows, options.rounds)
    output.write(options.name or "scaling", costs, options.out, memory=weights)


if __name__ == "__main__":
    main()
