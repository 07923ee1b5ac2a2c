"""What watching adds to a step: watched and unwatched steps alternating inside one fit.

python -m benchmarks.alternating --workloads A,D --variants everything,final
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from benchmarks import output
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import Clock, fit
from benchmarks.modes import CallbackMode, IdleHooks, Mode, everything, monitor_mode
from benchmarks.workloads import SIZES, Cycle, Workload
from lightning_hooks import Apply, GradientTransforms, UnsupportedError, Watch
from lightning_hooks.transforms import ClipByGlobalNorm


@dataclass(frozen=True)
class Variant:
    """What is watched, and how.

    Args:
        rules: makes the rules; None for the default ones.
        control: a callback that does nothing in place of a monitor; its ratio is the noise of the method.
        idle_hooks: hooks that do nothing in place of a monitor.
        compiled: whether the net goes through `torch.compile` first.
        single: only one step of each block is watched, to know what one step in a hundred costs.
        all_scalars: whether every statistic of every row is also written as a scalar, which is more than `max_scalars` allows.
        always: makes callbacks that are there in all steps, those without a monitor too.
        options: of the trainer, in all steps.
        validated: whether each step is followed by a validation run of one batch.
    """

    rules: Callable[[], list[Watch] | None] = everything
    control: bool = False
    idle_hooks: bool = False
    compiled: bool = False
    single: bool = False
    all_scalars: bool = False
    always: Callable[[], list[Callback]] = list
    options: Mapping[str, Any] = field(default_factory=dict)
    validated: bool = False


def _default_rules() -> None:
    return None


def _clipping() -> list[Callback]:
    return [GradientTransforms([Apply(ClipByGlobalNorm(1.0), params="*")])]


VARIANTS = {
    "control": Variant(control=True),
    "idle_hooks": Variant(idle_hooks=True),
    "everything": Variant(),
    "scalars": Variant(all_scalars=True),
    "final": Variant(lambda: everything(extra_params=("update", "final_grad"))),
    "histograms": Variant(lambda: everything(extra_stats=("histogram",))),
    "every100": Variant(single=True),
    "compiled": Variant(compiled=True),
    "default": Variant(_default_rules),
    "transforms": Variant(_default_rules, always=_clipping),
    "bf16": Variant(_default_rules, options={"precision": "bf16-mixed"}),
    "accumulation": Variant(_default_rules, options={"accumulate_grad_batches": 4}),
    "validation": Variant(
        _default_rules, options={"val_check_interval": 1, "limit_val_batches": 1, "num_sanity_val_steps": 0}, validated=True
    ),
}
_EVERY = 100
_SINGLE_ROUNDS = 2  # times as many


def layout_for(workload: Workload, modes: tuple[str, ...], seconds: float, least: int = 6) -> Layout:
    """Blocks of about a third of a second, at least three steps, and as many rounds as fit.

    Args:
        workload: whose step time is roughly known.
        modes: of the run.
        seconds: about how long the run may take were all steps unwatched.
        least: rounds that are run however long they take.

    Example:
        >>> layout_for(SIZES["cpu"]["C"], ("off", "on"), 10.0)
        Layout(modes=('off', 'on'), rounds=6, length=3, warmup=2, lead=3)
    """
    length = min(max(3, round(300 / workload.step_ms)), 40)
    rounds = round(seconds * 1e3 / workload.step_ms / (len(modes) * (length + 2)))
    return Layout(modes, rounds=max(least, rounds), length=length)


def measure(workload: Workload, name: str, layout: Layout, device: str = "cpu") -> dict[str, Any]:
    """One fit of a workload in which a variant and nothing alternate.

    Args:
        workload: what is trained.
        name: of the variant; also that of the layout's second mode.
        layout: of the run.
        device: `cpu` or `cuda`.
    """
    variant = VARIANTS[name]
    module, loader = workload.make(layout.steps * variant.options.get("accumulate_grad_batches", 1), device)
    if variant.compiled:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        module.net.compile()
    single_at = layout.warmup + layout.length // 2
    mode: Mode
    if variant.idle_hooks:
        mode = IdleHooks(name)
    elif variant.control:
        mode = CallbackMode(name, Callback())
    else:
        limits = {"max_scalars": 10**6} if variant.all_scalars else {}
        mode = monitor_mode(name, variant.rules(), layout, single_at if variant.single else None, **limits)
    row: dict[str, Any] = {
        "workload": workload.name,
        "title": workload.title,
        "variant": name,
        "kernel": output.kernel_in_use(device),
    }
    try:
        validation = DataLoader(Cycle([workload.batch()], 1), batch_size=None) if variant.validated else None
        clock = fit(
            module,
            loader,
            layout,
            [mode],
            always=variant.always(),
            validation=validation,
            options={**workload.options, **variant.options},
            device=device,
        )
        if variant.compiled:
            row["graph_breaks"] = sum(torch._dynamo.utils.counters["graph_break"].values())
    except UnsupportedError as error:
        return {**row, "skipped": f"refused: {error}"}
    except Exception as error:
        if not variant.compiled:
            raise
        return {**row, "skipped": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}  # no compiler, say
    finally:
        if variant.compiled:
            torch._dynamo.reset()
    base, watched = clock.blocks(OFF), clock.blocks(name, skipped=(single_at, single_at + 1) if variant.single else ())
    row |= figures(clock, name)
    if variant.single:
        row.pop("overhead", None)  # of one step in a hundred it is the share of all
        return {**row, **every_nth(clock.at(name, single_at), clock.at(name, single_at + 1), base, watched)}
    return {**row, **asdict(compare(watched, base))}


def figures(clock: Clock, name: str) -> dict[str, Any]:
    """What a row says of a mode beside its ratio.

    Args:
        clock: of the fit.
        name: of the mode.
    """
    layout = clock.layout
    row: dict[str, Any] = {
        "step_ms": statistics.median(statistics.median(block) for block in clock.blocks(OFF)) * 1e3,
        "rounds": layout.rounds,
        "steps_in_block": layout.length,
        # What the logger still had to write when the block ended: background work that no step was charged for.
        "drain_ms_per_step": statistics.median(clock.drained[name]) * 1e3 / layout.block,
    }
    reported = [
        value
        for step, value in clock.overhead.items()
        if layout.mode_at(step) == name and layout.index_in_block(step) >= layout.warmup
    ]
    if reported:
        row["overhead"] = statistics.median(reported)
    return row


def every_nth(single: list[float], after: list[float], base: list[list[float]], idle: list[list[float]]) -> dict[str, Any]:
    """The cost of one watched step in a hundred, put together from its parts.

    A ratio of 1.001 cannot be read off step times that vary by percents; its parts can: what the step and the one after it,
    which takes the hooks off, take longer, spread over a hundred, and what the ninety-nine others take longer.

    Args:
        single: seconds of the watched steps.
        after: seconds of the steps after them.
        base: steps without a monitor, by round.
        idle: steps with a monitor that does not watch them, by round.
    """
    unwatched = compare(idle, base)
    step = statistics.median(statistics.median(block) for block in base)
    extra = max(statistics.median(single) - step, 0.0) + max(statistics.median(after) - step, 0.0)
    share = extra / step / _EVERY
    spread = {key: value + share for key, value in asdict(unwatched).items() if key in ("median", "low", "high")}
    return {
        **spread,
        "quartiles": tuple(value + share for value in unwatched.quartiles),
        "unwatched": unwatched.median,
        "one_step_extra_ms": extra * 1e3,
        "extra_ms": unwatched.extra_ms + extra * 1e3 / _EVERY,
    }


def row_of(letter: str, name: str, seconds: float, sizes: str = "cpu", device: str = "cpu") -> dict[str, Any]:
    """The row of a workload and a variant.

    Args:
        letter: of the workload.
        name: of the variant.
        seconds: as for `layout_for`.
        sizes: a key of `SIZES`.
        device: `cpu` or `cuda`.
    """
    workload = SIZES[sizes][letter]
    batches = VARIANTS[name].options.get("accumulate_grad_batches", 1)
    least = 12 if output.full() else 6 if batches == 1 else 3
    layout = layout_for(replace(workload, step_ms=workload.step_ms * batches), (OFF, name), seconds, least)
    if VARIANTS[name].single:
        # Two of the steps are the watched one and its follower; and the difference is one in a thousand.
        layout = replace(layout, length=max(layout.length, 6), rounds=_SINGLE_ROUNDS * layout.rounds)
    return measure(workload, name, layout, device)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--workloads", default="A,B,C,D")
    parser.add_argument("--variants", default="everything")
    parser.add_argument("--seconds", type=float, default=40.0 if output.full() else 5.0)
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args(arguments)
    rows = []
    for letter, name in product(options.workloads.split(","), options.variants.split(",")):
        row = output.in_new_process(row_of, letter, name, options.seconds, options.sizes, options.device)
        rows.append(row)
        print(letter, name, row.get("skipped") or f"{row['median']:.3f} [{row['low']:.3f}, {row['high']:.3f}]", flush=True)
        output.write(options.name or "alternating", rows, options.out)  # now: the next one may be stopped


if __name__ == "__main__":
    main()
