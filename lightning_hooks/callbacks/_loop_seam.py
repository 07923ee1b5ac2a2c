"""The seam of the callbacks to plain loops: a callback is asked once for each block what it does there."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from lightning_hooks.errors import RuleError

if TYPE_CHECKING:
    from lightning_hooks.callbacks._job import Job
    from lightning_hooks.engine.plain_loop.part import LoopPart
    from lightning_hooks.engine.plain_loop.run import LoopRun


class ServesLoops:
    """Lets a callback take part in an `instrument` block, which needs no Lightning."""

    _job: Job[Any, Any]
    _current_run: object | None
    _loop: ReferenceType[LoopPart] | None = None  # the part in the last block

    def in_loop(self, run: LoopRun) -> LoopPart:
        """What the callback does in a block of `instrument`, whose seam this is; a Trainer does not call it.

        Args:
            run: the block.

        Raises:
            RuleError: a rule or an option is not valid in this model, or in a plain loop; or the callback is in use.
        """
        job, name = self._job, type(self).__name__
        if self._current_run is not None or self._loop_part is not None:
            raise RuleError(f"{name} is in use by a run that has not ended; give each Trainer and each block one of its own")
        with job.naming_origin():
            part = job.in_loop(run)
        if part.contribution is None:
            warnings.warn(
                f"{job.label or f'{name}: '}no rule matches anything ({job.rules}); it does nothing in this run", stacklevel=4
            )
        self._loop = ref(part)
        return part

    @property
    def _loop_part(self) -> LoopPart | None:
        """What it does in a block of `instrument` that has not ended; None outside such a block."""
        part = None if self._loop is None else self._loop()
        return None if part is None or part.is_over else part
