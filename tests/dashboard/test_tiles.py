import numpy as np
import pytest

from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.merging import merges_exactly
from lightning_hooks.dashboard.tiles import difference, tile, unit_of
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
    assert unit_of(run.steps("grad", "norm")) == 1
    for level in range(9):
        width = 2**level
        first, last = 64 // width, -(-256 // width)
        found = tile(run, "grad", "mean", nodes, width, first, last)
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
    found = tile(run, "grad", "norm", [row], 1, 0, 8)
    assert found.nan[0].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert found.infinite[0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert np.isnan(found.least[0]).tolist() == [False, False, False, True, True, True, False, False]
    whole = tile(run, "grad", "norm", [row], 8, 0, 1)
    assert (whole.nan.item(), whole.infinite.item(), bool(np.isfinite(whole.least.item()))) == (1, 1, True)


def minus(tmp_path, width=1, last=12, part=""):
    """Cells of the first row, or of a part, of the run a minus b."""
    a, b = LocalRun(tmp_path / "a"), LocalRun(tmp_path / "b")
    node, twin = (next((each for each in nodes_of(run) if each.name == (part or NAMES[0])), None) for run in (a, b))
    found = difference(a, b, "grad", "norm", [(node, twin)], width, 0, last)
    return found.least[0], found.greatest[0], found.nan[0].tolist(), found.infinite[0].tolist()


def test_a_difference_is_of_the_steps_and_rows_that_both_have(tmp_path):
    def halved(step, values):
        values["norm"][0] = 50.0 if step % 4 else 100.0

    def otherwise(step, values):
        values["norm"][0] = 1.0 if step % 4 else 100.0

    write_run(tmp_path / "a", range(400), change=otherwise)
    write_run(tmp_path / "b", [*range(12), *range(100, 400, 100)], names=NAMES[:2], change=halved)
    least, greatest, nan, infinite = minus(tmp_path)
    assert least.tolist() == greatest.tolist() == [0.0, -49.0, -49.0, -49.0] * 3
    assert not any(nan + infinite)
    least, greatest, *_ = minus(tmp_path, width=4, last=4)
    assert least[:3].tolist() == [-49.0] * 3 and greatest[:3].tolist() == [0.0] * 3 and np.isnan(least[3])
    assert np.flatnonzero(~np.isnan(minus(tmp_path, last=400)[0])).tolist() == [*range(12), 100, 200, 300]
    assert np.isnan(minus(tmp_path, part="head.weight")[0]).all()


def test_a_difference_of_parts_is_that_of_the_merged_values(tmp_path):
    write_run(tmp_path / "a", range(12))
    write_run(tmp_path / "b", range(0, 12, 3), change=lambda step, values: values["norm"].__imul__(2))
    least, greatest, *_ = minus(tmp_path, part="net")
    norms = [np.sqrt(sum((elements(step, row) ** 2).sum() for row in range(3))) for step in range(0, 12, 3)]
    np.testing.assert_allclose(least[::3], np.negative(norms), rtol=1e-6)
    assert np.isnan(np.delete(least, [0, 3, 6, 9])).all() and np.array_equal(least, greatest, equal_nan=True)


def test_a_difference_counts_nan_and_infinite_values_and_is_not_measured_where_one_is_not(tmp_path):
    def change(special):
        def change_at(step, values):
            values["norm"][0] = special.get(step, 1.0)
            if step == 4:
                for stat in STATS:
                    values[stat][0] = 0 if stat == "count" else np.nan

        return change_at

    write_run(tmp_path / "a", range(5), change=change({0: np.nan, 1: np.inf, 2: np.inf}))
    write_run(tmp_path / "b", range(6), change=change({1: np.inf, 3: np.nan}))
    least, _, nan, infinite = minus(tmp_path, last=6)
    assert nan == [1, 0, 0, 1, 0, 0] and infinite == [0, 1, 1, 0, 0, 0] and np.isnan(least).all()


def test_the_bytes_are_the_five_arrays(tmp_path):
    write_run(tmp_path, range(4))
    run = LocalRun(tmp_path)
    found = tile(run, "grad", "norm", nodes_of(run)[:3], 1, 0, 4)
    data = found.bytes()
    assert len(data) == 14 * 3 * 4
    np.testing.assert_array_equal(np.frombuffer(data, "<f4", 12, 48).reshape(3, 4), found.greatest)
    np.testing.assert_array_equal(np.frombuffer(data, "<u2", 12, 120).reshape(3, 4), found.infinite)


@pytest.mark.parametrize("stat", ["mean", "std", "norm", "zero_fraction", "nonfinite", "count"])
def test_a_folded_part_is_merged_exactly(tmp_path, stat):
    write_run(tmp_path, range(5))
    run = LocalRun(tmp_path)
    part = next(node for node in nodes_of(run, stat) if node.name == "net")
    assert sorted(part.leaves) == [0, 1, 2]
    found = tile(run, "grad", stat, [part], 1, 0, 5)
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
    write_run(tmp_path, range(3), tensor="update", stats=["norm", "ratio", "count"])
    write_run(tmp_path, range(3), tensor="param", change=lambda step, values: values["norm"].__imul__(4))
    run = LocalRun(tmp_path)
    assert run.rows("update", "ratio") == NAMES
    part = next(node for node in tree(run.rows("update", "ratio"), {}) if node.name == "net")
    found = tile(run, "update", "ratio", [part], 1, 0, 3)
    np.testing.assert_allclose(found.least[0], 0.25, rtol=1e-6)
    assert merges_exactly(run, "update", "ratio") and merges_exactly(run, "update", "norm")


def test_the_update_of_a_parameter_that_was_0_has_no_ratio_and_an_infinite_update_an_infinite_one(tmp_path):
    def updates(step, values):
        if step == 1:
            values["norm"][0] = np.inf

    def params(step, values):
        if step == 0:
            values["norm"][:3] = 0

    write_run(tmp_path, range(3), tensor="update", stats=["norm", "ratio", "count"], change=updates)
    write_run(tmp_path, range(3), tensor="param", change=params)
    run = LocalRun(tmp_path)
    nodes = [node for node in tree(run.rows("update", "ratio"), {}) if node.name in (NAMES[0], "net", NAMES[3])]
    found = tile(run, "update", "ratio", nodes, 1, 0, 3)
    by_name = {node.name: (found.from_zero[i].tolist(), found.infinite[i].tolist()) for i, node in enumerate(nodes)}
    nothing = [0, 0, 0]
    assert by_name == {NAMES[0]: ([1, 0, 0], [0, 1, 0]), "net": ([1, 0, 0], [0, 1, 0]), NAMES[3]: (nothing, nothing)}
    assert np.isnan(found.least[:2, :2]).all() and not found.nan.any()
    whole = tile(run, "update", "ratio", nodes, 4, 0, 1)
    assert whole.from_zero[:, 0].tolist() == [1, 1, 0] and np.isfinite(whole.least).all()


def test_a_part_of_a_run_without_moments_shows_its_greatest_row(tmp_path):
    write_run(tmp_path, range(3), old=True)
    run = LocalRun(tmp_path)
    assert run.tables() == [("grad", stat) for stat in STATS] and not merges_exactly(run, "grad", "norm")
    part = next(node for node in nodes_of(run) if node.name == "net")
    found = tile(run, "grad", "norm", [part], 1, 0, 3)
    for step in range(3):
        assert found.greatest[0, step] == pytest.approx(max(np.linalg.norm(elements(step, row)) for row in part.leaves))


def test_a_ratio_is_a_logarithm_that_is_infinite_at_zero(tmp_path):
    def change(values_at):
        return lambda step, values: values["norm"].fill(values_at[step])

    write_run(tmp_path / "a", range(6), change=change([8.0, 1.0, 0.0, 0.0, np.nan, np.inf]))
    write_run(tmp_path / "b", range(6), change=change([1.0, 50.0, 1.0, 0.0, 1.0, np.inf]))
    a, b = LocalRun(tmp_path / "a"), LocalRun(tmp_path / "b")
    (node,) = (each for each in nodes_of(a) if each.name == NAMES[0])
    found = difference(a, b, "grad", "norm", [(node, node)], 1, 0, 6, as_ratio=True)
    np.testing.assert_allclose(found.least[0], [3, -np.log2(50), np.nan, 0, np.nan, np.nan], rtol=1e-6)
    assert found.infinite[0].tolist() == [0, 0, 1, 0, 0, 1] and found.nan[0].tolist() == [0, 0, 0, 0, 1, 0]
