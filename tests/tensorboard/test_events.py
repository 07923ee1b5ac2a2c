import numpy as np
import pytest
from tensorboard.util.tensor_util import make_ndarray

from lightning_hooks.stats.histogram import bucket_edges
from lightning_hooks.tensorboard.events import EventBuilder
from lightning_hooks.tensorboard.histograms import histogram_proto

from .records import NAMES, record


def by_tag(summary):
    return {value.tag: value for value in summary.value}


def test_a_step_holds_the_table_the_scalars_and_the_row_list():
    builder = EventBuilder()
    values = by_tag(builder.summary(record(1)))
    digest = builder.row_list(NAMES)
    assert list(values) == [
        f"table/rows/{digest}",
        f"table/grad/norm/{digest}",
        f"table/grad/count/{digest}",
        "grad_norm/encoder.0.weight",
        "grad_norm/encoder.0.bias",
        "run/grad_norm",
    ]
    assert make_ndarray(values[f"table/rows/{digest}"].tensor).tolist() == [name.encode() for name in NAMES]
    np.testing.assert_array_equal(make_ndarray(values[f"table/grad/norm/{digest}"].tensor), [0.125, 1.125, np.nan])
    np.testing.assert_array_equal(make_ndarray(values[f"table/grad/count/{digest}"].tensor), [4, 4, 0])


def test_metadata_and_row_lists_are_written_once_a_file():
    builder = EventBuilder()
    first, second = builder.summary(record(0)), builder.summary(record(1))
    named = [value for value in first.value if value.tag.startswith("table/")]
    assert {value.metadata.plugin_data.plugin_name for value in named} == {"lightning_hooks"}
    again = [value for value in second.value if value.tag.startswith("table/")]
    assert [value.HasField("metadata") for value in again] == [False, False]
    assert len(second.SerializeToString()) < len(first.SerializeToString())


def test_another_list_of_rows_gets_another_tag():
    builder = EventBuilder()
    before, after = builder.row_list(NAMES), builder.row_list(NAMES[::-1])
    assert before != after
    assert builder.row_list(tuple(NAMES)) == before


def test_values_beyond_float32_become_infinite_without_a_warning():
    step = record(0)
    step.values[0] = 1e300
    values = by_tag(EventBuilder().summary(step))
    tag = next(tag for tag in values if tag.startswith("table/grad/norm/"))
    assert make_ndarray(values[tag].tensor)[0] == np.inf


def test_histogram_keeps_every_count_and_one_bucket_for_each_gap():
    counts = np.zeros(509)
    counts[[250, 260, 261]] = [3, 7, 1]
    edges = bucket_edges()
    proto = histogram_proto(counts, edges[1:])
    assert list(proto.bucket) == [0.0, 3.0, 0.0, 7.0, 1.0]
    assert (proto.num, proto.min, proto.max) == (11.0, edges[250], edges[262])
    assert list(proto.bucket_limit) == [edges[250], edges[251], edges[260], edges[261], edges[262]]


def test_an_empty_histogram_is_still_one():
    proto = histogram_proto(np.zeros(3), np.array([0.0, 1.0, 2.0]))
    assert (proto.num, list(proto.bucket)) == (0.0, [0.0])


@pytest.mark.parametrize("prefix", ["", "env/", "a."])
def test_prefix_comes_before_every_tag_of_the_monitor(prefix):
    tags = [value.tag for value in EventBuilder().summary(record(0, prefix=prefix)).value]
    assert f"{prefix}grad_norm/encoder.0.bias" in tags
    assert f"{prefix}run/grad_norm" in tags
    assert any(tag.startswith(f"table/{prefix}grad/norm/") for tag in tags)
