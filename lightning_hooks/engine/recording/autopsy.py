"""Run a step again under a dispatch mode, and name the operation that made what is not finite in its loss or gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.examination import Examination, bad_tensor_without_mode, run_step
from lightning_hooks.engine.recording.explaining import Autopsy as Autopsy
from lightning_hooks.errors import shortened
from lightning_hooks.recorder.record import Verdict
from lightning_hooks.snapshot.generators import Generators


def autopsy(
    model: nn.Module,
    step: Callable[[], Tensor | None],
    *,
    batch: object = None,
    update: Callable[[], object] | None = None,
    optimizers: Sequence[Optimizer] = (),
    limit: float = 60.0,
) -> Autopsy:
    """Run a step again, and tell the origin of what is not finite in its loss, a gradient or a parameter.

    The step runs once, under a dispatch mode that looks at the result of every operator; compiled code runs eagerly. If nothing
    is bad, it runs once more as it is. Nothing is restored: call it inside `restored(model, …)`, with the generators as they
    were when the step began. Hooks and modes are removed also if the step raises.

    Args:
        model: names the modules and parameters. If it is wrapped, as by DDP, pass the module inside.
        step: runs forward and backward once; returns the loss, or None if it is not known.
        batch: what the step reads, so that a bad batch is told from a bad operation.
        update: updates the parameters once; runs if the step gave good numbers.
        optimizers: only gradients of their parameters count, and their state is looked at; if empty, all gradients count.
        limit: seconds after which the step is stopped; the result then says so.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 1)
        >>> def step():
        ...     loss = (model(torch.ones(4, 2)) * 0).log().mean()
        ...     loss.backward()
        ...     return loss
        >>> found = autopsy(model, step)
        >>> str(found.verdict), found.operation.name, found.operation.inputs[0].abs_max
        ('forward', 'aten.log', 0.0)
    """
    generators = Generators()
    examination = Examination(model, batch, optimizers, limit)
    loss: list[Tensor | None] = [None]
    with examination.following():
        loss[0] = run_step(step)
    bad = examination.bad_after_step(loss[0])
    if bad is None and update is not None and not examination.notes:
        with examination.following(is_update=True):
            run_step(update)
    found = examination.autopsy(bad or examination.bad_after_update())
    if found.reproduced or not found.has_ended or found.seconds > limit / 2:
        return found
    again = _run_as_it_is(model, step, optimizers, generators, found.seconds)
    return again.with_notes(found.notes, again.seconds)


def _run_as_it_is(
    model: nn.Module,
    step: Callable[[], Tensor | None],
    optimizers: Sequence[Optimizer],
    generators: Generators,
    seconds: float,
) -> Autopsy:
    """Run the step without the mode, in case that compiled or fused code gives other numbers than single operators."""
    generators.restore()
    began = time.perf_counter()
    try:
        loss = run_step(step)
    except Exception as error:
        note = f"the step raised {shortened(f'{type(error).__name__}: {error}', 300)}"
        return Autopsy(reproduced=False, notes=(note,), seconds=seconds + time.perf_counter() - began, has_ended=False)
    bad = bad_tensor_without_mode(model, optimizers, loss)
    seconds += time.perf_counter() - began
    if bad is None:
        return Autopsy(reproduced=False, seconds=seconds)
    is_loss = bad.kind == "loss"
    return Autopsy(
        reproduced=True,
        verdict=Verdict.FORWARD if is_loss else Verdict.BACKWARD,
        noticed=bad.shown,
        direction="forward" if is_loss else "backward",
        tensor=bad.kind,
        result=bad.result,
        notes=("the numbers are finite when each operator runs alone, so compiled or nondeterministic code gave the bad ones",),
        seconds=seconds,
    )
