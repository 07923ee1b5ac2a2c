"""What callbacks of this package know of each other in one Trainer, and the hook manager that they share during a run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from lightning_hooks.callbacks._lightning import Callback
from lightning_hooks.callbacks._trainer import all_callbacks, deferred, is_running, optimizers_of
from lightning_hooks.engine.hook_manager import HookManager
from lightning_hooks.engine.match_report import Match
from lightning_hooks.engine.participant import Participant
from lightning_hooks.hooks import for_each

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer

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
        self._participants: list[Participant] = []

    def match(self, model: LightningModule) -> Match:
        """What the rules match in a model, without a run."""
        raise NotImplementedError

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
            f"{type(callback).__name__} appears {len(places)} times in the callbacks of the Trainer; it acts once", stacklevel=2
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


def note_callbacks(trainer: Trainer, hook_manager: HookManager) -> None:
    """Note which callbacks are there when a run begins; `removed_from` compares."""
    _LISTED[hook_manager] = [ref(callback) for callback in our_callbacks(trainer)]


def removed_from(trainer: Trainer, hook_manager: HookManager) -> list[OurCallback]:
    """The callbacks that take part in a run and were removed from the list of its trainer, which tells them nothing more."""
    here = set(map(id, all_callbacks(trainer)))
    listed = [callback() for callback in _LISTED.get(hook_manager, ())]
    return [each for each in listed if each is not None and id(each) not in here and each._hook_manager is hook_manager]


def note_absent(trainer: Trainer, hook_manager: HookManager) -> None:
    """Before a batch: callbacks that were removed from the list do not act in it, although other callbacks begin it for all."""
    here = all_callbacks(trainer)
    if hook_manager.seen_callbacks != here:
        hook_manager.seen_callbacks = [*here]
        removed = removed_from(trainer, hook_manager)
        hook_manager.absent = [participant for callback in removed for participant in callback._participants]


def end_removed(trainer: Trainer, pl_module: LightningModule, hook_manager: HookManager) -> None:
    """When a run is over: call `teardown` of callbacks that were removed from the list; Lightning does not."""
    for_each(lambda callback: callback.teardown(trainer, pl_module, ""), removed_from(trainer, hook_manager))
