"""The check that every input, and every feature of a float input, influences the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.checks.batch import changed_copy, is_float, kind_of
from lightning_hooks.checks.check import Check
from lightning_hooks.checks.errors import StepError
from lightning_hooks.checks.libraries import is_of_library
from lightning_hooks.checks.masks import flipped, is_mask, opened
from lightning_hooks.checks.record import Record
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.errors import counted, listed
from lightning_hooks.nested.tensors import named_tensors
from lightning_hooks.tensor_kinds import same_bits

_CONVOLUTIONS: Final = (nn.modules.conv._ConvNd,)


@dataclass(frozen=True, kw_only=True)
class InputsMatter(Check):
    """Every tensor of the batch that the step uses influences the loss, and so does every feature of a float input.

    A zero gradient is a first witness. The second one is another step in which the tensor or the feature has other numbers: if
    the loss and all gradients are bit for bit the same, nothing depends on it. Tensors that no function and no module gets are
    named and do not fail, because a data set may hold more than one training needs. Elements that a mask, or the lengths of
    sequences, hide in this batch do not fail either: with another mask they have an influence. An input that the code of a
    library leaves out, and a part of a mask of zeros and ones, is a warning.

    Args:
        most_features: the number of features without a gradient that are tried one by one.
    """

    most_features: int = 8
    minima: ClassVar[Mapping[str, int]] = {"most_features": 1}
    probes: ClassVar[tuple[str, ...]] = ("losses", "grads", "calls")
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for an input that is overwritten, detached, or left out of a concatenation, and for slices that drop features.",
    )
    source: ClassVar[str] = "a definition: the loss is the same bit for bit"
    consequence: ClassVar[str] = (
        "An input without influence is lost information, and often the sign of a tensor that is overwritten or never passed on."
    )
    false_alarm: ClassVar[str] = (
        "A feature may have no influence in this batch only, for example behind a ReLU that is 0 for all samples. Try another "
        "batch."
    )

    def run(self, trial: Trial) -> CheckResult:
        record = trial.run(probes=("losses", "read", "input_grads"))
        if not record.losses:
            return self.skipped("the step has no backward")
        if not all(map(math.isfinite, record.losses)):
            return self.skipped("the loss is not finite; see NonFinite")
        if record.losses != trial.step.losses:
            return self.skipped("two steps from the same state have different losses")
        found = list(named_tensors(trial.batch))
        read = [(path, tensor) for path, tensor in found if path in record.read]
        unread = [path for path, _ in found if path not in record.read]
        without = [path for path, _ in read if not _has_grad(record.input_grads.get(path))]
        influences = {path: _influence(trial, path) for path in without}
        hiding = {path: _hiding(trial, path) for path, influence in influences.items() if influence == _Influence(False, False)}
        unused = [path for path, mask in hiding.items() if not mask]
        models = [call.module for call in trial.step.calls if role_of(call.module) != "loss"]
        by_library = bool(models) and all(map(is_of_library, models))
        say = self.warned if by_library else self.failed
        if unused:
            return say(unused, "the loss does not depend on this tensor, which the step uses", 0.0, 0.0)
        tried = [influence for influence in influences.values() if influence is not None]
        if len(without) == len(read) and tried and not any(influence.on_gradients for influence in tried):
            text = "the loss depends on the batch, but no gradient of a trainable parameter does"
            return self.failed([path for path, _ in read], text, 0.0, 0.0)
        without_influence = self._unused_features(trial, record.input_grads)
        columns = [(path, feature) for path, feature, mask in without_influence if not mask]
        hiding |= {f"{path}[{feature}]": mask for path, feature, mask in without_influence if mask}
        if columns:
            # The first elements of a mask may lie outside of what a loss looks at.
            are_masks = all(is_mask(tensor) for path, tensor in found if path in dict(columns))
            say = self.warned if are_masks else say
            return say([path for path, _ in columns], _which(columns), len(columns), 0)
        more = f"; not used: {listed(unread, 3)}" if unread else ""
        if hiding:
            more += f"; {listed(sorted({*hiding.values()}), 3)} hides {counted(len(hiding), 'part')} of it in this batch"
        return self.passed(f"the loss depends on {counted(len(read), 'tensor')} of the batch{more}")

    def _unused_features(self, trial: Trial, grads: dict[str, Tensor | None]) -> list[tuple[str, int, str]]:
        """Each feature without influence: the tensor, the number of the feature, and the tensor that hides it, if one does."""
        unused = []
        for path, grad in grads.items():
            if grad is None or kind_of(grad) or grad.dim() < 2 or not grad.any():
                continue
            axis = _axis_of_features(trial, grad)
            others = [i for i in range(grad.dim()) if i != axis]
            dead = torch.nonzero(grad.abs().amax(others) == 0).flatten().tolist()
            for feature in dead[: self.most_features]:
                if _influence(trial, path, (axis, feature)) == _Influence(False, False):
                    unused.append((path, feature, _hiding(trial, path, (axis, feature))))
        return unused


class _Influence(NamedTuple):
    """Whether other numbers in a tensor change the loss, and the gradients of parameters."""

    on_loss: bool
    on_gradients: bool


def _influence(trial: Trial, path: str, feature: tuple[int, int] | None = None) -> _Influence | None:
    """Whether other numbers in a tensor or a feature of the batch change the loss; None if there are no other numbers to try.

    If the loss stays the same, the numbers are tried again after two steps: a layer of zeros at the end hides every input.
    """
    batches = _others(trial.batch, path, feature)
    if not batches:
        return None
    first = _compared(trial, batches, is_advanced=False)
    return first if first.on_loss and first.on_gradients else _compared(trial, batches, is_advanced=True)


def _others(batch: Any, path: str, feature: tuple[int, int] | None) -> list[Any]:
    """Copies of a batch with other numbers in one tensor or feature."""
    batches = [_changed(batch, path, feature, change) for change in (_rolled, flipped, _scaled, _levelled)]
    return [batch for batch in batches if batch is not None]


def _hiding(trial: Trial, path: str, feature: tuple[int, int] | None = None) -> str:
    """The tensor of the batch that hides another one, or a feature of it; empty if none does.

    It hides what has an influence once the tensor has other numbers. What is never used has none whatever a mask says.
    """
    for mask, batch in opened(trial.batch, path):
        try:
            usual = trial.run(probes=("losses",), batch=batch, from_start=True).losses
            if not usual or not all(map(math.isfinite, usual)):
                continue
            for other in _others(batch, path, feature):
                if trial.run(probes=("losses",), batch=other, from_start=True).losses != usual:
                    return mask
        except StepError:
            # A tensor of labels may look like a mask, and not take other numbers.
            continue
    return ""


def _compared(trial: Trial, batches: Sequence[Any], *, is_advanced: bool) -> _Influence:
    def step(batch: Any) -> Record:
        if is_advanced:
            trial.advance()
        return trial.run(probes=("losses", "grads"), batch=batch, from_start=not is_advanced)

    usual = step(trial.batch) if is_advanced else trial.step
    influence = _Influence(False, False)
    for batch in batches:
        try:
            other = step(batch)
        except StepError:
            # Numbers on which the step fails have an influence.
            return _Influence(True, True)
        influence = _Influence(
            influence.on_loss or other.losses != usual.losses, influence.on_gradients or other.grads != usual.grads
        )
        if all(influence):
            break
    return influence


def _has_grad(grad: Tensor | None) -> bool:
    if grad is None:
        return False
    return any(
        bool((part.to_dense() if kind_of(part) else part).any()) for part in (grad.unbind() if grad.is_nested else [grad])
    )


def _axis_of_features(trial: Trial, tensor: Tensor) -> int:
    """Channels of convolutions are in dimension 1, features of other layers in the last one."""
    is_image = tensor.dim() > 2 and any(isinstance(each, _CONVOLUTIONS) for each in trial.model.modules())
    return 1 if is_image else tensor.dim() - 1


def _changed(batch: Any, path: str, feature: tuple[int, int] | None, change: Any) -> Any:
    """A copy of a batch with other numbers in one tensor or feature; None if the change changes nothing."""
    has_changed = False

    def of(each: str, tensor: Tensor) -> Tensor:
        nonlocal has_changed
        copy = tensor.detach().clone()
        if each != path or kind_of(copy):
            return copy
        part = copy if feature is None else copy.select(*feature)
        new = change(part)
        if new is not None and not same_bits(new, part):
            has_changed = True
            part.copy_(new)
        return copy

    made = changed_copy(batch, of)
    return made if has_changed else None


def _rolled(tensor: Tensor) -> Tensor | None:
    """The numbers of other samples, which are valid for any input."""
    return tensor.roll(1, 0) if tensor.dim() and tensor.shape[0] > 1 else None


def _levelled(tensor: Tensor) -> Tensor | None:
    """The numbers of the first sample for all. To exchange samples may change nothing if their outputs are alike."""
    return tensor[:1].expand_as(tensor) if tensor.dim() and tensor.shape[0] > 1 else None


def _scaled(tensor: Tensor) -> Tensor | None:
    return tensor * 1.5 + 0.25 if is_float(tensor) else None


def _which(columns: Sequence[tuple[str, int]]) -> str:
    features = listed([str(feature) for _, feature in columns], 8)
    return f"the loss does not depend on {'feature' if len(columns) == 1 else 'features'} {features} of it"


CHECKS: Final[tuple[Check, ...]] = (InputsMatter(),)
"""The check on inputs, with its defaults."""
