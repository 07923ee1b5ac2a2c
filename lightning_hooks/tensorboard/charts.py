"""Builds the layout of TensorBoard's Custom Scalars tab, which shows charts that belong together side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2, metadata
from tensorboard.util.tensor_util import make_tensor_proto


def categories(pairs: Sequence[tuple[str, str]], prefix: str = "", *, transforms: bool = False) -> list[Any]:
    """One category for each tensor with a chart for each statistic, and one for the global numbers.

    Args:
        pairs: (tensor, statistic) of the scalars that are logged.
        prefix: put before every tag and title; empty by default.
        transforms: whether to add charts for the reports of transforms.
    """
    tensors: dict[str, list[str]] = {}
    for tensor, stat in pairs:
        tensors.setdefault(tensor, []).append(stat)
    of_run = [
        _chart("loss", f"{prefix}run/", "loss"),
        _chart("gradient norms", f"{prefix}run/", "(grad_norm|final_grad_norm)"),
        _chart("update ratio", f"{prefix}run/", "update_ratio"),
        _chart("non-finite elements", f"{prefix}run/", "nonfinite"),
        _chart("share of the time spent on watching", f"{prefix}run/", "overhead"),
    ]
    if transforms:
        of_run += [
            _chart("transforms: norm before and after", f"{prefix}transform_", "norm_(before|after)/.*"),
            _chart("transforms: share of steps acted", f"{prefix}transform_", "acted/.*"),
            _chart("transforms: cosine", f"{prefix}transform_", "cosine/.*"),
        ]
    out = [layout_pb2.Category(title=f"{prefix}run", chart=of_run)]
    for tensor, stats in tensors.items():
        charts = [_chart(f"{tensor} {stat}", f"{prefix}{tensor}_{stat}/", ".*") for stat in stats]
        out.append(layout_pb2.Category(title=f"{prefix}{tensor}", chart=charts, closed=True))
    return out


def layout_summary(categories: Iterable[Any]) -> Any:
    """The `Summary` that shows these categories. If a run has several, TensorBoard shows the last one."""
    # Build the summary by hand, because the helper function of the custom_scalar plugin needs TensorFlow.
    layout = layout_pb2.Layout(category=categories).SerializeToString()
    summary = Summary()
    summary.value.add(
        tag=metadata.CONFIG_SUMMARY_TAG, tensor=make_tensor_proto([layout]), metadata=metadata.create_summary_metadata()
    )
    return summary


def _chart(title: str, literal: str, pattern: str) -> Any:
    content = layout_pb2.MultilineChartContent(tag=[f"^{re.escape(literal)}{pattern}$"])
    return layout_pb2.Chart(title=title, multiline=content)
