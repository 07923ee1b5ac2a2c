"""Pauses of the hooks on a model: who has asked for one, and how the batch under way goes on afterwards."""

from __future__ import annotations

from collections.abc import Callable

Resume = Callable[[], None]


class Pauses:
    """The callers that want no hooks on the model; the hooks come back when none of them is left."""

    def __init__(self) -> None:
        self._callers: list[object] = []
        self._resume: Resume | None = None  # continues the batch under way; None between batches

    @property
    def is_paused(self) -> bool:
        """Whether there is a pause."""
        return bool(self._callers)

    def begin(self, caller: object, resume: Resume | None) -> None:
        """Begin a pause.

        Args:
            caller: who asks for the pause.
            resume: continues the batch under way after all pauses; None between batches. In a pause within a pause it is
                ignored.
        """
        if not self._callers:
            self._resume = resume
        self._callers.append(caller)

    def begin_batch(self, resume: Resume) -> None:
        """A batch begins during the pause; `resume` continues it."""
        self._resume = resume

    def end_batch(self) -> None:
        """The batch under way ends, so that nothing of it is continued."""
        self._resume = None

    def end(self, caller: object) -> bool:
        """End the pause of a caller. Returns whether it was the last; False if Ctrl-C arrived before the pause began."""
        if not any(each is caller for each in self._callers):
            return False
        self._callers = [each for each in self._callers if each is not caller]
        return not self._callers

    def resume_batch(self) -> None:
        """Continue the batch that is under way, if there is one."""
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()
