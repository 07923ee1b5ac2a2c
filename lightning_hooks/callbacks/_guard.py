"""What a run puts into the Trainer and the module: a first callback that removes the hooks in time, and a wrapped method."""

from __future__ import annotations

import types
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from weakref import ref

from typing_extensions import override

from lightning_hooks.callbacks._lightning import Callback
from lightning_hooks.callbacks._ours import our_callbacks
from lightning_hooks.callbacks._trainer import all_callbacks
from lightning_hooks.engine.participants.phases import RunPhase
from lightning_hooks.hooks import Handles, for_each

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer
    from lightning_hooks.callbacks._run import LightningRun


class HooksGuard(Callback):
    """The first callback of a trainer while hooks may be on its model: it removes them before others can copy the model.

    Lightning calls callbacks in their order, and an error in one keeps it from calling those behind it: only the first one
    is certain to hear that a batch, or the run, is over. The hook manager cannot know it by itself: with manual optimization
    further backwards may follow any optimizer step, and with gradient accumulation a batch has no step. Lightning's own tuner
    puts its callbacks first in the same way.
    """

    def __init__(self, trainer: Trainer, run: LightningRun) -> None:
        self._trainer: Callable[[], Trainer | None] = ref(trainer)
        self._run: Callable[[], LightningRun | None] = ref(run)
        self._given: list[Callback] = []

    def __repr__(self) -> str:
        return "<HooksGuard of lightning_hooks: takes hooks off the model before other callbacks are called>"

    @property
    @override
    def state_key(self) -> str:
        """In a profiler's report; it has no state."""
        return "lightning_hooks.HooksGuard"

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to no run."""
        return {"_trainer": _none, "_run": _none, "_given": []}

    def install(self) -> None:
        """Replace the list of callbacks instead of changing it: Lightning may be iterating over it."""
        trainer: Any = self._trainer()
        self._given = trainer.callbacks
        trainer.callbacks = [self, *self._given]

    def remove(self) -> None:
        """Restore the given list, unless it was changed since; a second call does nothing."""
        trainer: Any = self._trainer()
        given, self._given = self._given, []
        if trainer is not None and any(callback is self for callback in trainer.callbacks):
            left = [callback for callback in trainer.callbacks if callback is not self]
            same = len(left) == len(given) and all(one is other for one, other in zip(left, given, strict=True))
            trainer.callbacks = given if same else left

    def _end_batch(self, *args: Any, **kwargs: Any) -> None:
        run = self._run()
        if run is not None:
            run.hook_manager.end_batch()

    on_train_batch_end = on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _end_batch
    on_validation_start = on_test_start = on_predict_start = _end_batch
    on_train_epoch_end = _end_batch  # an epoch may be cut short within a batch
    # Lightning skips what it cannot call. It opens a profiler around every call of a callback, also of an empty method.
    on_train_batch_start: Any = None
    on_before_zero_grad = on_before_backward = on_after_backward = on_before_optimizer_step = on_train_batch_start

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Only a copy is here before a run: it goes."""
        trainer.callbacks = [callback for callback in all_callbacks(trainer) if callback is not self]  # type: ignore[attr-defined]

    def _end(self) -> None:
        run = self._run()
        if run is not None:
            run.end()

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the fit: end the run."""
        self._end()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called last: end the run, whatever was skipped."""
        self._end()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the hooks from the model, whatever other callbacks do now."""
        self._end_batch()
        run = self._run()
        removed = [] if run is None else run.removed()
        for_each(lambda callback: callback.on_exception(trainer, pl_module, exception), [*our_callbacks(trainer), *removed])


def _none() -> None:
    """The reference of a copy, which belongs to no run."""


class WrappedHook:
    """A bound method of the LightningModule, wrapped for a batch: after it the gradients are final.

    Lightning clips in `configure_gradient_clipping`. Without automatic optimization the module's own `on_before_optimizer_step`
    is the last one called. The optimizer is the first argument of both. Copies and pickles of the module get the plain method
    bound to the copy.

    Args:
        module: whose method.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = ref(module)
        self._name = ""
        self._phase: Callable[[], RunPhase | None] = _none
        self._had: Any = None
        self._method: Any = None

    @property
    def __code__(self) -> Any:
        """Lightning compares it to see whether a user overrode the method."""
        return (self._had or self._method).__code__

    def install(self, handles: Handles, phase: Callable[[], RunPhase | None]) -> None:
        """Wrap the method until the handles are closed.

        Args:
            handles: are given this one.
            phase: gives what runs a phase, or None if the run is gone.
        """
        module = self._module()
        assert module is not None
        self._phase = phase
        self._name = "configure_gradient_clipping" if module.automatic_optimization else "on_before_optimizer_step"
        handles.keep(self)
        self._had = module.__dict__.get(self._name)  # a user's
        self._method = getattr(type(module), self._name)
        module.__dict__[self._name] = self

    def remove(self) -> None:
        """Restore the method; a second call does nothing."""
        module = self._module()
        if module is not None and module.__dict__.get(self._name) is self:
            del module.__dict__[self._name]
            if self._had is not None:
                module.__dict__[self._name] = self._had

    def __call__(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if self._had is not None:
            result = self._had(optimizer, *args, **kwargs)
        else:
            result = self._method(self._module(), optimizer, *args, **kwargs)
        phase = self._phase()
        if phase is not None:
            phase("final", optimizer, False)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The plain method, bound to the copy of the module that is being made."""
        if self._had is not None:
            return self._had
        module: Any = self._module()
        return types.MethodType(self._method, memo.get(id(module), module))

    def __reduce__(self) -> Any:
        """The plain method, bound to the module that is being pickled; nothing of this package."""
        if self._had is not None:
            return itemgetter(0), ((self._had,),)
        return getattr, (self._module(), self._name)
