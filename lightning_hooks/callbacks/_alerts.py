"""Findings as alerts of the loggers that have such: the services of W&B and trackio, and tags of a run of MLflow."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightning_hooks.callbacks._logger_kinds import of_kind
from lightning_hooks.errors import shortened
from lightning_hooks.health.rule import Severity

if TYPE_CHECKING:
    from lightning_hooks.health.text import Block

_MOST: Final = 500  # characters of a tag of MLflow
_LONGEST: Final = 63  # characters of a title that W&B takes
_TAG: Final = "lightning_hooks.finding"


class Alert(NamedTuple):
    """What a logger is told.

    Args:
        title: the severity and the cause or rule.
        text: the rest of the block.
        is_critical: whether the training is lost if it goes on.
        number: of the alert in its run, from 1.
    """

    title: str
    text: str
    is_critical: bool
    number: int


class Alerts:
    """Passes the messages of a run to its loggers. A logger that fails is a warning, and is not told anything more.

    Args:
        loggers: those that the monitor writes to.
    """

    def __init__(self, loggers: list[Any]) -> None:
        self._loggers = [(logger, tell) for logger in loggers if (tell := of_kind(logger, _TELLERS)) is not None]
        self._count = 0

    def tell(self, block: Block) -> None:
        """Tell of a cause or finding."""
        self._count += 1
        name, _, message = block.verdict.partition(". ")
        text = "\n".join(block._replace(verdict=message).lines()).removeprefix(f"{block.severity.upper()}:").lstrip()
        title = f"{block.severity.upper()}: {name.rstrip('.')}"
        alert = Alert(title, text, block.severity is Severity.CRITICAL, self._count)
        for pair in [*self._loggers]:
            logger, tell = pair
            try:
                tell(logger, alert)
            # The service of a logger may be out of reach. Only warn, so that the fit goes on.
            except Exception as error:
                self._loggers.remove(pair)
                said = f"{type(error).__name__}: {error}"
                warnings.warn(f"{type(logger).__name__} did not take an alert, and gets no more: {said}", stacklevel=2)


def _to_wandb(logger: Any, alert: Alert) -> None:
    logger.experiment.alert(
        title=shortened(alert.title, _LONGEST), text=alert.text, level="ERROR" if alert.is_critical else "WARN"
    )


def _to_trackio(logger: Any, alert: Alert) -> None:
    trackio = importlib.import_module("trackio")
    level = trackio.AlertLevel.ERROR if alert.is_critical else trackio.AlertLevel.WARN
    trackio.alert(title=alert.title, text=alert.text, level=level)


def _to_mlflow(logger: Any, alert: Alert) -> None:
    logger.experiment.set_tag(logger.run_id, f"{_TAG}.{alert.number}", f"{alert.title}\n{alert.text}"[:_MOST])


_TELLERS: Final[Mapping[str, Callable[[Any, Alert], None]]] = {
    "WandbLogger": _to_wandb,
    "TrackioLogger": _to_trackio,
    "MLFlowLogger": _to_mlflow,
}
"""How a logger takes an alert, by the name of its class."""
