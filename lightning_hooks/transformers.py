"""`HooksTrainerCallback`: `instrument` in the `Trainer` of Hugging Face's `transformers`, which only this module imports."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lightning_hooks.callbacks._default_folder import LOGS
from lightning_hooks.callbacks.instrument import default_callbacks
from lightning_hooks.engine.lookouts.planned import Planned
from lightning_hooks.engine.plain_loop.checks import as_callbacks, check_calls
from lightning_hooks.engine.plain_loop.part import InLoop
from lightning_hooks.engine.plain_loop.session import Instrument


class HooksTrainerCallback(TrainerCallback):
    """Watch and change a model in the Trainer of `transformers`; each step of the optimizer is a step.

    Between two steps the model has no hooks, so evaluation and checkpoints are those of a run without this callback. The loss
    is that of the model's own output; a Trainer with another loss has none. A run that resumes continues the numbers of the
    steps. If training raises, call `close()`, because `transformers` does not tell callbacks.

    Args:
        callbacks: callbacks of this package, in order; as of `instrument`.
        calls: as of `instrument`.
        folder: as of `instrument`.
        logdir: as of `instrument`; without a list of callbacks and `folder`, by default `lightning_hooks_logs` in the
            `output_dir` of the Trainer.

    Attributes:
        watched: the `Instrument` of the training under way, or of the last one; None before the first.

    Raises:
        RuleError: the list holds something else; when training begins also what `instrument` raises.

    Example:
        >>> from lightning_hooks import StatsMonitor, Watch
        >>> HooksTrainerCallback([StatsMonitor([Watch(params="*", tensors="grad", stats="norm")])]).watched is None
        True
    """

    def __init__(
        self,
        callbacks: InLoop | Sequence[InLoop] | None = None,
        *,
        calls: str = "training",
        folder: str | os.PathLike[str] | None = None,
        logdir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._callbacks = as_callbacks(default_callbacks() if callbacks is None else callbacks)
        check_calls(calls)
        self._options: dict[str, Any] = {"calls": calls, "folder": folder, "logdir": logdir}
        self._has_no_options = callbacks is None and folder is None and logdir is None
        self.watched: Instrument | None = None
        self._losses: list[Tensor] = []
        self._is_sum = False
        self._began = 0
        self._handle: Any = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called when model and optimizer are ready: resolve the rules, and check them."""
        self.close()
        given = {"optimizer": kwargs["optimizer"], "first_step": state.global_step}
        given["planned"] = _planned(args, state, kwargs.get("lr_scheduler"))
        options = dict(self._options)
        if self._has_no_options:
            options["logdir"] = os.path.join(args.output_dir or "", LOGS)
        self.watched = Instrument(kwargs["model"], self._callbacks, **given, **options)
        self.watched.__enter__()
        self.watched.suspend()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called before the first batch of a step: register the hooks."""
        if self.watched is not None:
            self._losses.clear()
            self._handle = kwargs["model"].register_forward_hook(self._keep_loss, with_kwargs=True)
            self._began = self.watched.next_step
            self.watched.resume()

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called after a batch that is not the last of its step: the next one begins."""
        if self.watched is not None:
            self.watched.resume()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called before the optimizer steps: note the loss of all batches of the step."""
        if self.watched is not None and self._losses:
            total = sum(self._losses[1:], self._losses[0])
            self.watched.note_loss(total if self._is_sum else total / len(self._losses))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called after the optimizer has stepped, before evaluation and checkpoints: remove the hooks, or stop training."""
        self._remove()
        if self.watched is not None:
            if self.watched.next_step == self._began:
                self.watched.resume(again=True)
            self.watched.suspend()
            if self.watched.stopped is not None:
                control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called after training: end the block."""
        self.close()

    def close(self) -> None:
        """Remove all hooks, and end the block. Call it if training was ended by an exception, of which no callback is told."""
        self._remove()
        self._losses.clear()
        if self.watched is not None:
            self.watched.__exit__(None, None, None)

    def _remove(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _keep_loss(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.requires_grad:
            # If the model is given the number of items of the whole step, it divides by that: the losses of its batches add up.
            self._is_sum = kwargs.get("num_items_in_batch") is not None
            self._losses.append(loss.detach().mean())


def _planned(args: TrainingArguments, state: TrainerState, scheduler: Any) -> Callable[[], Sequence[Planned]]:
    """The schedule that the Trainer advances after each step; none on several ranks, for each of which it may be advanced."""
    scheduler = getattr(scheduler, "scheduler", scheduler)
    if not isinstance(scheduler, LRScheduler) or args.world_size > 1 or state.max_steps <= 0:
        return tuple
    known, steps = ref(scheduler), state.max_steps
    epochs = int(args.num_train_epochs) if args.max_steps <= 0 and args.num_train_epochs == int(args.num_train_epochs) else None

    def planned() -> Sequence[Planned]:
        alive = known()
        return () if alive is None else (Planned(alive, False, steps, steps, epochs, args.gradient_accumulation_steps),)

    return planned
