"""How often a step waits for the device, and how long the device is busy, watched and unwatched, in one fit.

python -m benchmarks.gpu.synchronisations

Two counts: operations that torch's debug mode calls synchronizing, and calls of the CUDA runtime that wait, from the profiler.
`cudaEventSynchronize` stands apart: at the end of a step the copy of the step before is waited for, which has long been done.
"""

from __future__ import annotations

import statistics
import warnings
from collections import Counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks import output
from benchmarks.blocks import OFF, Layout
from benchmarks.clock import fit
from benchmarks.modes import everything, monitor_mode
from benchmarks.workloads import SIZES, Workload

_ON = "everything"
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaEventSynchronize")


class Count(Callback):
    """Counts what waits, by step: from the beginning of a batch to the beginning of the next.

    Args:
        layout: of the run; the first and last step of a block are not counted, in which the clock waits.
        device: `cpu` or `cuda`.
    """

    def __init__(self, layout: Layout, device: str) -> None:
        self.layout = layout
        self.device = device
        self.warned: dict[int, Counter[str]] = {}
        self.calls: dict[int, Counter[str]] = {}
        self.busy: dict[int, list[float]] = {}
        """Of each profiled step the microseconds of each kernel and copy on the device."""
        self._step = -1
        self._catch: Any = None
        self._caught: list[warnings.WarningMessage] = []
        self._profile: Any = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._close()
        index = self.layout.index_in_block(batch_idx)
        if self.layout.warmup < index < self.layout.block - 1:
            self._open(batch_idx, profiled=index % 2 == 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def _open(self, step: int, profiled: bool) -> None:
        self._step = step
        if profiled:
            kinds = [torch.profiler.ProfilerActivity.CPU]
            kinds += [torch.profiler.ProfilerActivity.CUDA] if self.device == "cuda" else []
            self._profile = torch.profiler.profile(activities=kinds)
            self._profile.__enter__()
            return
        self._catch = warnings.catch_warnings(record=True)
        self._caught = self._catch.__enter__()
        warnings.simplefilter("always")
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")

    def _close(self) -> None:
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            events = self._profile.events()
            self.calls[self._step] = Counter(event.name for event in events if event.name in _WAITS)
            self.busy[self._step] = [event.time_range.elapsed_us() for event in events if _is_work(event)]
            self._profile = None
        if self._catch is not None:
            if self.device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            self._catch.__exit__(None, None, None)
            waits = [str(each.message) for each in self._caught if "synchroniz" in str(each.message)]
            self.warned[self._step] = Counter(waits)
            self._catch = None


def _is_work(event: Any) -> bool:
    """Whether an event of the profiler is a kernel or a copy on the device."""
    # The name of an optimizer's step is also shown on the device, around its kernels.
    on_device = event.device_type.name == "CUDA"
    return bool(on_device and not getattr(event, "is_user_annotation", False))


def measure(workload: Workload, device: str) -> dict[str, Any]:
    """The median counts of a step, by mode.

    Args:
        workload: what is trained.
        device: `cpu` or `cuda`.
    """
    layout = Layout((OFF, _ON), rounds=2, length=8)
    count = Count(layout, device)
    module, loader = workload.make(layout.steps, device)
    mode = monitor_mode(_ON, everything(extra_params=("update", "final_grad")), layout)
    fit(module, loader, layout, [mode], always=[count], options=workload.options, device=device)
    row: dict[str, Any] = {"workload": workload.name, "title": workload.title}
    for name, label in ((OFF, "without"), (_ON, "with")):
        warned = [sum(found.values()) for step, found in count.warned.items() if layout.mode_at(step) == name]
        row[f"debug_mode_{label}"] = statistics.median(warned)
        work = [found for step, found in count.busy.items() if layout.mode_at(step) == name]
        row[f"busy_ms_{label}"] = statistics.median(sum(found) for found in work) / 1e3
        row[f"launches_{label}"] = statistics.median(len(found) for found in work)
        for wait in _WAITS:
            calls = [found[wait] for step, found in count.calls.items() if layout.mode_at(step) == name]
            row[f"{wait}_{label}"] = statistics.median(calls)
    messages = sum((found for step, found in count.warned.items() if layout.mode_at(step) == _ON), Counter())
    row["messages"] = dict(messages.most_common(5))
    return row


def main(arguments: list[str] | None = None) -> None:
    """Count and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--workloads", default="A,D")
    options = parser.parse_args(arguments)
    sizes = SIZES["gpu" if options.device == "cuda" else "tiny"]
    rows = []
    for letter in options.workloads.split(","):
        rows.append(measure(sizes[letter], options.device))
        print(rows[-1], flush=True)
        output.write(options.name or "synchronisations", rows, options.out)


if __name__ == "__main__":
    main()
