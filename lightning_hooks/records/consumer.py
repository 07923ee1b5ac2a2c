"""Consumers of step views: the protocol, the publisher that passes each view to every consumer, and `Latest`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.hooks import for_each
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.layout import EntryLayout
from lightning_hooks.records.run_context import RunContext
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.calling import check_takes
from lightning_hooks.rules.reading import as_object

_METHODS = {"start": ("rows", "run"), "consume": ("view",), "close": ("error",)}
"""The methods of a consumer, each with the names of its arguments."""


@runtime_checkable
class StepConsumer(Protocol):
    """Reads the steps of a monitor. A subclass needs only `consume`; any other class needs all three methods.

    The methods are called on every rank, in the training thread. Their time is a part of the training step.

    Example:
        >>> class LargestGradient(StepConsumer):
        ...     def consume(self, view):
        ...         norms = view.stat("grad", "norm")
        ...         print(view.step, norms.names[norms.values.argmax()])
    """

    def start(self, rows: RowIndex, run: RunContext) -> None:
        """Called before the first step, when the rules are resolved.

        Args:
            rows: the rows of the views in training: `rows.names`, `rows.tensors` and the rest that `view.rows` has.
            run: the folder, how the run trains, and how to stop it or to save a checkpoint.
        """
        return None

    def consume(self, view: StepView) -> None:
        """Called when a watched step, or a run of another stage, has ended; with a model on a GPU one step later.

        Args:
            view: the view of the step. The consumer may keep it.
        """
        raise NotImplementedError

    def close(self, error: BaseException | None) -> None:
        """Called once, after the last step.

        Args:
            error: the exception that ended the run; None after a normal end.
        """
        return None


class EveryStepConsumer(StepConsumer):
    """Also gets the views of the steps between those of rows, which only rules that ask for every step make.

    Such a view has the loss, the norm of the whole gradient and the batch, and `is_between`.
    """


def as_consumers(consumers: Any) -> list[StepConsumer]:
    """The consumers that a user passed as objects or as mappings with `class_path` and `init_args`; None for no consumers.

    Raises:
        RuleError: an item is not a consumer, or a method has another signature.
    """
    if consumers is None:
        return []
    if not isinstance(consumers, Sequence) or isinstance(consumers, (str, bytes)):
        raise RuleError(f"consumers must be a list, got {shown(consumers)}")
    expected = "a class with the methods start, consume and close"
    objects = [as_object(consumer, f"consumers[{i}]", _has_methods, expected) for i, consumer in enumerate(consumers)]
    for i, consumer in enumerate(objects):
        if isinstance(consumer, type):
            raise RuleError(f"consumers[{i}] is the class {consumer.__name__}; give an object of it")
        missing = [name for name in _METHODS if not callable(getattr(consumer, name, None))]
        if missing:
            raise RuleError(f"consumers[{i}] needs the methods start, consume and close; {consumer!r} has no {missing[0]}")
        for name, arguments in _METHODS.items():
            check_takes(getattr(consumer, name), f"consumers[{i}].{name}", *arguments)
    return objects


def _has_methods(kind: type) -> bool:
    return all(callable(getattr(kind, name, None)) for name in _METHODS)


class Publisher:
    """Pass each step view to every consumer, in the order of the consumers."""

    def __init__(self, consumers: Iterable[StepConsumer]) -> None:
        self._keep(list(consumers))

    def _keep(self, consumers: list[StepConsumer]) -> None:
        self._consumers = consumers
        self._between = [each for each in consumers if isinstance(each, EveryStepConsumer)]

    def start(self, rows: RowIndex, run: RunContext) -> None:
        """Start every consumer. If one raises, keep only the consumers that were started, so that `close` closes them."""
        started: list[StepConsumer] = []
        try:
            for consumer in self._consumers:
                consumer.start(rows, run)
                started.append(consumer)
        finally:
            self._keep(started)

    def publish(self, view: StepView) -> None:
        """Pass a view to every consumer that reads such views, even if one raises; then raise the first error."""
        failures: list[Exception] = []
        for consumer in self._between if view.is_between else self._consumers:
            try:
                consumer.consume(view)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def close(self, error: BaseException | None) -> None:
        """Close every consumer once. An error becomes a warning; Ctrl-C is raised after all consumers are closed."""
        consumers = self._consumers
        self._keep([])

        def close(consumer: StepConsumer) -> None:
            try:
                consumer.close(error)
            except Exception as failure:
                shown = f"{type(failure).__name__}: {failure}"
                warnings.warn(f"{type(consumer).__name__} failed when it was closed: {shown}", stacklevel=2)

        for_each(close, consumers)


class Latest(StepConsumer):
    """Keeps the last view of each stage, for `latest` of monitors and of `instrument(…)`."""

    def __init__(self) -> None:
        self.views: dict[str, StepView] = {}
        # By stage: the layout of its last view. The next view uses the same layout if it has the same rows and due schedules.
        self._layouts: dict[str, EntryLayout] = {}

    def consume(self, view: StepView) -> None:
        self.views[view.stage] = view

    def values(self) -> dict[str, float]:
        """The statistics of every measured row and the global numbers in the last view of each stage, by tag."""
        out: dict[str, float] = {}
        for stage, view in self.views.items():
            layout = self._layouts.get(stage)
            if layout is None or layout.rows is not view.rows or layout.due != view.due:
                layout = self._layouts[stage] = EntryLayout(view.rows, view.due, view.stage)
            out.update(layout.fill(view, histograms=(), rows=()).scalars)
        return out
