"""`ActivationCapture`: writes feature maps and embeddings to disk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._capturing import LOCAL, Capturing
from lightning_hooks.callbacks._checks import options_repr
from lightning_hooks.capture import CaptureWriter, reduction
from lightning_hooks.errors import RuleError
from lightning_hooks.rules import FORWARD_TENSORS, Watch, parse_tensor
from lightning_hooks.rules.fields import as_stages, check_flag, check_local
from lightning_hooks.rules.schedule import every_n
from lightning_hooks.rules.tensors import check_tensor

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


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

    _job: Capturing

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
        super().__init__(Capturing(self))
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
        check_local("folder", folder, LOCAL)
        self.folder = folder
        check_flag("tensorboard", tensorboard)
        self.tensorboard = tensorboard
        self.strict = strict
        CaptureWriter.check("", batches_per_file=batches_per_file, dtype=dtype, max_bytes=max_bytes)

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        return options_repr(self, ActivationCapture, stages=("train",))

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: note its number."""
        self._job.note_batch(trainer, "train", batch_idx)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    @override
    def _start_batch(
        self, stage: str, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._job.note_batch(trainer, stage, batch_idx, dataloader_idx)
        super()._start_batch(stage, trainer, pl_module, batch, batch_idx, dataloader_idx)
