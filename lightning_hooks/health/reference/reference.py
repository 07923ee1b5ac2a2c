"""Reference: what good runs tell, with which another run is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lightning_hooks.comparing.bands import LOSS_KEY, SHARE, Bands
from lightning_hooks.errors import counted
from lightning_hooks.health.reference.record import Record
from lightning_hooks.health.reference.traits import Traits
from lightning_hooks.health.window import Key
from lightning_hooks.records.facts import Structure

BAND_KEYS: Final[tuple[Key, ...]] = (
    LOSS_KEY,
    ("input", "rms"),
    ("input", SHARE),
    ("output", "rms"),
    ("output", SHARE),
    ("grad", "norm"),
    ("param", "norm"),
    ("update", "norm"),
)
"""The statistics that are compared with bands."""
TRAIT_KEYS: Final[tuple[Key, ...]] = (
    *(("input", stat) for stat in ("mean", "std", "abs_max")),
    *(("output", stat) for stat in ("count", "min", "max")),
    ("grad", "count"),
    *(("param", stat) for stat in ("count", "mean", "std", "norm", "abs_max")),
    *(("update", stat) for stat in ("count", "norm", "abs_max")),
)
"""The statistics from which traits follow."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The good runs that a training is compared with, merged row by row.

    Args:
        records: how each run trained.
        structure: the modules and parameters of the model; None if no run knows.
        bands: by tensor and statistic.
        traits: by tensor.
    """

    records: tuple[Record, ...] = ()
    structure: Structure | None = None
    bands: Mapping[Key, Bands] = field(default_factory=dict)
    traits: Mapping[str, Traits] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The number of runs, steps and rows."""
        return f"<Reference of {counted(len(self.records), 'good run')} until step {self.last}, {self.rows} rows>"

    @property
    def last(self) -> int:
        """The last step of the longest run; later steps are not compared."""
        return max((record.observed.last for record in self.records), default=-1)

    @property
    def rows(self) -> int:
        """The number of rows with bands."""
        return len({(tensor, name) for (tensor, _), bands in self.bands.items() for name in bands.names})
