"""Findings that no health rule has made, such as those of the checks on the first batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightning_hooks.health.finding import Finding


class Given:
    """A finding of another instrument, as it stands. It has a number among the findings of the rules.

    Args:
        finding: what was found, with its number in the run.
    """

    def __init__(self, finding: Finding) -> None:
        self._finding = finding

    @property
    def rule(self) -> str:
        """The name of the check."""
        return self._finding.rule

    @property
    def number(self) -> int:
        """The number of the finding in its run."""
        return self._finding.number

    @property
    def fingerprint(self) -> str:
        """The check and its rows."""
        return self._finding.fingerprint

    @property
    def is_over(self) -> int | None:
        """The step from which the fault is gone; None while it is there."""
        return self._finding.is_over

    def see(self, finding: Finding) -> None:
        """The same fault is seen again: keep when it was first seen."""
        self._finding = replace(finding, first_step=self._finding.first_step, number=self.number)

    def end(self, step: int) -> None:
        """The fault is gone since a step."""
        self._finding = replace(self._finding, is_over=step)

    def finding(self, cause: str | None = None) -> Finding:
        """The finding as it stands."""
        return replace(self._finding, cause=cause)

    def state(self) -> dict[str, Any]:
        """The finding as plain values."""
        return {"given": self._finding.to_dict()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Given:
        """The finding of `state`; raises RuleError, which is a ValueError, if the state is damaged."""
        return cls(Finding.from_dict(state["given"]))
