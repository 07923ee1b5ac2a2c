"""What a run adds to the Trainer and the module: a first callback that removes hooks in time, and a wrapped method."""

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
from lightning_hooks.callbacks._trainer_type import undeclared
from lightning_hooks.engine.participants.phases import RunPhase
from lightning_hooks.hooks import Handles, for_each

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer
    from lightning_hooks.callbacks._run import LightningRun


class HooksGuard(Callback):
    """The first callback of a Trainer during a run: it removes the hooks before other callbacks can copy the model.

    Lightning calls callbacks in order, and after an error in one callback it does not call the later ones. So only the first
    callback is certain to be called at the end of a batch or of the run. The hook manager cannot detect the end of a batch:
    with manual optimization further backwards may follow any optimizer step, and with gradient accumulation a batch may have no
    step. Lightning's own tuner puts its callbacks first in the same way.
    """

    def __init__(self, trainer: Trainer, run: LightningRun) -> None:
        self._trainer: Callable[[], Trainer | None] = ref(trainer)
        self._run: Callable[[], LightningRun | None] = ref(run)
        self._given: list[Callback] = []

    def __repr__(self) -> str:
        return "<HooksGuard of lightning_hooks: removes hooks before other callbacks are called>"

    @property
    @override
    def state_key(self) -> str:
        """The name in a profiler's report; the guard has no state."""
        return "lightning_hooks.HooksGuard"

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to no run."""
        return {"_trainer": _none, "_run": _none, "_given": []}

    def install(self) -> None:
        """Put the guard first, in a new list of callbacks: Lightning may be iterating over the old one."""
        trainer = self._trainer()
        assert trainer is not None
        self._given = all_callbacks(trainer)
        undeclared(trainer).callbacks = [self, *self._given]

    def remove(self) -> None:
        """Restore the old list of callbacks, unless it was changed in the meantime; a second call does nothing."""
        trainer = self._trainer()
        given, self._given = self._given, []
        if trainer is not None and any(callback is self for callback in all_callbacks(trainer)):
            left = [callback for callback in all_callbacks(trainer) if callback is not self]
            same = len(left) == len(given) and all(one is other for one, other in zip(left, given, strict=True))
            undeclared(trainer).callbacks = given if same else left

    def _end_batch(self, *args: Any, **kwargs: Any) -> None:
        run = self._run()
        if run is not None:
            run.hook_manager.end_batch()

    @override
    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Called after a batch: remove the hooks, and end the step if it is over."""
        run = self._run()
        if run is not None:
            run.end_batch(trainer)

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _end_batch
    on_validation_start = on_test_start = on_predict_start = _end_batch
    # If an epoch is cut short within a batch, Lightning calls on_train_epoch_end without on_train_batch_end.
    on_train_epoch_end = _end_batch
    # None saves time: Lightning opens a profiler around every call of a callback, even of an empty method, but skips None.
    on_train_batch_start: Any = None
    on_before_zero_grad = on_before_backward = on_after_backward = on_before_optimizer_step = on_train_batch_start

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before a run, when only a copied Trainer still has a guard: remove the copy."""
        undeclared(trainer).callbacks = [callback for callback in all_callbacks(trainer) if callback is not self]

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
        """Called last: end the run, whichever other methods Lightning did not call."""
        self._end()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the run failed or was interrupted: remove the hooks, then call `on_exception` of our callbacks.

        Lightning calls it too, but not if another callback raises first.
        """
        self._end_batch()
        run = self._run()
        removed = [] if run is None else run.removed()
        for_each(lambda callback: callback.on_exception(trainer, pl_module, exception), [*our_callbacks(trainer), *removed])


def _none() -> None:
    """Stands for the weak references in a copy of the guard, which belongs to no run."""


class WrappedHook:
    """Wraps, during a batch, the last method of the LightningModule that Lightning calls before gradients are final.

    That is `configure_gradient_clipping`, in which Lightning clips; without automatic optimization it is the module's
    `on_before_optimizer_step`. Both have the optimizer as their first argument. Copies and pickles of the module get the
    original method, bound to the copy.

    Args:
        module: the module whose method is wrapped; held by a weak reference.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = ref(module)
        self._name = ""
        self._phase: Callable[[], RunPhase | None] = _none
        self._had: Any = None
        self._method: Any = None

    @property
    def __code__(self) -> Any:
        """The code of the original method, which Lightning compares to detect whether the user overrides the method."""
        return (self._had or self._method).__code__

    def install(self, handles: Handles, phase: Callable[[], RunPhase | None]) -> None:
        """Wrap the method until the handles are closed.

        Args:
            handles: remove the wrapper when they are closed.
            phase: returns the function that runs a phase, or None if the run was garbage-collected.
        """
        module = self._module()
        assert module is not None
        self._phase = phase
        self._name = "configure_gradient_clipping" if module.automatic_optimization else "on_before_optimizer_step"
        handles.keep(self)
        self._had = module.__dict__.get(self._name)  # a method that the user has set on the module object
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
        """A copy of the module gets the original method, bound to the copy."""
        if self._had is not None:
            return self._had
        module: Any = self._module()
        return types.MethodType(self._method, memo.get(id(module), module))

    def __reduce__(self) -> Any:
        """A pickle of the module gets the original method, bound to the unpickled module, and nothing of this package."""
        if self._had is not None:
            return itemgetter(0), ((self._had,),)
        return getattr, (self._module(), self._name)
