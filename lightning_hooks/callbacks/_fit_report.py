"""The report of a run as one HTML file, written at the end of a fit and passed to the loggers that keep files of a run."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightning_hooks.callbacks._logger_kinds import of_kind
from lightning_hooks.callbacks._loggers import board_folder
from lightning_hooks.dashboard.report import write_report
from lightning_hooks.errors import RuleError


def folder_for_report(report: Any, loggers: Sequence[Any]) -> Path | None:
    """The folder of the event file that a report of a fit is made of; None if no report is asked for.

    Raises:
        RuleError: a report is asked for, and no logger writes an event file.
    """
    if report is None:
        return None
    folder = board_folder(loggers)
    if folder is None:
        raise RuleError(
            f"report={str(report)!r} is made of an event file, and no chosen logger of the Trainer writes one; give "
            "StatsMonitor(logdir='…') a folder for it"
        )
    return Path(folder)


def leave_report(run: Path, out: Path, loggers: Iterable[Any]) -> None:
    """Write the report of a run, and pass the file to each logger that keeps files. What fails is a warning.

    Args:
        run: the folder of the event file.
        out: the file to write.
        loggers: all loggers of the Trainer.
    """
    try:
        write_report(run, out)
    except (RuleError, OSError) as error:
        warnings.warn(f"there is no report of this fit: {error}", stacklevel=2)
        return
    for logger in loggers:
        keep = of_kind(logger, _KEEPERS)
        try:
            if keep is not None:
                keep(logger, str(out))
        # The service of a logger may be out of reach. Only warn, so that the fit ends as usual.
        except Exception as error:
            warnings.warn(f"{type(logger).__name__} did not take {out}: {type(error).__name__}: {error}", stacklevel=2)


def _to_wandb(logger: Any, path: str) -> None:
    logger.experiment.log_artifact(path, name="lightning_hooks_report", type="report")


def _to_mlflow(logger: Any, path: str) -> None:
    logger.experiment.log_artifact(logger.run_id, path)


def _to_neptune(logger: Any, path: str) -> None:
    logger.experiment["lightning_hooks/report"].upload(path)


def _to_trackio(logger: Any, path: str) -> None:
    importlib.import_module("trackio").save(path)


_KEEPERS: Final[Mapping[str, Callable[[Any, str], None]]] = {
    "WandbLogger": _to_wandb,
    "MLFlowLogger": _to_mlflow,
    "NeptuneLogger": _to_neptune,
    "TrackioLogger": _to_trackio,
}
"""How a logger takes a file, by the name of its class."""
