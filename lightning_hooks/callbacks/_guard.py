"""What a run puts into the Trainer and the module: a first callback that removes the hooks in time, and a wrapped method."""

from __future__ import annotations

import types
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from weakref import ref

from typing_extensions import override

from lightning_hooks.callbacks._lightning import Callback
from lightning_hooks.callbacks._run import end_removed, note_callbacks, our_callbacks, owner_of, removed_from
from lightning_hooks.callbacks._trainer import all_callbacks, is_running
from lightning_hooks.engine.hook_manager import HookManager, live_hook_managers
from lightning_hooks.hooks import Handles, for_each

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


def begin_run(hook_manager: HookManager, trainer: Trainer) -> None:
    """Pause the hooks of outer runs on the same model, and install the guard; closing the hook manager undoes both."""
    for outer in live_hook_managers(hook_manager.model):
        if owner_of(outer) is not trainer and is_running(owner_of(outer)):
            hook_manager.run_handles.keep(_Interruption(outer)).install()
    note_callbacks(trainer, hook_manager)
    # Keep the guard before installing it: if Ctrl-C arrives in between, closing the hook manager still removes it.
    hook_manager.run_handles.keep(HooksGuard(trainer, hook_manager)).install()


def wrap_final(pl_module: LightningModule, hook_manager: HookManager) -> None:
    """Run the phase `final` where gradients are final; of several calls of this the first counts."""
    if hook_manager.install_final is None:
        # Lightning clips in this hook; without automatic optimization the module's own hook is the last one called.
        name = "configure_gradient_clipping" if pl_module.automatic_optimization else "on_before_optimizer_step"
        hook_manager.install_final = WrappedHook(pl_module, name, hook_manager).install


class HooksGuard(Callback):
    """The first callback of a trainer while hooks may be on its model: it removes them before others can copy the model.

    Lightning calls callbacks in their order, and an error in one keeps it from calling those behind it: only the first one
    is certain to hear that a batch, or the run, is over. The hook manager cannot know it by itself: with manual optimization
    further backwards may follow any optimizer step, and with gradient accumulation a batch has no step. Lightning's own tuner
    puts its callbacks first in the same way.
    """

    def __init__(self, trainer: Trainer, hook_manager: HookManager) -> None:
        self._trainer: Callable[[], Trainer | None] = ref(trainer)
        self._hook_manager: Callable[[], HookManager | None] = ref(hook_manager)
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
        return {"_trainer": _none, "_hook_manager": _none, "_given": []}

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
        hook_manager = self._hook_manager()
        if hook_manager is not None:
            hook_manager.end_batch()

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

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tear down callbacks that were removed from the list."""
        hook_manager = self._hook_manager()
        if hook_manager is not None:
            end_removed(trainer, pl_module, hook_manager)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the hooks from the model, whatever other callbacks do now."""
        self._end_batch()
        hook_manager = self._hook_manager()
        removed = [] if hook_manager is None else removed_from(trainer, hook_manager)
        for_each(lambda callback: callback.on_exception(trainer, pl_module, exception), [*our_callbacks(trainer), *removed])


def _none() -> None:
    """The reference of a copy, which belongs to no run."""


class _Interruption:
    """Pauses the hooks of a run while another run, which began inside it, uses the same model."""

    def __init__(self, outer: HookManager) -> None:
        self._outer: HookManager | None = outer

    def install(self) -> None:
        if self._outer is not None:
            self._outer.pause(self)

    def remove(self) -> None:
        """A second call does nothing, nor does one after the outer run has ended."""
        outer, self._outer = self._outer, None
        if outer is not None and outer in live_hook_managers(outer.model):
            outer.meter.interrupt()
            outer.resume(self)


class WrappedHook:
    """A bound method of the LightningModule, wrapped for a batch: after it the gradients are final.

    Copies and pickles of the module get the plain method bound to the copy.

    Args:
        module: whose method.
        name: `configure_gradient_clipping` or `on_before_optimizer_step`; the optimizer is its first argument.
        hook_manager: of the model.
    """

    def __init__(self, module: LightningModule, name: str, hook_manager: HookManager) -> None:
        self._module = ref(module)
        self._name = name
        self._hook_manager = ref(hook_manager)
        self._had: Any = None
        self._method: Any = None

    @property
    def __code__(self) -> Any:
        """Lightning compares it to see whether a user overrode the method."""
        return (self._had or self._method).__code__

    def install(self, handles: Handles) -> None:
        """Wrap the method until the handles are closed."""
        module = self._module()
        assert module is not None
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
        hook_manager = self._hook_manager()
        if hook_manager is not None:
            hook_manager.phase("final", optimizer)
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
