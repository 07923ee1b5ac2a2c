"""`ActivationCapture`: writes feature maps and embeddings to disk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._checks import (
    Earlier,
    Setting,
    options_repr,
    refuse_common_folder,
    refuse_empty_loaders,
    refuse_for_strategy,
)
from lightning_hooks.callbacks._loggers import LoggerWriter, logger_writer
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._trainer import current_step, remembered, sample_indices
from lightning_hooks.capture import CaptureWriter, reduction
from lightning_hooks.capture.writer import can_be_stored
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.inspecting.match_report import MatchLine, capture_report
from lightning_hooks.engine.watching.capture_participant import CaptureParticipant
from lightning_hooks.errors import RuleError
from lightning_hooks.rules import FORWARD_TENSORS, Watch, parse_tensor
from lightning_hooks.rules.fields import as_stages, check_flag, check_local
from lightning_hooks.rules.patterns import Target, named_modules
from lightning_hooks.rules.patterns import select as matching
from lightning_hooks.rules.schedule import every_n
from lightning_hooks.rules.tensors import check_tensor
from lightning_hooks.tensorboard.own_board import new_folder

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer

Targets: TypeAlias = list[Target[nn.Module]]
_LOCAL = "give a local one, folder='…'"
_SHOWN = 512  # the most samples of a batch that are shown in TensorBoard


class ActivationCapture(HooksCallback):
    """Write the outputs or inputs of matched modules to disk; `load_capture` reads them back lazily.

    Each rank writes one safetensors file per `batches_per_file` batches, and an index. A killed run leaves only complete
    files, and the index never names a missing file. A full disk, or reaching `max_bytes`, stops the capture with one
    warning; the run continues. Only floating-point tensors are captured. If a module returns several tensors, or is called
    several times, each tensor is a separate entry. The step of an entry is the training step in every stage, as in
    `self.log`. In stage `predict`, entries also have the indices of their samples.

    Args:
        modules: patterns of module names.
        tensor: `output` (default) or `input`, also one part (`output[0]`); in training also `output_grad` and `input_grad`,
            or `inner_output_grad` and `inner_input_grad`: gradients of all backward passes except that of the loss.
        types: only modules of these classes; default: all.
        select: as for `Watch`: `all` (default), `leaves` or `layers`.
        every_n_steps: a schedule, as for `StatsMonitor`; in stages other than `train` it counts batches. Default: every step
            if `stages` is given. At least one of the two is required.
        stages: any of `train`, `validate`, `test`, `predict`; default `train`.
        reduce: the reduction of a tensor [N, …] per sample: None (default: keep all), `mean`, `sum`, `min`, `max`,
            `abs_max`, `norm`, `rms`, `std`, `channel_mean`, `token_mean`.
        dtype: the dtype to store, for example `float16`; default: that of the tensor.
        max_bytes: limit for the total size of a rank's files, in bytes; default: no limit.
        batches_per_file: the number of batches per file, which are held in host memory until then; default 32.
        folder: where to write, on this machine; default: `captures` in the logger's folder, or `captures/run_<n>` if the
            logger has no separate folder for each run.
        tensorboard: whether to show the last captured batch in TensorBoard at the end of a run or a training epoch: feature
            maps as images, vectors [N, D] in the projector. Default False.
        strict: whether patterns that match nothing are an error (default) or a warning.

    Raises:
        RuleError: an invalid value; at the start of a run also patterns that match nothing, or an unusable folder.
        UnsupportedError: at the start of a run, if safetensors is not installed.

    Example:
        >>> ActivationCapture(modules="encoder", stages=["predict"], reduce="token_mean", dtype="float16")
        ActivationCapture(modules=('encoder',), stages=('predict',), reduce='token_mean', dtype='float16')
    """

    def __init__(
        self,
        modules: str | Sequence[str],
        *,
        tensor: str = "output",
        types: str | Sequence[str] | None = None,
        select: str = "all",
        every_n_steps: int | Sequence[int] | Mapping[str, int] | None = None,
        stages: str | Sequence[str] | None = None,
        reduce: str | None = None,
        dtype: str | torch.dtype | None = None,
        max_bytes: int | None = None,
        batches_per_file: int = 32,
        folder: str | os.PathLike[str] | None = None,
        tensorboard: bool = False,
        strict: bool = True,
    ) -> None:
        super().__init__()
        if modules is None:
            raise RuleError("modules must be a pattern or a list of patterns, got None")
        check_tensor(tensor, of_module=True, where="tensor")
        rule = Watch(modules=modules, tensors=[tensor], types=types, select=select, strict=strict)
        assert rule.modules is not None
        self.modules = (rule.modules,) if isinstance(rule.modules, str) else tuple(rule.modules)
        self.tensor = tensor
        self.types = rule.types
        self.select = select
        if every_n_steps is None and stages is None:
            raise RuleError("give every_n_steps=… to capture while training, or stages=['predict'], or both")
        self.every_n_steps = every_n_steps
        self.schedule = every_n(1 if every_n_steps is None else every_n_steps, "every_n_steps")
        self.stages = ("train",) if stages is None else as_stages(stages)
        if parse_tensor(tensor)[0] not in FORWARD_TENSORS and set(self.stages) != {"train"}:
            raise RuleError(f"stages: {tensor!r} is a gradient, which there is in training only; got {list(self.stages)}")
        self.reduce = reduce
        try:
            reduction(reduce)
        except RuleError as error:
            raise RuleError(f"reduce: {error}") from error
        self.dtype = dtype
        self.max_bytes = max_bytes
        self.batches_per_file = batches_per_file
        check_local("folder", folder, _LOCAL)
        self.folder = folder
        check_flag("tensorboard", tensorboard)
        self.tensorboard = tensorboard
        self.strict = strict
        CaptureWriter.check("", batches_per_file=batches_per_file, dtype=dtype, max_bytes=max_bytes)
        self._files: CaptureWriter | None = None
        self._loggers: LoggerWriter | None = None  # writes the last batch to TensorBoard; None if there is none to write to
        self._step = 0
        self._batch: tuple[str, int, int, Sequence[int] | None] = ("train", 0, 0, None)  # stage, batch, loader, samples
        self._shown: dict[str, dict[str, tuple[Tensor, Sequence[int] | None]]] = {}  # by stage and name: tensor, samples

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        return options_repr(self, ActivationCapture, stages=("train",))

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to no run."""
        return {**super().__getstate__(), "_files": None, "_loggers": None, "_shown": {}}

    @override
    def _refuse_setting(self, setting: Setting) -> None:
        refuse_for_strategy(setting, [(f"{self._label}tensor", None, (self.tensor,))])
        # All ranks agree on the default folder in a collective, which would wait forever for a rank that skips the run.
        if self.folder is None and setting.function != "fit":
            refuse_empty_loaders(setting, self.stages)

    @override
    def _resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Targets:
        return self._targets(model)

    @override
    def _check_resolved(self, resolved: Targets, setting: Setting, earlier: Earlier) -> Earlier:
        if not resolved:
            return earlier
        folder = self._given_folder()
        refuse_common_folder(folder, earlier.captures, f"{self._label}folder")
        return earlier._replace(captures=(*earlier.captures, folder))

    @override
    def _lines(self, resolved: Targets) -> list[MatchLine]:
        return capture_report(resolved, self.tensor, f"reduce={self.reduce!r}" if self.reduce else "all of it")

    def _targets(self, model: nn.Module) -> Targets:
        how: dict[str, Any] = {"types": self.types, "among": self.select, "strict": self.strict}
        return list(matching(named_modules(model), self.modules, **how, where=f"{self._label}modules"))

    @property
    @override
    def _label(self) -> str:
        return super()._label or "ActivationCapture: "

    @override
    def _contribute(self, trainer: Trainer, run: LightningRun, resolved: Targets) -> Contribution | None:
        if not resolved:  # Every rank returns here or none, since patterns match the same modules on all ranks.
            return None
        folder = self._folder(trainer)
        run.begin_capture(folder)
        self._files = CaptureWriter(folder, trainer.global_rank, self.batches_per_file, self.dtype, self.max_bytes)
        writer = logger_writer(self, trainer, run)
        self._loggers = writer if self.tensorboard and writer.loggers else None  # None on ranks other than 0
        self._shown = {}
        participant = CaptureParticipant(resolved, self.tensor, self.stages, self.schedule, reduction(self.reduce), self._take)
        return Contribution(type(self).__name__, self._label, participants=[participant])

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
        check_local("folder", root, _LOCAL)
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
        return None if self.folder is None else Path(self.folder).expanduser().resolve()

    @property
    @override
    def _rules(self) -> str:
        return f"modules={self.modules!r}"

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
        if self._loggers is not None and tensor.dim() > 1 and can_be_stored(tensor):
            self._shown.setdefault(stage, {})[name] = (tensor[:_SHOWN].clone(), samples)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: note its number."""
        self._step, self._batch = current_step(trainer), ("train", batch_idx, 0, None)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    @override
    def _start_batch(
        self, stage: str, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._step = current_step(trainer)
        self._batch = (stage, batch_idx, dataloader_idx, sample_indices(trainer, stage, batch_idx, dataloader_idx))
        super()._start_batch(stage, trainer, pl_module, batch, batch_idx, dataloader_idx)

    @override
    def _after_batch(self) -> None:
        if self._files is not None:
            self._files.end_batch()

    @override
    def _after_run(self, trainer: Trainer, stage: str) -> None:
        self._show(trainer, stage)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch of training."""
        super().on_train_epoch_end(trainer, pl_module)
        self._show(trainer, "train")

    def _show(self, trainer: Trainer, stage: str) -> None:
        last = self._shown.pop(stage, None)
        if self._loggers is None or self._current_run is None or not last:
            return
        self._loggers.skip_failed(self._current_run.failed_loggers)
        self._loggers.write_capture(last, f"captures_{stage}", self._step)
        if not self._loggers.loggers:
            self._loggers = None

    @override
    def _detach(self, error: BaseException | None = None) -> None:
        try:
            super()._detach(error)
        finally:
            self._shown = {}
            self._loggers = None
            if self._files is not None:
                self._files.close()
                self._files = None
