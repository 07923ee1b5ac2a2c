"""The hook manager of a run: shared by all callbacks of a Trainer, with what it needs in the Trainer and in the module."""

from __future__ import annotations

import os
import types
import warnings
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from typing_extensions import override

from lightning_hooks.callbacks._lightning import Callback
from lightning_hooks.callbacks._trainer import all_callbacks, deferred, is_running, optimizers_of
from lightning_hooks.engine.hook_manager import HookManager, live_hook_managers
from lightning_hooks.engine.plan.match_report import Match
from lightning_hooks.hooks import for_each

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

_OWNERS: WeakKeyDictionary[HookManager, ReferenceType[Trainer]] = WeakKeyDictionary()
_LISTED: WeakKeyDictionary[HookManager, list[ReferenceType[OurCallback]]] = WeakKeyDictionary()  # when the run began


def owner_of(hook_manager: HookManager) -> Trainer | None:
    """The trainer in whose run a hook manager was made."""
    known = _OWNERS.get(hook_manager)
    return None if known is None else known()


class OurCallback(Callback):
    """What tells a callback of this package, and what callbacks of one Trainer know of each other.

    Attributes:
        origin: the file and the key in it that it was read from, for messages; empty for one made in Python.
        environment: a mark that the callbacks of one Trainer from the environment variable share; None for others.
        loggers: which loggers are written to.
        logdir: where an event file of our own is made if none of them is a TensorBoard.
        prefix: of every tag.
        stages: in which it acts.
    """

    origin: str = ""
    environment: str | None = None
    loggers: Sequence[str] = ("all",)
    logdir: str | os.PathLike[str] | None = None
    prefix: str = ""
    stages: Collection[str] = ("train",)

    def __init__(self) -> None:
        self._hook_manager: HookManager | None = None

    def match(self, model: LightningModule) -> Match:
        """What the rules match in a model, without a run."""
        raise NotImplementedError

    def _hand_over(self, others: Sequence[OurCallback]) -> None:
        """Give one of the others what it does for all of them, before it leaves a run that goes on."""

    @property
    def _label(self) -> str:
        """What goes before the names of rules in messages: the file and the class; nothing for one made in Python."""
        return f"{self.origin}: {type(self).__name__}: " if self.origin else ""

    @property
    def _failed_loggers(self) -> list[tuple[Any, Exception]]:
        """The loggers that raised when this callback wrote to them, with their errors."""
        return []


def for_each_stage(method: str) -> tuple[Any, ...]:
    """Lightning's hooks that call a method with each stage other than `train`."""

    def hook_of(stage: str) -> Any:
        def hook(self: OurCallback, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
            getattr(self, method)(stage, trainer, pl_module, *args, **kwargs)

        return hook

    return tuple(map(hook_of, ("validate", "test", "predict")))


def our_callbacks(trainer: Trainer) -> list[OurCallback]:
    """The callbacks of this package in a trainer, in order.

    Lightning adds those from the environment to the list that the Trainer is given. A second Trainer with that list has
    those of the first too: only its own count, which come last.
    """
    ours = [callback for callback in all_callbacks(trainer) if isinstance(callback, OurCallback)]
    marks = [callback.environment for callback in ours if callback.environment is not None]
    return [callback for callback in ours if callback.environment is None or callback.environment == marks[-1]]


def warn_if_in_use(callback: OurCallback, trainer: Trainer) -> bool:
    """Whether a callback is in use by a run of another trainer, within which a run of this one began."""
    owner = None if callback._hook_manager is None else owner_of(callback._hook_manager)
    if owner is trainer or not is_running(owner):
        return False
    warnings.warn(
        f"{type(callback).__name__} is in use by a run of another Trainer that has not ended, and does nothing in this one; "
        "give each Trainer a callback of its own",
        stacklevel=2,
    )
    return True


def take_part_once(callback: OurCallback, trainer: Trainer) -> None:
    """Leave a callback in the list of a trainer once: Lightning would call it twice, and what it changes would change twice."""
    here: Any = trainer
    places = [i for i, each in enumerate(here.callbacks) if each is callback]
    if len(places) > 1:
        here.callbacks = [each for i, each in enumerate(here.callbacks) if i not in places[1:]]
        warnings.warn(
            f"{type(callback).__name__} is {len(places)} times in the callbacks of the Trainer; it acts once", stacklevel=2
        )


def hook_manager_of(trainer: Trainer, pl_module: LightningModule) -> HookManager:
    """One that callbacks of this trainer have joined, or a new one; `begin_run` must come before its first join."""
    for hook_manager in [callback._hook_manager for callback in our_callbacks(trainer)]:
        if hook_manager is not None and hook_manager.model is pl_module:
            return hook_manager
    # A fit that crashed without calling its callbacks leaves hooks, and Lightning's signal handlers keep its trainer.
    for made in [made for made in _OWNERS if made.model is pl_module]:
        if owner_of(made) is trainer or not is_running(owner_of(made)):
            made.close()
    hook_manager = HookManager(pl_module, deferred(trainer, optimizers_of, ()))
    _OWNERS[hook_manager] = ref(trainer)
    return hook_manager


def begin_run(hook_manager: HookManager, trainer: Trainer) -> None:
    """Pause the hooks of outer runs on the same model, and install the guard; closing the hook manager undoes both."""
    for outer in live_hook_managers(hook_manager.model):
        if owner_of(outer) is not trainer and is_running(owner_of(outer)):
            hook_manager.run_handles.keep(_Interruption(outer))
    _LISTED[hook_manager] = [ref(callback) for callback in our_callbacks(trainer)]
    hook_manager.run_handles.keep(HooksGuard(trainer, hook_manager).install())


def removed_from(trainer: Trainer, hook_manager: HookManager) -> list[OurCallback]:
    """The callbacks that take part in a run and were removed from the list of its trainer, which tells them nothing more."""
    here = set(map(id, all_callbacks(trainer)))
    listed = [callback() for callback in _LISTED.get(hook_manager, ())]
    return [each for each in listed if each is not None and id(each) not in here and each._hook_manager is hook_manager]


def end_removed(trainer: Trainer, pl_module: LightningModule, hook_manager: HookManager) -> None:
    """End the part of callbacks that were removed from the list; between batches, or before any other of ours acts in one."""

    def end(callback: OurCallback) -> None:
        callback._hand_over(our_callbacks(trainer))
        callback.teardown(trainer, pl_module, trainer.state.fn or "")

    for_each(end, removed_from(trainer, hook_manager))


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

    def install(self) -> HooksGuard:
        """Replace the list of callbacks instead of changing it: Lightning may be iterating over it."""
        trainer: Any = self._trainer()
        self._given = trainer.callbacks
        trainer.callbacks = [self, *self._given]
        return self

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

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _end_batch
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
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Remove the hooks, and end the part of callbacks that were removed from the list."""
        self._end_batch()
        self.teardown(trainer, pl_module, "fit")

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the part of callbacks that were removed from the list."""
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
        outer.pause(True)

    def remove(self) -> None:
        """A second call does nothing, nor does one after the outer run has ended."""
        outer, self._outer = self._outer, None
        if outer is not None and outer in live_hook_managers(outer.model):
            outer.meter.interrupt()
            outer.pause(False)


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

    def install(self) -> WrappedHook:
        module = self._module()
        assert module is not None
        self._had = module.__dict__.get(self._name)  # a user's
        self._method = getattr(type(module), self._name)
        module.__dict__[self._name] = self
        return self

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
