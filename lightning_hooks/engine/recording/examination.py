"""The examination of one step under a dispatch mode: which tensors are bad before it and after it, and where they come from."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.bad_tensors import BadTensor, CheckedTensors, bad_loss, note_bad_leaves
from lightning_hooks.engine.recording.explaining import Autopsy, autopsy_of
from lightning_hooks.engine.recording.module_calls import ModuleCalls
from lightning_hooks.engine.recording.origins import Birth, OriginMap
from lightning_hooks.engine.recording.provenance import Provenance, StoppedEarly
from lightning_hooks.errors import shortened


class Examination:
    """Examines every operator of one step, and finds the origin of the first bad tensor after it.

    The code of the step must run inside `run_step`, which marks where it begins on the Python stack; `following` may begin and
    end within.

    Args:
        model: names the modules and parameters.
        batch: what the step reads.
        optimizers: only gradients of their parameters count; if empty, all count.
        limit: seconds after which the step is stopped.

    Attributes:
        notes: why the step has not come to its end.
    """

    def __init__(self, model: nn.Module, batch: object, optimizers: Sequence[Optimizer], limit: float) -> None:
        self.notes: list[str] = []
        self._remarks: list[str] = []
        self._began = time.perf_counter()
        self._origins, self._calls = OriginMap(), ModuleCalls(model)
        self._checked = CheckedTensors(model, optimizers)
        self._leaves = note_bad_leaves(self._checked, batch, self._origins)
        self._mode = Provenance(self._calls, self._origins, limit)

    @contextmanager
    def following(self, *, is_update: bool = False) -> Iterator[None]:
        """Examine the operators in the block. An exception of the block, or the limit of time, ends it with a note.

        Args:
            is_update: whether the block updates parameters, and does nothing else.
        """
        self._mode.is_update = is_update
        try:
            with eagerly(), self._calls.followed(), self._mode:
                yield
        except StoppedEarly as stopped:
            self.notes.append(str(stopped))
        except Exception as error:
            self.notes.append(f"the step raised {shortened(f'{type(error).__name__}: {error}', 300)}")

    def bad_after_step(self, loss: Tensor | None) -> BadTensor | None:
        """The loss or the first gradient that is not finite; None if all are finite."""
        if self.notes:
            return self._unfinished()
        bad = bad_loss(loss, self._mode.bad_roots, self._origins) or self._checked.bad_gradients(self._origins)
        if bad is not None and bad.kind == "grad" and bad.origin is None:
            return replace(bad, origin=self._first_of_backward())
        return bad

    def _first_of_backward(self) -> Birth | None:
        """The first birth of the backward pass, for a sparse gradient: it has no memory by which its origin could be known."""
        first = next((each for each in self._mode.births if each.direction == "backward"), None)
        if first is not None:
            self._remarks.append("the gradient has no memory of its own; named is the first bad result of the backward pass")
        return first

    def bad_after_update(self) -> BadTensor | None:
        """The first parameter or optimizer state that is not finite; None if all are finite."""
        return self._checked.bad_parameters(self._origins) or self._checked.bad_state(self._origins)

    def autopsy(self, bad: BadTensor | None) -> Autopsy:
        """The autopsy that follows from a bad tensor and its origin; without a bad tensor, that of a step that went well."""
        found = Autopsy(reproduced=False) if bad is None else autopsy_of(bad, self._leaves)
        unread = [f"the tensors of {name} could not be read ({reason})" for name, reason in self._mode.failures.items()]
        found = replace(found, has_ended=not self.notes)
        return found.with_notes([*self.notes, *self._remarks, *unread], time.perf_counter() - self._began)

    def _unfinished(self) -> BadTensor | None:
        """The first NaN of a step that did not end; nothing shows whether it would have reached the loss."""
        if self._mode.bad_roots:
            return BadTensor("loss", "", self._mode.bad_roots[0], None)
        first = self._mode.first_nan
        if first is None:
            return None
        self.notes.append("the step did not end: the first NaN is named, whether or not it reaches the loss")
        return BadTensor("", "", first, first.result if isinstance(first, Birth) else first.summary)


def run_step(step: Callable[[], object]) -> Tensor | None:
    """Run a step; `source_lines` looks for the user's code above the frame of this function."""
    loss = step()
    return loss if isinstance(loss, Tensor) else None


def bad_tensor_without_mode(model: nn.Module, optimizers: Sequence[Optimizer], loss: Tensor | None) -> BadTensor | None:
    """The bad tensor, without an origin, of a step that ran without a dispatch mode; None if all are finite."""
    return bad_loss(loss, [], OriginMap()) or CheckedTensors(model, optimizers).bad_gradients(OriginMap())


def eagerly() -> AbstractContextManager[object]:
    """Run compiled modules without their compiled code, whose operators a dispatch mode does not receive."""
    # Nothing is compiled before this module is imported; importing it takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
