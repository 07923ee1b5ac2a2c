"""Capturing: the job of an `ActivationCapture`: writes captured tensors to disk, and shows the last batch in TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks._checks import (
    Earlier,
    Setting,
    refuse_common_folder,
    refuse_empty_loaders,
    refuse_for_strategy,
)
from lightning_hooks.callbacks._chosen_loggers import logger_writer
from lightning_hooks.callbacks._job import Job
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.callbacks._loop_capture import CapturePart, capture_folder
from lightning_hooks.callbacks._loop_writer import board_writer
from lightning_hooks.callbacks._trainer import current_step, remembered, sample_indices
from lightning_hooks.capture import CaptureWriter, reduction
from lightning_hooks.capture.writer import can_be_stored
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.inspecting.match_report import MatchLine, capture_report
from lightning_hooks.engine.plain_loop.checks import refuse_other_stages
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.watching.capture_participant import CaptureParticipant
from lightning_hooks.rules.fields import check_local
from lightning_hooks.rules.patterns import Target, named_modules
from lightning_hooks.rules.patterns import select as matching
from lightning_hooks.stats.processes import rank
from lightning_hooks.tensorboard.own_board import new_folder

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun
    from lightning_hooks.callbacks.capture import ActivationCapture

Targets: TypeAlias = list[Target[nn.Module]]
LOCAL: Final = "give a local one, folder='…'"
_SHOWN: Final = 512  # the most samples of a batch that are shown in TensorBoard


class Capturing(Job["ActivationCapture", Targets]):
    """The job of an `ActivationCapture`."""

    def __init__(self, owner: ActivationCapture) -> None:
        super().__init__(owner)
        self._files: CaptureWriter | None = None
        self._writer: LoggerWriter | None = None  # writes the last batch to TensorBoard; None if there is none to write to
        self._step = 0
        self._batch: tuple[str, int, int, Sequence[int] | None] = ("train", 0, 0, None)  # stage, batch, loader, samples
        self._shown: dict[str, dict[str, tuple[Tensor, Sequence[int] | None]]] = {}  # by stage and name: tensor, samples

    @override
    def for_copy(self) -> Self:
        copied = super().for_copy()
        copied._files, copied._writer, copied._shown = None, None, {}
        return copied

    @override
    def refuse_setting(self, setting: Setting) -> None:
        refuse_for_strategy(setting, [(f"{self.label}tensor", None, (self.owner.tensor,))])
        # All ranks agree on the default folder in a collective, which would wait forever for a rank that skips the run.
        if self.owner.folder is None and setting.function != "fit":
            refuse_empty_loaders(setting, self.owner.stages)

    @override
    def resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Targets:
        return self._targets(model)

    @override
    def check(self, resolved: Targets, setting: Setting, earlier: Earlier) -> Earlier:
        if not resolved:
            return earlier
        folder = self._given_folder()
        refuse_common_folder(folder, earlier.captures, f"{self.label}folder")
        return earlier._replace(captures=(*earlier.captures, folder))

    @override
    def lines(self, resolved: Targets) -> list[MatchLine]:
        return capture_report(
            resolved, self.owner.tensor, f"reduce={self.owner.reduce!r}" if self.owner.reduce else "all of it"
        )

    def _targets(self, model: nn.Module) -> Targets:
        how: dict[str, Any] = {"types": self.owner.types, "among": self.owner.select, "strict": self.owner.strict}
        return list(matching(named_modules(model), self.owner.modules, **how, where=f"{self.label}modules"))

    @property
    @override
    def label(self) -> str:
        return super().label or "ActivationCapture: "

    @override
    def contribute(self, trainer: Trainer, run: LightningRun, resolved: Targets) -> Contribution | None:
        if not resolved:  # Every rank returns here or none, since patterns match the same modules on all ranks.
            return None
        folder = self._folder(trainer)
        run.begin_capture(folder)
        writer = logger_writer(self.owner, trainer, run)
        # None on ranks other than 0.
        self._open(folder, trainer.global_rank, writer if self.owner.tensorboard and writer.loggers else None)
        self.run = run
        return self._contribution(resolved)

    @override
    def in_loop(self, run: LoopRun) -> LoopPart:
        owner, resolved = self.owner, self._targets(run.model)
        refuse_other_stages(owner.stages, f"{self.label}stages")
        folder, given = Path(), None
        if resolved:
            folder = capture_folder(run, self._given_folder(), self.label)
            refuse_common_folder(folder, run.captures, f"{self.label}folder")
            run.captures.append(folder)
            given = self._contribution(resolved)
        board = run.board_of(owner) if owner.tensorboard else None
        return CapturePart(
            given,
            run.first_step,
            opens=partial(self._open, folder, rank(), None if board is None else board_writer(board, owner.prefix)),
            begins=self._begin_step,
            ends=self._end_files,
            closes=self._close_in_loop,
        )

    def _begin_step(self, step: int) -> None:
        self._step, self._batch = step, ("train", step, 0, None)

    def _close_in_loop(self, error: BaseException | None) -> None:
        if error is None:
            self._show("train")
        self.close(error)

    def _contribution(self, resolved: Targets) -> Contribution:
        owner = self.owner
        participant = CaptureParticipant(
            resolved, owner.tensor, owner.stages, owner.schedule, reduction(owner.reduce), self._take
        )
        return Contribution(type(owner).__name__, self.label, participants=[participant])

    def _open(self, folder: Path, rank: int, loggers: LoggerWriter | None) -> None:
        owner = self.owner
        self._files = CaptureWriter(folder, rank, owner.batches_per_file, owner.dtype, owner.max_bytes)
        self._writer, self._shown = loggers, {}

    def _folder(self, trainer: Trainer) -> Path:
        """The given folder, or one in the log folder of the run; a new folder if the logger has no separate one for each run.

        Collective: every rank gets the same folder.

        Raises:
            RuleError: the log folder is not on this machine.
        """
        given = self._given_folder()
        if given is not None:
            return given
        root = trainer.log_dir or trainer.default_root_dir
        check_local("folder", root, LOCAL)
        folder = Path(root).resolve() / "captures"
        if getattr(next(iter(trainer.loggers), None), "log_dir", None) is not None:
            return folder
        kept = remembered(trainer)
        if kept.captures is None:
            run_folder = folder
            # If the folder cannot be created, the writer raises later, with the reason, on every rank.
            with suppress(OSError):
                run_folder = new_folder(folder) if trainer.is_global_zero else folder
            kept.captures = trainer.strategy.broadcast(run_folder)
        return kept.captures

    def _given_folder(self) -> Path | None:
        """The folder that the callback was given, absolute; None for the default folder."""
        return None if self.owner.folder is None else Path(self.owner.folder).expanduser().resolve()

    @property
    @override
    def rules(self) -> str:
        return f"modules={self.owner.modules!r}"

    def note_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Note the number of the batch that begins, for the entries of the index."""
        samples = None if stage == "train" else sample_indices(trainer, stage, batch_idx, dataloader_idx)
        self._step, self._batch = current_step(trainer), (stage, batch_idx, dataloader_idx, samples)

    def _take(self, name: str, tensor: Tensor) -> None:
        if self._files is None or self._files.stopped is not None:
            return
        stage, batch_idx, dataloader_idx, samples = self._batch
        self._files.add(
            name,
            tensor,
            # Give the training step in every stage: it tells one validation from the next.
            step=self._step,
            stage=stage,
            batch_idx=batch_idx,
            sample_indices=samples,
            dataloader_idx=dataloader_idx,
        )
        if self._writer is not None and tensor.dim() > 1 and can_be_stored(tensor):
            self._shown.setdefault(stage, {})[name] = (tensor[:_SHOWN].clone(), samples)

    @override
    def end_batch(self, trainer: Trainer, stage: str) -> None:
        self._end_files()

    def _end_files(self) -> None:
        if self._files is not None:
            self._files.end_batch()

    @override
    def end_stage(self, trainer: Trainer, stage: str) -> None:
        self._show(stage)

    @override
    def end_epoch(self, trainer: Trainer) -> None:
        self._show("train")

    def _show(self, stage: str) -> None:
        last = self._shown.pop(stage, None)
        if self._writer is None or not last:
            return
        if self.run is not None:
            self._writer.skip_failed(self.run.failed_loggers)
        self._writer.write_capture(last, f"captures_{stage}", self._step)
        if not self._writer.loggers:
            self._writer = None

    @override
    def close(self, error: BaseException | None) -> None:
        try:
            super().close(error)
        finally:
            self._shown = {}
            self._writer = None
            if self._files is not None:
                self._files.close()
                self._files = None
