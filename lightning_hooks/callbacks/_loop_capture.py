"""An `ActivationCapture` in a plain loop: each step is one batch of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.errors import RuleError


class CapturePart(LoopPart):
    """What an `ActivationCapture` does in a block.

    Args:
        contribution: the participant that takes the tensors; None if no rule matches anything.
        first_step: of the block.
        opens: creates the files, when the block is entered.
        begins: notes the number of the step that begins.
        ends: writes the tensors of the step that ends.
        closes: closes the files, and shows the last step in the event file, unless an error has ended the block.
    """

    def __init__(
        self,
        contribution: Contribution | None,
        first_step: int,
        opens: Callable[[], None],
        begins: Callable[[int], None],
        ends: Callable[[], None],
        closes: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__(contribution)
        self._first_step = first_step
        self._opens, self._begins, self._ends, self._closes = opens, begins, ends, closes

    @override
    def start(self) -> None:
        if self.contribution is not None:
            self._opens()
            self._begins(self._first_step)

    @override
    def end_step(self, step: int) -> None:
        self._ends()
        self._begins(step + 1)

    @override
    def close(self, error: BaseException | None) -> None:
        self.contribution = None
        self._closes(error)


def capture_folder(run: LoopRun, given: Path | None, label: str) -> Path:
    """The given folder, or `captures` in the folder of the block.

    Raises:
        RuleError: there is no folder.
    """
    folder = run.folder if given is None else given
    if folder is None:
        raise RuleError(
            f"{label}folder: the loop has no folder; give ActivationCapture(folder='…'), or instrument a folder= or a logdir="
        )
    return folder / "captures" if given is None else folder
