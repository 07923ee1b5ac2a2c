"""What the list of runs shows of each run, without opening it: how healthy it is, and a glimpse of its event files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from lightning_hooks.dashboard.facts import time_and_size
from lightning_hooks.dashboard.findings import checks_of, shown_summary
from lightning_hooks.dashboard.glimpse import glimpse
from lightning_hooks.dashboard.records import Records, listed
from lightning_hooks.dashboard.verdicts import health_of
from lightning_hooks.dashboard.written_findings import WrittenFindings
from lightning_hooks.tensorboard.run_files import event_files


class RunList:
    """Reads and caches what the list shows. A run is read again only if one of its files has another time or size."""

    def __init__(self) -> None:
        self._beside: dict[Path, tuple[WrittenFindings, Records]] = {}
        # By run: the times and sizes of the files when they were read, and what was read.
        self._healths: dict[Path, tuple[Any, dict[str, Any]]] = {}
        self._glimpses: dict[Path, tuple[Any, dict[str, Any]]] = {}

    def keep(self, paths: Collection[Path]) -> None:
        """Forget all other runs."""
        for cache in (self._beside, self._healths, self._glimpses):
            for path in cache.keys() - paths:
                del cache[path]

    def health(self, path: Path) -> dict[str, Any]:
        """How healthy a run is, from the files beside its event files; see `health_of`."""
        written, records = self._beside.setdefault(path, (WrittenFindings(path), Records(path)))
        has_changed = records.refresh()
        stamp = written.stamp()
        known = self._healths.get(path)
        if known is None or known[0] != stamp or has_changed:
            known = stamp, health_of(written.findings(), written.checks(), listed(records.found()))
            self._healths[path] = known
        return known[1]

    def glimpse(self, path: Path) -> dict[str, Any]:
        """What the event files of a run say.

        Returns:
            `tag`, `steps` and `values` of the loss, the `last_step`, the `rate`, the times `began` and `ended` in seconds since
            1970, and the `health` of the run if only its event file tells.
        """
        try:
            stamp = [(file, time_and_size(file)) for file in event_files(path)]
        except OSError:
            stamp = []
        known = self._glimpses.get(path)
        if known is None or known[0] != stamp:
            seen = glimpse(path)
            tag, steps, values = seen.curve()
            found = shown_summary(seen.summary) if self.health(path)["severity"] == "unknown" else None
            told = {} if found is None else {"health": health_of(found, checks_of(seen.summary))}
            facts = {"last_step": seen.last_step, "rate": seen.rate, "began": seen.began, "ended": seen.ended}
            known = stamp, {"tag": tag, "steps": steps, "values": values, **facts, **told}
            self._glimpses[path] = known
        return known[1]
