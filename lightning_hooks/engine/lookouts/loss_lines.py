"""Looks at which line of the user's code the loss is computed, or else at which line its backward pass begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Final

from torch import Tensor
from torch.nn import functional

from lightning_hooks.engine.lookouts.arrivals import weakly
from lightning_hooks.engine.lookouts.loss_graph import STEPS
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.recording.source_lines import own_line
from lightning_hooks.errors import listed
from lightning_hooks.hooks import Handles, HookSwitch, Listening
from lightning_hooks.hooks.listening import After
from lightning_hooks.records.facts import Sighting

KIND: Final = "loss-line"
_ALSO: Final = ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
_FUNCTIONS: Final = tuple(name for name in vars(functional) if name.endswith("_loss") and name[0] != "_") + _ALSO
"""The losses of `torch.nn.functional`, which the modules of losses call too."""
_NODES: Final = 60
"""The number of operations that are followed from a loss."""
_CALLS: Final = 64
"""The number of calls of a step that are noted."""
_LINES: Final = 2
"""The number of lines that are named."""


class LossLineLookout(Lookout):
    """Notes the calls of losses of torch in the first steps, and finds those whose results a loss is made of by its graph.

    Of a loss that no such call has computed, a plain loop shows the line of `backward()`. With a Trainer that is a line of the
    Trainer, and the line of the loss is not known.
    """

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._calls: list[tuple[Any, str]] = []  # the node of each result, and the line of the call
        self._steps = self._losses = 0
        self._computed: dict[str, None] = {}
        self._begins: dict[str, None] = {}
        self._listening: list[Listening] = []

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        for name in _FUNCTIONS:
            self._listening.append(handles.keep(Listening(functional, name, weakly(self._heard))))
            self._listening[-1].start()

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "loss line" if stage == "train" and self._steps < STEPS else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._losses = 0

    def _heard(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> After | None:
        if len(self._calls) >= _CALLS:
            return None
        line = own_line()
        return None if line is None else lambda result: self._note(result, line.source)

    def _note(self, result: Any, line: str) -> None:
        if isinstance(result, Tensor) and result.grad_fn is not None:
            self._calls.append((result.grad_fn, line))

    def saw_loss(self, loss: Tensor) -> None:
        self._losses += 1
        found = self._lines_of(loss.grad_fn) if loss.grad_fn is not None and self._calls else []
        self._computed.update(dict.fromkeys(found))
        line = None if found or self._around.knows_batches else own_line()
        if line is not None:
            self._begins[line.source] = None

    def _lines_of(self, node: Any) -> list[str]:
        """The lines of the calls whose results are near the end of the graph of a loss."""
        lines = dict(self._calls)
        waiting, known, found = deque([node]), {node}, []
        for _ in range(_NODES):
            if not waiting:
                break
            node = waiting.popleft()
            if node in lines:
                found.append(lines[node])
                continue
            behind = [each for each, _ in node.next_functions if each is not None and each not in known]
            known.update(behind)
            waiting.extend(behind)
        return found

    def end_step(self) -> None:
        # The nodes hold the graph of the step.
        self._calls = []
        self._steps += self._losses > 0
        if self._steps >= STEPS:
            self.left()

    def left(self) -> None:
        self._calls = []
        while self._listening:
            self._listening[-1].remove()
            self._listening.pop()

    def sightings(self) -> tuple[Sighting, ...]:
        if self._computed:
            return (Sighting(KIND, f"the loss is computed at {listed(self._computed, _LINES)}"),)
        if self._begins:
            return (Sighting(KIND, f"the backward pass of the loss begins at {listed(self._begins, _LINES)}"),)
        return ()


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (LossLineLookout,)
"""The lookouts of this file."""
