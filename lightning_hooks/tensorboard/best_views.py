"""The step views of the monitor of a run that watched most of what a reader needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from lightning_hooks.records.step_view import StepView
from lightning_hooks.tensorboard.reading import Run
from lightning_hooks.tensorboard.views import ReadMonitor

HEALTH_PREFIX = "health/"
"""The prefix of a HealthMonitor's tables, unless the user has given another one."""


def best_views(run: Run, tensors: Collection[str]) -> Iterator[StepView]:
    """The views of the training monitor that watched most of some tensors.

    Args:
        run: the run.
        tensors: the tensors that are needed.

    Raises:
        RuleError: the run holds no step views.
    """
    monitors = run.monitors()
    if not monitors:
        # Without a monitor, views() raises an error that says why there are no step views.
        return run.views()

    def worth(monitor: ReadMonitor) -> tuple[int, bool, bool]:
        known = {*tensors}.intersection(monitor.rows.tensors)
        return len(known), "units" in monitor.rows.kept, monitor.prefix == HEALTH_PREFIX

    best = max(monitors, key=worth)
    return run.views(prefix=best.prefix, monitor=best.number)
