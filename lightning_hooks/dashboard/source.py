"""The interface through which the page reads one run, wherever its event files are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.comparing.exact import CommonSteps, common_steps
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.stats.stored import StoredRows

Steps = NDArray[np.int64]
Values = NDArray[np.float32]
Floats = NDArray[np.float64]


CHUNK: Final = 64
"""Steps that are read from a run at a time: half a megabyte for 1,000 rows. The memory of a server grows with it."""


def windows_of(source: RunSource, tensor: str, stat: str) -> list[tuple[int, int]]:
    """The first and the last step of each window of several steps of a table, ascending."""
    steps, firsts = source.steps(tensor, stat), source.first_steps(tensor, stat)
    several = np.flatnonzero(firsts < steps)
    return [*zip(firsts[several].tolist(), steps[several].tolist(), strict=True)]


def common_points(source: RunSource, other: RunSource, tensor: str, stat: str) -> CommonSteps:
    """The points of a table that two runs have in common: the same steps, and the same windows of steps."""
    (steps, firsts), (others, other_firsts) = (
        (run.steps(tensor, stat), run.first_steps(tensor, stat)) for run in (source, other)
    )
    return common_steps(steps, others, firsts, other_firsts)


class RunSource(Protocol):
    """The interface through which the page reads one run."""

    @property
    def version(self) -> int:
        """A number that changes when the run has grown."""

    @property
    def history(self) -> int:
        """A number that changes when the values of earlier steps may have changed."""

    def refresh(self) -> None:
        """Read what was written since the last call."""

    def tables(self) -> list[tuple[str, str]]:
        """The (tensor, statistic) of every table."""

    def rows(self, tensor: str, stat: str) -> tuple[str, ...]:
        """The names of the rows of a table."""

    def steps(self, tensor: str, stat: str) -> Steps:
        """The steps of a table, ascending."""

    def first_steps(self, tensor: str, stat: str) -> Steps:
        """The first step that each of `steps(tensor, stat)` stands for: of a window of steps its first one."""

    def read(self, tensor: str, stat: str, first: int, last: int) -> Floats:
        """The values at `steps(tensor, stat)[first:last]`, float64 [steps, rows]; NaN where a row was not measured."""

    def stored(self, tensor: str, stat: str, first: int, last: int) -> tuple[StoredRows, StoredRows | None]:
        """The stored columns from which a table is computed; see `Tables.stored`."""

    def scalar_tags(self) -> list[str]:
        """The tags of all scalars."""

    def scalar(self, tag: str) -> tuple[Steps, Floats]:
        """The steps and the values of a scalar."""

    def histogram_tags(self) -> list[str]:
        """The tags of all histograms."""

    def histograms(self, tags: Sequence[str], steps: int) -> dict[str, list[tuple[int, Floats, Floats]]]:
        """Histograms by tag, each at no more than `steps` evenly chosen steps as (step, right edges, counts)."""

    def about(self) -> Mapping[str, Any]:
        """Row name to `type` (class of the module), `shape`, and `order` (index in the order of execution)."""

    def row_indices(self) -> Sequence[Mapping[str, Any]]:
        """The row indices of the step views of the run, from JSON, unchecked."""

    def saved_facts(self, prefix: str) -> list[tuple[int, str]]:
        """The steps at which facts of the training changed, ascending, each with the changes as JSON."""

    def findings(self) -> list[Mapping[str, Any]] | None:
        """The findings of health rules; None if the run has no file of findings."""

    def checks(self) -> Mapping[str, Any] | None:
        """Which health rules looked at the run, see `checks_of`; None if nobody knows, as while the fit goes on."""

    def fits(self) -> int:
        """How many fits wrote findings into the folder of the run; `findings` and `checks` are those of the newest."""

    def records(self) -> Mapping[str, FlightRecord]:
        """The flight records of the run by the names of their folders, in the order in which they were written."""

    def ranks(self) -> int:
        """The number of processes that trained."""

    def times(self) -> tuple[float, float] | None:
        """The times of the first and the last event in seconds since 1970; None if they are not known."""

    @property
    def place(self) -> str | None:
        """The path of the run for a command on this machine; None if the run is not on it."""

    def problems(self) -> list[str]:
        """Messages about the parts of the run that could not be read."""
