"""The run of a Trainer for consumers: its facts, and their requests, which all ranks fulfil at the end of the same step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref

from typing_extensions import override

from lightning_hooks.callbacks._trainer import host_loss_scale, in_fit, lightning_logger, optimizers_of
from lightning_hooks.engine.participants.facts import facts_of_optimizers
from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.records.run_context import RunContext, RunFacts, check_reason, checkpoint_name
from lightning_hooks.rules.fields import check_local
from lightning_hooks.tensorboard.own_board import OwnBoard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from lightning_hooks.callbacks._lightning import Trainer


class TrainerContext(RunContext):
    """The run of a Trainer, for the consumers of one monitor.

    One rank may publish a view earlier than other ranks, for example if its code reads `latest` before the copy from a device
    has arrived. So a request is only noted, and the monitor fulfils it when all ranks have published the same views.

    Args:
        trainer: held by a weak reference.
        folder: where files of the run go, the same on every rank; None if it is not on this machine.
    """

    def __init__(self, trainer: Trainer, folder: Path | None) -> None:
        super().__init__(folder)
        self._trainer = ref(trainer)
        self._is_stopped = False
        self._reasons: list[str] = []
        self._checkpoints: list[str] = []
        self._focus = 0

    @property
    @override
    def facts(self) -> RunFacts:
        trainer = self._trainer()
        if trainer is None:
            return RunFacts()
        return RunFacts(
            optimizers=facts_of_optimizers(optimizers_of(trainer), trainer.lightning_module) if in_fit(trainer) else (),
            precision=str(trainer.precision),
            accumulate=trainer.accumulate_grad_batches,
            rank=trainer.global_rank,
            ranks=trainer.world_size,
            loss_scale=host_loss_scale(trainer),
        )

    @override
    def stop(self, reason: str) -> None:
        check_reason(reason)
        if not self._is_stopped:
            self._is_stopped = True
            self._reasons.append(reason)

    @override
    def save_checkpoint(self, name: str) -> None:
        name = checkpoint_name(name)
        if self.folder is None:
            raise UnsupportedError(
                f"save_checkpoint: {name!r} has no folder, because the Trainer's log folder is not on this machine; give the "
                "Trainer a local default_root_dir"
            )
        self._checkpoints.append(name)

    @property
    def has_requests(self) -> bool:
        """Whether there are requests that `fulfil` has not handled."""
        return bool(self._reasons or self._checkpoints or self._focus)

    def focus(self, steps: int) -> None:
        """Ask the monitor to measure at every one of the next steps."""
        self._focus = max(self._focus, steps)

    def take_focus(self) -> int:
        """The number of steps for which a consumer has asked to focus; 0 afterwards."""
        steps, self._focus = self._focus, 0
        return steps

    def fulfil(self, trainer: Trainer) -> None:
        """Stop and save as requested. All ranks must call `fulfil`, when they have published the same views."""
        # Saving a checkpoint publishes pending views, and a consumer of these views may make further requests.
        while self._reasons or self._checkpoints:
            if self._reasons:
                self._stop(trainer, self._reasons.pop(0))
            else:
                assert self.folder is not None
                trainer.save_checkpoint(self.folder / self._checkpoints.pop(0))

    def _stop(self, trainer: Trainer, reason: str) -> None:
        message = f"a consumer of StatsMonitor stops the fit: {reason}"
        if in_fit(trainer):
            trainer.should_stop = True
        else:
            message = f"a consumer of StatsMonitor asked to stop, but only a fit can be stopped: {reason}"
        if trainer.is_global_zero:
            lightning_logger(trainer).info(message)


def folder_of_run(trainer: Trainer, loggers: Sequence[Any], *, has_own: bool) -> Path | None:
    """Where files of a run go: the folder of an event file of this package, or else the Trainer's log folder. Collective.

    Args:
        trainer: the Trainer of the run.
        loggers: the loggers that the monitor writes to; empty on ranks other than 0.
        has_own: whether one of them may be an event file of this package; the same on every rank.
    """
    folder = Path(root).resolve() if _is_local(root := trainer.log_dir or trainer.default_root_dir) else None
    if has_own:
        own = next((logger.folder for logger in loggers if isinstance(logger, OwnBoard)), folder)
        folder = trainer.strategy.broadcast(own)
    return folder


def leaves_files(trainer: Trainer, loggers: Sequence[Any]) -> bool:
    """Whether a run is asked to leave files: by a logger, a `logdir`, or a `default_root_dir` that is not the current folder.

    Args:
        trainer: the Trainer of the run.
        loggers: the loggers that the monitor writes to, among them an event file of this package.
    """
    return bool(trainer.loggers or loggers) or Path(trainer.default_root_dir).resolve() != Path.cwd()


def _is_local(folder: str) -> bool:
    try:
        check_local("folder", folder, "")
    except RuleError:
        return False
    return True
