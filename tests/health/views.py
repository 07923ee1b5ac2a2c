"""Step views made by hand: each row has the moments of a tensor whose elements are given by their statistics."""

import numpy as np

from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.step_view import StepView

NOT_MEASURED = np.array([0.0, 0.0, 0.0, 0.0, np.inf, -np.inf, 0.0, 0.0, 0.0])


def moments_of(value, count=4):
    """The moments of a tensor whose elements all are `value`; NaN for a tensor that was not measured."""
    if np.isnan(value):
        return NOT_MEASURED
    return np.array([count, value, 0.0, count * abs(value), value, value, count * (value == 0), 0.0, 0.0])


def index_of(rows, **options):
    """The index of rows (tensor, name)."""
    tensors, names = zip(*rows, strict=True)
    return RowIndex(names, tensors, order=range(len(names)), **options)


def view_of(step, index, values, **options):
    """A view of one step: one value for each row."""
    return StepView(step, rows=index, moments=np.array([moments_of(float(value)) for value in values]), **options)


def views_of(rows, series, **options):
    """Views of the steps 0, 1, … of rows (tensor, name): `series` [steps, rows]."""
    index = index_of(rows)
    return [view_of(step, index, values, **options) for step, values in enumerate(series)]
