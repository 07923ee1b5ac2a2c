"""Listens to dropouts and batch norms: whether they act as in training in calls that evaluate, and dropouts by function."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_hooks.engine.lookouts.arrivals import weakly
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.compiled import compiled_modules
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.recording.source_lines import Line, is_user_code
from lightning_hooks.errors import listed
from lightning_hooks.hooks import Handles, HookSwitch
from lightning_hooks.hooks.listening import Listening
from lightning_hooks.records.facts import Sighting

_DROPOUTS: Final = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_LEAST: Final = 3
"""The calls in a row that must be without gradients: a pseudo-label or a target is one call beside each step."""
_MOST: Final = 200
"""The calls in evaluation that are looked at."""
_OWN: Final = str(Path(__file__).parents[2]) + os.sep
_ON_PURPOSE: Final = ("checkpoint.py", "swa_utils.py")
"""Files of torch that call a model in training mode without gradients: activation checkpointing, and `update_bn`."""
_TRAINING_OF_NORM: Final = 5  # the position of the argument `training` of `batch_norm`


class EvaluationsLookout(Lookout):
    """Hears what mode dropouts and batch norms are in where gradients are disabled, and dropouts that do not ask for the mode.

    Hooks are not there in a validation. What is heard are calls of functions of torch by modules, which the same thread makes;
    compiled models are left out. A module counts if it has been called with gradients before, in training mode: a teacher that
    is called without gradients only may have any mode.
    """

    kinds: ClassVar[tuple[str, ...]] = ("evaluated-in-training-mode", "dropout-in-evaluation")

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        # For each module that was called with gradients, this counts its calls without gradients in a row since then.
        self._trained: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        # The keys are the modules that are told. The values are the lines of calls: of evaluations in training mode, and of
        # dropouts in evaluation mode.
        self._found: WeakKeyDictionary[nn.Module, Line | None] = WeakKeyDictionary()
        self._dropouts: WeakKeyDictionary[nn.Module, Line | None] = WeakKeyDictionary()
        # The running means of norms that have been called with gradients since the last evaluation, by their ids.
        self._quiet: dict[int, ref[Tensor]] = {}
        self._looked = 0

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return None

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        model = self._around.model()
        if model is None or compiled_modules(model):
            return
        listeners = [Listening(functional, name, weakly(self._heard_dropout)) for name in _DROPOUTS]
        listeners.append(Listening(functional, "batch_norm", weakly(self._heard_norm)))
        for listening in listeners:
            handles.keep(listening)
            listening.start()

    def _heard_dropout(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        rate = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        training = args[2] if len(args) > 2 else kwargs.get("training")
        if not rate or training is False or self._looked >= _MOST:
            return
        frame = _caller()
        module = None if frame is None else frame.f_locals.get("self")
        if frame is None or not isinstance(module, nn.Module):
            return
        if training is None and not module.training:
            self._looked += 1
            self._dropouts.setdefault(module, _line_of(frame))
        elif module.training:
            self._note(module, frame)

    def _heard_norm(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        training = args[_TRAINING_OF_NORM] if len(args) > _TRAINING_OF_NORM else kwargs.get("training", False)
        moves = args[1] if len(args) > 1 else kwargs.get("running_mean")
        if not training or moves is None or self._looked >= _MOST:
            return
        trains = torch.is_grad_enabled()
        known = self._quiet.get(id(moves)) if trains else None
        # A frame is looked up for each call, which takes long: in training one call after each evaluation is enough.
        if known is not None and known() is moves:
            return
        frame = _caller()
        module = None if frame is None else frame.f_locals.get("self")
        if frame is not None and isinstance(module, nn.Module) and module.training:
            self._note(module, frame)
            if trains:
                self._quiet[id(moves)] = ref(moves)

    def _note(self, module: nn.Module, frame: FrameType) -> None:
        """Note a call of a module in training mode."""
        if torch.is_grad_enabled():
            self._trained[module] = 0
        elif module in self._trained and module not in self._found and not _is_on_purpose(frame):
            self._looked += 1
            self._quiet.clear()
            self._trained[module] += 1
            if self._trained[module] >= _LEAST:
                self._found[module] = _line_outside(frame)

    def left(self) -> None:
        self._trained.clear()
        self._quiet.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._seen()) if self._found or self._dropouts else ()

    def _seen(self) -> Iterator[Sighting]:
        model = self._around.model()
        names = {} if model is None else {module: name for name, module in model.named_modules()}
        found = {module: line for module, line in self._found.items() if module in names}
        if found:
            norms = [names[module] for module in found if isinstance(module, _BatchNorm)]
            drops = [names[module] for module in found if not isinstance(module, _BatchNorm)]
            effects = [
                *([f"elements are dropped at {listed(drops, 3)}"] if drops else []),
                *([f"the batches move the running statistics of {listed(norms, 3)}"] if norms else []),
            ]
            often = f"{_LEAST} times in a row or more"
            text = f"the model is called without gradients in training mode, {often}: {' and '.join(effects)}"
            yield Sighting(self.kinds[0], text, (), _text(next(iter(found.values()))))
        for module, line in self._dropouts.items():
            if module in names:
                who = names[module] or type(module).__name__
                text = f"a function drops elements in evaluation mode, because {who} does not tell it the mode"
                yield Sighting(self.kinds[1], text, (names[module],) if names[module] else (), _text(line))


def _caller() -> FrameType | None:
    """The frame that called the function that is listened to: the first one outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def _is_on_purpose(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(_ON_PURPOSE):
            return True
        frame = frame.f_back
    return False


def _line_outside(frame: FrameType | None) -> Line | None:
    """The innermost line of the user that is in no `forward`."""
    return _line(frame, lambda each: each.f_code.co_name != "forward")


def _line_of(frame: FrameType | None) -> Line | None:
    return _line(frame, lambda each: True)


def _line(frame: FrameType | None, fits: Callable[[FrameType], bool]) -> Line | None:
    while frame is not None:
        code = frame.f_code
        if is_user_code(code.co_filename) and fits(frame):
            return Line(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


def _text(line: Line | None) -> str:
    return "" if line is None else line.source


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (EvaluationsLookout,)
"""The lookouts of this file."""
