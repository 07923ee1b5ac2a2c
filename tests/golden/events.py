"""Event files as plain data. TensorBoard's own classes read them, so a change of this package's reader changes no record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Data = dict[str, Any]


def decode(root: Path, normal: Callable[[str], str]) -> Data:
    """The values of all event files below a folder: kind, folder of the file, tag, and for tables row, to values by step.

    Args:
        root: the folder.
        normal: removes from a text what differs from run to run.
    """
    found: Data = {"values": {}, "tables": {}}
    for path in sorted(root.rglob("events.out.tfevents.*")):
        name = path.parent.relative_to(root).as_posix()
        values, tables = (kind.setdefault(name, {}) for kind in found.values())
        _read_file(path, values, tables, normal)
    return found


def _read_file(path: Path, values: Data, tables: Data, normal: Callable[[str], str]) -> None:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    rows: dict[str, list[str]] = {}
    for event in LegacyEventFileLoader(str(path)).Load():
        for value in event.summary.value:
            head, _, digest = value.tag.rpartition("/")
            if head == "table/rows":
                rows[digest] = [each.decode() for each in value.tensor.string_val]
            elif digest in rows:
                # The histograms of rows are a string each.
                packed = [each.hex() for each in value.tensor.string_val]
                numbers = packed or [*map(_number, np.frombuffer(value.tensor.tensor_content, dtype="<f4"))]
                table = tables.setdefault(head.removeprefix("table/"), {})
                for row, number in zip(rows[digest], numbers, strict=True):
                    _add(table.setdefault(row, {}), event.step, number)
            elif not value.tag.endswith("/overhead"):  # a share of time
                tag, decoded = _decoded(value, normal)
                _add(values.setdefault(tag, {}), event.step, decoded)


def _add(series: Data, step: int, value: Any) -> None:
    """Add the value of a step. Keep both values if the step has another one already."""
    key = str(step)
    while key in series and series[key] != value:
        key += " again"
    series[key] = value


def _number(value: Any) -> float | str:
    """A float32 as the shortest number that reads as it; a text if JSON has no such number."""
    return float(str(np.float32(value))) if np.isfinite(value) else str(float(value))


def _decoded(value: Any, normal: Callable[[str], str]) -> tuple[str, Any]:
    """The tag of a value without digests, and the value."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.tag, _number(value.simple_value)
    if kind == "histo":
        names = ("min", "max", "num", "sum", "sum_squares", "bucket_limit", "bucket")
        return value.tag, {
            name: [*each] if "bucket" in name else each for name in names for each in [getattr(value.histo, name)]
        }
    if value.tag == "custom_scalars__config__":
        return value.tag, _charts(value.tensor.string_val[0])
    if not value.tensor.string_val:
        return value.tag, [_number(each) for each in np.frombuffer(value.tensor.tensor_content, dtype="<f4")]
    texts = [each.decode() for each in value.tensor.string_val]
    if value.tag.startswith("table/index/"):
        index = json.loads(texts[0])
        return f"table/index/{index['prefix']}{index['stage']}", _index(index)
    decoded = [normalised(json.loads(each), normal) if each.startswith(("{", "[")) else normal(each) for each in texts]
    return value.tag, decoded[0] if len(decoded) == 1 else decoded


def normalised(value: Any, normal: Callable[[str], str]) -> Any:
    """Data of JSON with every text normalised, and without times."""
    if isinstance(value, dict):
        return {normal(key): normalised(each, normal) for key, each in value.items() if key not in ("time", "wall_time")}
    if isinstance(value, list):
        return [normalised(each, normal) for each in value]
    return normal(value) if isinstance(value, str) else value


def _charts(content: bytes) -> Any:
    from google.protobuf.json_format import MessageToDict
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

    return MessageToDict(Layout.FromString(content))


def _index(saved: Data) -> Data:
    """The row index of step views by the names of rows instead of their numbers, which a table with other rows changes."""
    labels = [f"{tensor} {name}" for tensor, name in zip(saved["tensors"], saved["names"], strict=True)]
    rows: Data = {label: {"type": kind} for label, kind in zip(labels, saved["module_types"], strict=True)}
    for row, param_row in saved["param_row_of"].items():
        rows[labels[int(row)]]["parameter"] = labels[param_row]
    for group, members in saved["members"].items():
        rows[labels[int(group)]]["members"] = [labels[member] for member in members]
    for kind in ("alike", "groups"):
        for tensor, request, numbers in saved[kind]:
            for number in numbers:
                rows[labels[number]].setdefault(f"requests {kind}", []).append([tensor, saved["requests"][request]])
    for name, numbers in saved["kept"].items():
        for number in numbers:
            rows[labels[number]].setdefault("kept", []).append(name)
    own = ("names", "tensors", "module_types", "param_row_of", "members", "alike", "groups", "requests", "kept", "order")
    order = [labels[row] for row in saved["order"]]
    return {"rows": rows, "order": order, **{key: value for key, value in saved.items() if key not in own}}
