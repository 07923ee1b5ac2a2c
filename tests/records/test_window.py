"""The views of several steps merge into one, exactly; what does not merge keeps its last value and its extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightning_hooks import StepView
from lightning_hooks.plan.row_index import RequestedRows, RowIndex
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from lightning_hooks.records.window import Window
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.function import FunctionMean, key_of
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.accumulators.pairs import Pairs
from lightning_hooks.stats.schema import COUNT, NONFINITE

NEUTRAL = np.array([0.0, 0.0, 0.0, 0.0, np.inf, -np.inf, 0.0, 0.0, 0.0])


def moments_of(elements):
    """A row of moments of some elements, in float64."""
    x = np.asarray(elements, dtype=np.float64).ravel()
    if not len(x):
        return NEUTRAL.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.square(x - x.mean()).sum()
    zeros, small = (x == 0).sum(), ((x != 0) & (np.abs(x) < 1.2e-38)).sum()
    return np.array([len(x), x.mean(), squares, np.abs(x).sum(), x.min(), x.max(), zeros, (~np.isfinite(x)).sum(), small])


def merged(views):
    window = Window()
    for view in views:
        window.add(view)
    return window.view()


numbers = st.floats(-1e3, 1e3, allow_nan=False)
steps_of_two_rows = st.lists(
    st.tuples(*[arrays.arrays(np.float64, st.integers(0, 6), elements=numbers)] * 2), min_size=2, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(steps_of_two_rows)
def test_a_window_has_the_statistics_of_all_elements_of_its_steps(steps):
    rows = RowIndex(["a", "b"], ["output", "output"], magnitudes=True)
    views = [
        StepView(step, rows=rows, moments=np.stack([moments_of(each) for each in of_rows]))
        for step, of_rows in enumerate(steps)
    ]
    view = merged(views)
    assert view.steps == (0, len(steps) - 1)
    for row in range(2):
        parts = [of_rows[row] for of_rows in steps if len(of_rows[row])]
        everything = np.concatenate([*parts, np.zeros(0)])
        assert view.window.measured[row] == len(parts)
        if not parts:
            assert view.moments[row, COUNT] == 0
            continue
        expected = {
            "mean": everything.mean(),
            "std": everything.std(),
            "rms": np.sqrt(np.square(everything).mean()),
            "norm": np.sqrt(np.mean([np.square(each).sum() for each in parts])),
            "abs_mean": np.abs(everything).mean(),
            "min": everything.min(),
            "max": everything.max(),
            "abs_max": np.abs(everything).max(),
            "zero_fraction": (everything == 0).mean(),
            "count": len(everything) / len(parts),
        }
        for stat, value in expected.items():
            assert view.values(stat, [row])[0] == pytest.approx(value, rel=1e-9, abs=1e-9), stat


def test_numbers_that_are_not_finite_are_counted_over_all_steps():
    rows = RowIndex(["a"], ["grad"])
    elements = [[1.0, 2.0], [np.nan, 2.0], [np.inf, np.nan], [1.0, 1.0]]
    view = merged([StepView(step, rows=rows, moments=moments_of(each)[None]) for step, each in enumerate(elements)])
    assert view.moments[0, NONFINITE] == 3 and view.moments[0, COUNT] == 2
    assert view.summaries == {} and np.isnan(view.values("norm", [0])[0])


def test_a_window_of_one_view_is_the_view():
    view = StepView(4)
    assert merged([view]) is view
    with pytest.raises(ValueError, match="no views"):
        Window().view()


def test_histograms_add_up_and_pairs_are_those_of_a_mean_step():
    every, tenth = EveryN(1), EveryN(10)
    index = np.array([0])
    rows = RowIndex(
        ["a"],
        ["grad"],
        requested_rows=[RequestedRows("grad", ((every, ("micro_cosine",)), (tenth, ("histogram",))), index)],
        kept=[AccumulatorRows(Pairs(), (0,)), AccumulatorRows(Histogram(), (0,))],
    )
    counts = np.zeros((1, Histogram().width))
    counts[0, 300] = 2.0
    nothing = np.broadcast_to(np.float64(0.0), counts.shape)
    views = []
    for step in range(10):
        # Two micro-batches whose gradients are equal: |g + g|² is twice |g|² + |g|².
        pairs = np.array([[3.0, 2.0, 8.0, 4.0, 2.0, 0.0, 0.0]])
        due = frozenset([every, tenth] if step in (4, 9) else [every])
        kept = {"pairs": pairs, "histogram": counts if tenth in due else nothing}
        views.append(StepView(step, rows=rows, moments=moments_of([2.0, 2.0])[None], kept=kept, due=due))
    view = merged(views)
    assert view.histogram([0])[0, 300] == 4
    assert view.due == {every, tenth}
    assert view.values("micro_cosine", [0])[0] == pytest.approx(views[0].values("micro_cosine", [0])[0])
    assert view.values("cosine", [0])[0] == pytest.approx(3 / 4)


def test_a_users_statistic_keeps_its_last_value_and_its_extremes():
    every = EveryN(1)
    rows = RowIndex(
        ["a"],
        ["output"],
        requested_rows=[RequestedRows("output", ((every, ("mine", "metric")),), np.array([0]))],
        kept=[AccumulatorRows(FunctionMean("mine"), (0,))],
    )
    views = [
        StepView(
            step,
            rows=rows,
            moments=moments_of([1.0])[None],
            kept={key_of("mine"): np.array([[value, 1.0]] if value is not None else [[0.0, 0.0]])},
            metrics={(0, "metric"): 10.0 - step},
            due=frozenset([every]),
            vectors={(0, "rms"): np.array([step, 3.0 - step])},
        )
        for step, value in enumerate((5.0, 1.0, 3.0, None))
    ]
    view = merged(views)
    found = [view.values(stat, [0])[0] for stat in ("mine", "mine.least", "mine.greatest", "metric", "metric.greatest")]
    assert found == [3.0, 1.0, 5.0, 7.0, 10.0]
    assert view.vectors[0, "rms"].tolist() == [3.0, 0.0] and view.vectors[0, "rms.least"].tolist() == [0.0, 0.0]


def test_global_numbers_follow_from_the_rows_or_keep_their_last_value():
    rows = RowIndex(["a", "loss"], ["grad", "loss"])
    rates = (0.1, 0.3, 0.2)
    views = [
        StepView(
            step,
            rows=rows,
            moments=np.stack([moments_of([norm]), moments_of([loss])]),
            summaries={"run/grad_norm": norm, "run/loss": loss, "run/overhead": overhead, "run/nonfinite": 0.0},
            facts=StepFacts((OptimizerFacts("SGD", (GroupFacts(rates[step], 0.0, ("a",)),)),)),
        )
        for step, (norm, loss, overhead) in enumerate([(3.0, 1.0, 0.5), (4.0, 9.0, 0.1), (5.0, 2.0, 0.2)])
    ]
    view = merged(views)
    assert view.summaries["run/grad_norm"] == pytest.approx(np.sqrt(50 / 3))
    assert view.summaries["run/loss"] == pytest.approx(4.0) and view.summaries["run/overhead"] == 0.2
    extremes = view.window.extremes
    assert extremes["run/loss"] == (1.0, 9.0) and extremes["run/overhead"] == (0.1, 0.5) and extremes["lr/0/0"] == (0.1, 0.3)
    assert view.facts is views[-1].facts


def test_a_loss_that_is_not_finite_is_an_extreme_of_its_window():
    views = [StepView(step, summaries={"run/loss": loss}) for step, loss in enumerate((1.0, np.nan, 2.0))]
    low, high = merged(views).window.extremes["run/loss"]
    assert np.isnan(low) and np.isnan(high)
