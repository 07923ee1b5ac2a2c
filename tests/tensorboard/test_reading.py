import time

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks import RuleError, read_run
from lightning_hooks.tensorboard import StepEventWriter

from .records import NAMES, record


def write(folder, steps, **options):
    summary_writer = SummaryWriter(folder)
    writer = StepEventWriter(summary_writer)
    writer.write_start("| rules |", [("grad", "norm")], steps[0])
    for step in steps:
        writer.write(record(step, **options))
    summary_writer.close()


def test_a_run_comes_back_whole(tmp_path):
    write(tmp_path, range(300), histograms=True)
    run = read_run(tmp_path)
    steps, values = run.scalars["grad_norm/encoder.0.bias"]
    assert steps.tolist() == list(range(300))
    np.testing.assert_array_equal(values, 1 + np.arange(300) / 8)
    table = run.table("grad", "norm")
    assert table.names == NAMES
    assert table.values.shape == (300, 3)
    np.testing.assert_array_equal(table["encoder.0.weight"], np.arange(300) / 8)
    assert np.isnan(table["head"]).all()
    assert (run.table("grad", "count")["head"] == 0).all()
    assert run.tensors() == [("grad", "norm"), ("grad", "count")]
    assert run.texts == {"run/rules": "| rules |"}
    assert len(run.histograms["grad_histogram/encoder.0.weight"]) == 300
    assert repr(run) == f"<Run {str(tmp_path)!r}: 3 scalar tags, 2 tables>"


def test_a_single_file_reads_like_its_directory(tmp_path):
    write(tmp_path, range(3))
    (file,) = tmp_path.glob("*tfevents*")
    assert read_run(file).scalars["run/grad_norm"][1].tolist() == [0.0, 1.0, 2.0]


def test_rows_that_changed_at_a_resume_are_joined_by_name(tmp_path):
    write(tmp_path, range(2))
    time.sleep(1.1)  # the name of a file holds the second
    write(tmp_path, range(2, 4), names=("encoder.0.bias", "new", "head"))
    table = read_run(tmp_path).table("grad", "norm")
    assert table.names == (*NAMES, "new")
    assert table.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(table["encoder.0.bias"], [1, 1.125, 0.25, 0.375])
    np.testing.assert_array_equal(table["encoder.0.weight"], [0, 0.125, np.nan, np.nan])
    np.testing.assert_array_equal(table["new"], [np.nan, np.nan, 1.25, 1.375])


def write_several(folder, steps, *lists):
    """Monitors with one prefix and other rows write an event each at every step."""
    with SummaryWriter(folder) as summary_writer:
        writers = [StepEventWriter(summary_writer) for _ in lists]
        for step in steps:
            for writer, names in zip(writers, lists, strict=True):
                writer.write(record(step, names=names))


def test_rows_that_several_monitors_write_at_one_step_are_joined(tmp_path):
    write_several(tmp_path, range(4), NAMES, ("first", "second", "last"))
    table = read_run(tmp_path).table("grad", "norm")
    assert table.names == (*NAMES, "first", "second", "last") and table.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(table["encoder.0.bias"], 1 + np.arange(4) / 8)
    np.testing.assert_array_equal(table["second"], 1 + np.arange(4) / 8)
    assert (read_run(tmp_path).table("grad", "count")["first"] == 4).all()
    assert (read_run(tmp_path).table("grad", "count")["encoder.0.weight"] == 4).all()


def test_after_a_resume_a_step_has_the_rows_of_the_later_file_only(tmp_path):
    write_several(tmp_path, range(4), NAMES, ("first", "last"))
    time.sleep(1.1)  # the name of a file holds the second
    write_several(tmp_path, range(2, 5), ("first", "last"), ("third", "fourth"))
    table = read_run(tmp_path).table("grad", "norm")
    np.testing.assert_array_equal(table["encoder.0.weight"], [0, 0.125, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(table["first"], np.arange(5) / 8)
    np.testing.assert_array_equal(table["third"], [np.nan, np.nan, 0.25, 0.375, 0.5])


def test_prefix_with_a_slash(tmp_path):
    write(tmp_path, range(2), prefix="env/")
    run = read_run(tmp_path)
    assert run.tensors("env/") == [("grad", "norm"), ("grad", "count")]
    np.testing.assert_array_equal(run.table("grad", "norm", "env/")["encoder.0.bias"], [1, 1.125])


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_run_that_was_killed_reads_up_to_its_last_whole_step(tmp_path, cut):
    write(tmp_path, range(4))
    (file,) = tmp_path.glob("*tfevents*")
    file.write_bytes(file.read_bytes()[:-cut])
    assert read_run(tmp_path).scalars["run/grad_norm"][0].tolist() == [0, 1, 2]


def test_messages(tmp_path):
    with pytest.raises(RuleError, match=r"^there is no run at '.*nowhere'$"):
        read_run(tmp_path / "nowhere")
    write(tmp_path / "a" / "b", range(1))
    with pytest.raises(RuleError, match=r"no event file in '.*'; there are runs in .*a/b"):
        read_run(tmp_path)
    run = read_run(tmp_path / "a" / "b")
    with pytest.raises(RuleError, match=r"no table 'grad nrom' in .* \(did you mean 'grad norm' or 'grad count'\?\)"):
        run.table("grad", "nrom")
    with pytest.raises(RuleError, match=r"no row 'encoder.0.weigth' \(did you mean 'encoder.0.weight'"):
        run.table("grad", "norm")["encoder.0.weigth"]
