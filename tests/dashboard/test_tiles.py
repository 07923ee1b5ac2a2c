import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.dashboard.merging import is_exact, merged
from lightning_hooks.dashboard.source import LocalRun
from lightning_hooks.dashboard.tiles import tile, unit_of_run
from lightning_hooks.dashboard.tree import tree

from .runs import NAMES, STATS, elements, write_run


def nodes_of(run, stat="norm"):
    return tree(run.rows("grad", stat), {})


def test_cells_at_every_level_hold_the_extremes(tmp_path):
    written = write_run(tmp_path, range(100, 200))
    run = LocalRun(tmp_path)
    values = np.array([written[step]["mean"] for step in range(100, 200)], dtype=np.float32)
    nodes = [node for node in nodes_of(run, "mean") if node.row is not None]
    order = [node.row for node in nodes]
    assert unit_of_run(run) == 1
    for level in range(9):
        width = 2**level
        first, last = 64 // width, -(-256 // width)
        found = tile(run, "grad", "mean", nodes, 1, level, first, last)
        for cell in range(first, last):
            inside = [values[s - 100][order] for s in range(cell * width, (cell + 1) * width) if 100 <= s < 200]
            if inside:
                np.testing.assert_array_equal(found.least[:, cell - first], np.min(inside, axis=0))
                np.testing.assert_array_equal(found.greatest[:, cell - first], np.max(inside, axis=0))
            else:
                assert np.isnan(found.least[:, cell - first]).all()
        assert not found.nan.any() and not found.infinite.any()


def test_nan_infinite_and_not_measured_differ(tmp_path):
    def change(step, values):
        if step == 3:
            values["norm"][0] = np.nan
        if step == 4:
            values["norm"][0] = np.inf
        if step == 5:
            for stat in STATS:
                values[stat][0] = 0 if stat == "count" else np.nan

    write_run(tmp_path, range(8), change=change)
    run = LocalRun(tmp_path)
    row = next(node for node in nodes_of(run) if node.name == NAMES[0])
    found = tile(run, "grad", "norm", [row], 1, 0, 0, 8)
    assert found.nan[0].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert found.infinite[0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert np.isnan(found.least[0]).tolist() == [False, False, False, True, True, True, False, False]
    whole = tile(run, "grad", "norm", [row], 1, 3, 0, 1)
    assert (whole.nan.item(), whole.infinite.item(), bool(np.isfinite(whole.least.item()))) == (1, 1, True)


def test_the_bytes_are_the_four_arrays(tmp_path):
    write_run(tmp_path, range(4))
    run = LocalRun(tmp_path)
    found = tile(run, "grad", "norm", nodes_of(run)[:3], 1, 0, 0, 4)
    data = found.bytes()
    assert len(data) == 12 * 3 * 4
    np.testing.assert_array_equal(np.frombuffer(data, "<f4", 12, 48).reshape(3, 4), found.greatest)
    np.testing.assert_array_equal(np.frombuffer(data, "<u2", 12, 120).reshape(3, 4), found.infinite)


@pytest.mark.parametrize("stat", ["mean", "std", "norm", "zero_fraction", "nonfinite", "count"])
def test_a_folded_part_is_merged_exactly(tmp_path, stat):
    write_run(tmp_path, range(5))
    run = LocalRun(tmp_path)
    part = next(node for node in nodes_of(run, stat) if node.name == "net")
    assert sorted(part.leaves) == [0, 1, 2]
    found = tile(run, "grad", stat, [part], 1, 0, 0, 5)
    for step in range(5):
        x = np.concatenate([elements(step, row) for row in part.leaves])
        expected = {
            "mean": x.mean(),
            "std": x.std(),
            "norm": np.sqrt((x**2).sum()),
            "zero_fraction": 0,
            "nonfinite": 0,
            "count": len(x),
        }[stat]
        assert found.least[0, step] == found.greatest[0, step] == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_the_ratio_of_a_part_is_that_of_its_norms(tmp_path):
    values = np.array([[3.0], [4.0], [np.nan]])
    measured = np.array([[True], [True], [False]])
    norms = {"norm": values, "norm of param": np.array([[6.0], [8.0], [1.0]])}
    assert merged("ratio", values, measured, [0], norms.__getitem__).item() == 0.5
    assert is_exact("ratio", lambda needed: True) and not is_exact("ratio", lambda needed: "of" not in needed)
    assert not is_exact("p99", lambda needed: True)


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(max_examples=40)
@given(st.lists(SIZES, min_size=1, max_size=3), st.integers(0, 1000))
def test_merging_equals_the_statistic_of_all_elements(unions, seed):
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal(size) * 10 ** rng.uniform(-3, 3) for sizes in unions for size in sizes]
    starts = np.cumsum([0, *map(len, unions)])[:-1].tolist()
    compute = {
        "mean": np.mean,
        "std": np.std,
        "rms": lambda x: np.sqrt(np.mean(x**2)),
        "abs_mean": lambda x: np.mean(np.abs(x)),
        "min": np.min,
        "max": np.max,
        "abs_max": lambda x: np.max(np.abs(x)),
        "norm": np.linalg.norm,
    }
    columns = {stat: np.array([[function(x)] for x in rows]) for stat, function in compute.items()}
    columns["count"] = np.array([[len(x)] for x in rows], dtype=float)
    measured = np.ones((len(rows), 1), dtype=bool)
    ends = [*starts[1:], len(rows)]
    for stat, function in compute.items():
        found = merged(stat, columns[stat], measured, starts, columns.__getitem__)[:, 0]
        expected = [function(np.concatenate(rows[a:b])) for a, b in zip(starts, ends, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
