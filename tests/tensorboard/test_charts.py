import re

from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util.tensor_util import make_ndarray

from lightning_hooks.tensorboard.charts import categories, layout_summary


def layout(*args, **kwargs):
    (value,) = layout_summary(categories(*args, **kwargs)).value
    assert value.tag == "custom_scalars__config__"
    assert value.metadata.plugin_data.plugin_name == "custom_scalars"
    return layout_pb2.Layout.FromString(make_ndarray(value.tensor).flatten()[0])


def test_a_category_for_each_tensor_and_a_chart_for_each_statistic():
    found = layout([("grad", "norm"), ("output[0]", "std"), ("grad", "std")])
    assert [category.title for category in found.category] == ["run", "grad", "output[0]"]
    assert [chart.title for chart in found.category[1].chart] == ["grad norm", "grad std"]


def test_patterns_match_their_tags_and_no_others():
    found = layout([("output[0]", "std")], "env/")
    (pattern,) = found.category[1].chart[0].multiline.tag
    assert re.search(pattern, "env/output[0]_std/encoder.0")
    assert not re.search(pattern, "output[0]_std/encoder.0")
    assert not re.search(pattern, "env/output0_std/encoder.0")


def test_charts_of_transforms_only_where_there_are_any():
    titles = [chart.title for chart in layout([]).category[0].chart]
    assert titles == ["loss", "gradient norms", "update ratio", "non-finite elements", "share of the time spent on watching"]
    assert "transforms: cosine" in [chart.title for chart in layout([], transforms=True).category[0].chart]
