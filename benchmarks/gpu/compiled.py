"""What watching costs in a compiled GPT: by hooks that the compiler traces, and by operations that may stand in CUDA graphs.

python -m benchmarks.gpu.compiled --workload D

Each layer is compiled, because equal layers share their code, which takes the compiler little time. Each mode of the compiler
has a fit of its own, in which steps without watching, with hooks and with operations alternate. If the fit raises, each way to
watch is tried in one of its own, and what was raised is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, Final

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from benchmarks import output
from benchmarks.alternating import figures, layout_for
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.modes import LaunchMode, everything, monitor_mode, set_launches
from benchmarks.workloads import GPT, SIZES, Workload
from lightning_hooks import StatsMonitor, StepConsumer, StepView
from lightning_hooks.stats.schema import COUNT

COMPILERS: Final = ("default", "reduce-overhead")
# After a change of mode the compiler makes code in the first step, warms up in it, and captures graphs in the second.
_WARMUP: Final = 4
_ROUNDS: Final = 6


class Operations(LaunchMode):
    """Compiled code measures by operations of its own, which may stand in CUDA graphs."""

    module = "in_graphs"
    switches = {"is_used": True}


class Marks(LaunchMode):
    """Compiled code calls hooks in Python."""

    module = "in_graphs"
    switches = {"is_used": False}


WAYS: Final[dict[str, type[LaunchMode]]] = {"hooks": Marks, "operations": Operations}


class Measured(StepConsumer):
    """Keeps how many rows have a value in the step in which the fewest have.

    Attributes:
        steps: the number of steps.
        least: the number of rows with a value in that step; None before the first step.
        rows: the number of all rows.
        missing: the first rows without a value in that step.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.least: int | None = None
        self.rows = 0
        self.missing: list[str] = []

    def consume(self, view: StepView) -> None:
        has_value = view.moments[:, COUNT] > 0
        self.rows = len(has_value)
        self.steps += 1
        if self.least is None or has_value.sum() < self.least:
            self.least = int(has_value.sum())
            without = (~has_value).nonzero()[0][:3]
            self.missing = [f"{view.rows.tensors[row]} {view.rows.names[row]}" for row in without]


class Calls(Callback):
    """Counts the calls of Python from compiled code in one step of each block, which is not timed.

    Args:
        layout: of the run.

    Attributes:
        of: the calls in the last such step, by mode.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.of: dict[str, int] = {}
        self._run: Callable[..., Tensor] | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._stop()
        if self.layout.index_in_block(batch_idx) == self.layout.warmup - 1:
            self._count(self.layout.mode_at(batch_idx))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _count(self, mode: str) -> None:
        from lightning_hooks.hooks.traced import Mark

        run = self._run = Mark.run
        self.of[mode] = 0

        def counting(mark: Mark, tensor: Tensor) -> Tensor:
            self.of[mode] += 1
            return run(mark, tensor)

        setattr(Mark, "run", counting)  # noqa: B010

    def _stop(self) -> None:
        if self._run is not None:
            from lightning_hooks.hooks.traced import Mark

            setattr(Mark, "run", self._run)  # noqa: B010
            self._run = None


def measure(workload: Workload, compiler: str, seconds: float, device: str, backend: str = "inductor") -> list[dict[str, Any]]:
    """A row for each way to watch.

    Args:
        workload: a GPT.
        compiler: the mode of the compiler, one of `COMPILERS`.
        seconds: about how long the fit may take were all steps unwatched and not compiled.
        device: `cpu` or `cuda`.
        backend: of the compiler.
    """

    def tried(ways: tuple[str, ...]) -> list[dict[str, Any]]:
        try:
            return _fit(workload, compiler, ways, seconds, device, backend)
        except Exception as error:
            if len(ways) > 1:
                return [row for way in ways for row in tried((way,))]
            failed = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            return [{**_head(workload, compiler, ways[0]), "failed": failed}]

    return tried(tuple(WAYS))


def _head(workload: Workload, compiler: str, way: str) -> dict[str, Any]:
    return {"workload": workload.name, "title": workload.title, "compiler": compiler, "way": way}


def _fit(
    workload: Workload, compiler: str, ways: tuple[str, ...], seconds: float, device: str, backend: str
) -> list[dict[str, Any]]:
    layout = layout_for(workload, (OFF, *ways), seconds, _ROUNDS if device == "cuda" else 2)
    layout = replace(layout, warmup=_WARMUP)
    modes = {way: monitor_mode(way, everything(), layout, kind=WAYS[way], prefix=f"{way}/") for way in ways}
    measured = {way: Measured() for way in ways}
    for way, mode in modes.items():
        for monitor in mode.callbacks:
            assert isinstance(monitor, StatsMonitor)
            monitor.consumers.append(measured[way])
    calls = Calls(layout)
    module, loader = workload.make(layout.steps, device)
    options = {"backend": backend} if backend != "inductor" else {"mode": compiler}
    with _operations_on(), _graphs(device) as count:
        assert isinstance(module.net, GPT)
        for layer in module.net.layers:
            layer.compile(**options)
        clock = fit(module, loader, layout, [*modes.values()], always=[calls], options=workload.options, device=device)
        counted = count()
    base = clock.blocks(OFF)
    return [
        {
            **_head(workload, compiler, way),
            "kernel": output.kernel_in_use(device),
            "steps": measured[way].steps,
            "steps_watched": layout.rounds * layout.block,
            "measured": measured[way].least,
            "rows": measured[way].rows,
            "missing": measured[way].missing,
            "calls": calls.of.get(way),
            **counted,
            **figures(clock, way),
            **asdict(compare(clock.blocks(way), base)),
        }
        for way in ways
    ]


@contextmanager
def _operations_on() -> Iterator[None]:
    """A context in which hooks in compiled code get the places of operations; modes turn operations off and on again."""
    before = set_launches({"is_used": True}, "in_graphs")
    try:
        yield
    finally:
        set_launches(before, "in_graphs")


@contextmanager
def _graphs(device: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """A context without code that was compiled before; yields what counts the graphs of the compiler and the CUDA graphs."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    reasons: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: reasons.append(record.getMessage())  # type: ignore[method-assign]
    logger: logging.Logger | None = None
    with suppress(ImportError, AttributeError):
        from torch._inductor import cudagraph_utils

        logger = cudagraph_utils.cudagraphs_log
        logger.addHandler(handler)

    def count() -> dict[str, Any]:
        skips = counters["inductor"]["cudagraph_skips"] if device == "cuda" else 0
        return {
            "compiled_graphs": counters["stats"]["unique_graphs"],
            "graph_breaks": sum(counters["graph_break"].values()),
            "cuda_graphs": _captured() if device == "cuda" else 0,
            "skipped": skips,
            "reasons": list(dict.fromkeys(reasons))[:3],
        }

    try:
        yield count
    finally:
        if logger is not None:
            logger.removeHandler(handler)
        torch._dynamo.reset()


def _captured() -> int | None:
    """The CUDA graphs that the compiler has captured; None if torch does not tell."""
    with suppress(ImportError, AttributeError):
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
        return 0 if manager is None else int(manager.new_graph_id().id)
    return None


def main(arguments: list[str] | None = None) -> None:
    """Measure and write, after each mode of the compiler."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--workload", default="D")
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--sizes", choices=list(SIZES), default="gpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--backend", default="inductor", help="of the compiler; one that is not the default has no modes")
    options = parser.parse_args(arguments)
    workload = SIZES[options.sizes][options.workload]
    rows: list[dict[str, Any]] = []
    for compiler in options.compilers.split(","):
        for row in measure(workload, compiler, options.seconds, options.device, options.backend):
            rows.append(row)
            what = f"{row['workload']} {compiler}, {row['way']}: "
            print(what + (row.get("failed") or f"{row['median']:.3f}, {row['measured']} of {row['rows']} rows"), flush=True)
        output.write(options.name or "compiled", rows, options.out)


if __name__ == "__main__":
    main()
