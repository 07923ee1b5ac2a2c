"""The report of a run as one HTML file, written at the end of a fit and passed to the loggers that keep files of a run."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_hooks.callbacks._logger_kinds import of_kind
from lightning_hooks.callbacks._loggers import board_folder
from lightning_hooks.dashboard.report import write_report
from lightning_hooks.errors import RuleError

_NAME: Final = "lightning_hooks_report"
"""The name of the artefact."""


class FitReport(NamedTuple):
    """The report that a fit leaves.

    Args:
        run: the folder of the event file that the report is made of.
        out: the file to write.
        loggers: those that get the file if they keep files.
        is_asked: whether the user has asked for it, so that it is told if there is none.
    """

    run: Path
    out: Path
    loggers: tuple[Any, ...]
    is_asked: bool

    def leave(self) -> None:
        """Write the report, and pass the file to each logger that keeps files. What fails is a warning."""
        try:
            write_report(self.run, self.out)
        except (RuleError, OSError) as error:
            if self.is_asked:
                warnings.warn(f"there is no report of this fit: {error}", stacklevel=2)
            return
        for logger in self.loggers:
            keep = of_kind(logger, _KEEPERS)
            try:
                if keep is not None:
                    keep(logger, str(self.out))
            # The service of a logger may be out of reach. Only warn, so that the fit ends as usual.
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                warnings.warn(f"{type(logger).__name__} did not take {self.out}: {said}", stacklevel=2)


def report_of_fit(report: Any, chosen: Sequence[Any], loggers: Sequence[Any]) -> FitReport | None:
    """The report that a fit is to leave; None for none.

    Args:
        report: the option of a monitor. None stands for a report only if one of the loggers that it writes to keeps files.
        chosen: the loggers that the monitor writes to.
        loggers: all loggers of the Trainer, which get a report that the user has asked for.

    Raises:
        RuleError: a report is asked for, and no chosen logger writes an event file.
    """
    is_asked = report is not None
    if report is False or not (is_asked or any(of_kind(logger, _KEEPERS) is not None for logger in chosen)):
        return None
    folder = board_folder(chosen)
    if folder is None and not is_asked:
        return None
    if folder is None:
        raise RuleError(
            f"report={str(report)!r} is made of an event file, and no chosen logger of the Trainer writes one; give "
            "StatsMonitor(logdir='…') a folder for it"
        )
    out = file_of_report(report, Path(folder))
    return FitReport(Path(folder), out, tuple(loggers if is_asked else chosen), is_asked)


def file_of_report(report: Any, folder: Path) -> Path:
    """The file of a report: the one that the option of a monitor names, or else `report.html` beside the event file.

    Example:
        >>> file_of_report(True, Path("/runs/a")).as_posix()
        '/runs/a/report.html'
    """
    return folder / "report.html" if report in (None, True) else Path(str(report)).expanduser().absolute()


def _to_wandb(logger: Any, path: str) -> None:
    logger.experiment.log_artifact(path, name=_NAME, type="report")


def _to_mlflow(logger: Any, path: str) -> None:
    logger.experiment.log_artifact(logger.run_id, path)


def _to_neptune(logger: Any, path: str) -> None:
    logger.experiment["lightning_hooks/report"].upload(path)


def _to_trackio(logger: Any, path: str) -> None:
    trackio = importlib.import_module("trackio")
    # `save` keeps one file of a name for all runs of a project. Earlier versions have no artifacts of a run.
    if hasattr(trackio, "log_artifact"):
        trackio.log_artifact(path, name=_NAME, type="report")
    else:
        trackio.save(path)


_KEEPERS: Final[Mapping[str, Callable[[Any, str], None]]] = {
    "WandbLogger": _to_wandb,
    "MLFlowLogger": _to_mlflow,
    "NeptuneLogger": _to_neptune,
    "TrackioLogger": _to_trackio,
}
"""How a logger takes a file, by the name of its class."""
