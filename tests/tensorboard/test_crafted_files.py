"""Event files that somebody made: nothing in them ends in anything but an error of this package, a warning or NaN."""

import json
import struct
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event

from lightning_hooks import RuleError, read_run
from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.diff import diff
from lightning_hooks.dashboard.report import report
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.tensorboard.messages import DamagedError, buckets, checksum, read_event, read_values, strings, varint
from lightning_hooks.tensorboard.run_index import RunIndex

from ..dashboard.runs import NAMES, write_run

MOST_MEMORY = 1 << 27  # bytes; the page of a report alone takes a few megabytes
EXTREMES = (0, 1, 127, 128, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 70)
JSONS = (
    "5",
    "[",
    '{"a": 5}',
    json.dumps({NAMES[0]: {"order": "x"}}),
    json.dumps({NAMES[0]: {"order": 10**400, "shape": 3}}),
    json.dumps({NAMES[0]: {"order": float("nan"), "type": ["x"]}}),
    "[" * 100_000,
    "1" * 5000,
)


def framed(data):
    """A record."""
    head = len(data).to_bytes(8, "little")
    return b"".join((head, checksum(head).to_bytes(4, "little"), data, checksum(data).to_bytes(4, "little")))


def records_of(content):
    """The data of every record."""
    found, at = [], 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        found.append(content[at + 12 : at + 12 + length])
        at += 12 + length + 4
    return found


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The folder of a small run, and the data of its records."""
    folder = tmp_path_factory.mktemp("honest")
    write_run(folder, range(4), histograms=True, scalars={"transform_norm_before/0_Clip": 1.0})
    (file,) = folder.glob("*tfevents*")
    about = Event(wall_time=1.0, step=0)
    value = about.summary.value.add(tag="table/about/rows")
    value.metadata.plugin_data.plugin_name = "lightning_hooks"
    value.tensor.dtype = 7
    value.tensor.string_val.append(json.dumps({NAMES[0]: {"type": "Linear", "shape": [3, 4], "order": 2}}).encode())
    with file.open("ab") as opened:
        opened.write(framed(about.SerializeToString()))
    return folder, records_of(file.read_bytes())


def look_at(folder, other):
    """Read everything that can be read of a run, as a user, the page and the commands do."""
    try:
        run = read_run(folder)
    except RuleError:
        return
    for table in run.tensors():
        run.table(*table)
    runs = LocalRuns(folder)
    api = Api(runs)

    def ask(route, **args):
        answer = api(route, {"run": ".", **args})
        assert answer.status in (200, 400, 404), answer
        return json.loads(answer.body) if answer.kind == "application/json" else answer.body

    ask("runs")
    meta = ask("run")
    ask("overview")
    for each in meta["tensors"]:
        for stat in each["stats"]:
            rows = ask("rows", tensor=each["tensor"], stat=stat)
            cells = {"unit": str(rows["unit"]), "level": "0", "first": "0", "last": "8", "nodes": f"0-{len(rows['nodes']) - 1}"}
            ask("tile", tensor=each["tensor"], stat=stat, key=rows["key"], **cells)
    for tag in meta["scalars"]:
        ask("scalar", tag=tag)
    for i, tag in enumerate(meta["histograms"]):
        for each in ask("histograms", tags=str(i)):
            assert each["tag"] == tag and len(each["steps"]) == len(each["totals"])
    for compare in (lambda: report(folder, 1_000_000), lambda: str(diff(folder, other)), lambda: diff(other, folder).json()):
        try:
            compare()
        except RuleError:
            continue


def check(records, honest, folder):
    """Look at a file of these records: no exception, and no more memory than what the file can ask for."""
    for old in folder.glob("*tfevents*"):
        old.unlink()
    (folder / "events.out.tfevents.1.crafted").write_bytes(b"".join(records))
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            look_at(folder, honest)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


# Without shrinking: a failing example takes seconds, and says already which bytes or values were changed.
FEW = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


@pytest.mark.slow
@FEW
@given(data=st.data())
def test_bytes_that_change_end_in_no_traceback(honest, tmp_path, data):
    folder, records = honest
    content = [bytearray(record) for record in records]
    for _ in range(data.draw(st.integers(1, 4))):
        record = content[data.draw(st.integers(0, len(content) - 1))]
        if not record:
            continue
        at = data.draw(st.integers(0, len(record) - 1))
        kind = data.draw(st.sampled_from(["flip", "byte", "number", "insert", "cut", "huge"]))
        if kind == "flip":
            record[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "byte":
            record[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
        elif kind == "number":
            record[at : at + 1] = varint(data.draw(st.sampled_from(EXTREMES)))
        elif kind == "insert":
            record[at:at] = data.draw(st.binary(max_size=12))
        elif kind == "cut":
            del record[at : at + data.draw(st.integers(1, 40))]
        else:
            record[at:at] = b"\xff" * 3000
    made = [framed(bytes(record)) for record in content]
    if data.draw(st.booleans()):  # the length of a record, with its checksum
        i = data.draw(st.integers(0, len(made) - 1))
        head = (data.draw(st.sampled_from(EXTREMES)) % (1 << 64)).to_bytes(8, "little")
        made[i] = head + checksum(head).to_bytes(4, "little") + made[i][12:]
    check(made, folder, tmp_path)


@pytest.mark.slow
@FEW
@given(data=st.data())
def test_messages_that_are_valid_and_wrong_end_in_no_traceback(honest, tmp_path, data):
    folder, records = honest
    events = [Event.FromString(record) for record in records]
    holding = [event for event in events if event.summary.value]
    for _ in range(data.draw(st.integers(1, 6))):
        event = data.draw(st.sampled_from(holding))
        value = data.draw(st.sampled_from([*event.summary.value]))
        kind = data.draw(st.sampled_from(["tag", "plugin", "step", "number", "vector", "type", "strings", "histogram", "json"]))
        if kind == "tag":
            others = [each.tag for each in holding[0].summary.value]
            value.tag = data.draw(
                st.sampled_from([*others, "", "x", "table/", "table/a/b", "table/a/b/c", "a/b/c/d", "." * 3000, "run/"])
            )
        elif kind == "plugin":
            value.metadata.plugin_data.plugin_name = data.draw(st.sampled_from(["lightning_hooks", "", "scalars", "text"]))
        elif kind == "step":
            event.step = data.draw(st.sampled_from([-(1 << 63), -1, 1 << 53, (1 << 62) - 1, 1 - (1 << 62), (1 << 63) - 1]))
        elif kind == "number":
            value.simple_value = data.draw(st.sampled_from([0.0, float("nan"), float("inf"), 1e38]))
        elif kind == "vector":
            value.tensor.dtype = data.draw(st.sampled_from([0, 1, 2, 7]))
            value.tensor.tensor_content = bytes(data.draw(st.sampled_from([0, 1, 3, 4, 12, 16, 20, 4000])))
        elif kind == "type":
            value.tensor.dtype = data.draw(st.sampled_from([0, 1, 2, 7]))
        elif kind == "strings":
            value.tensor.string_val[:] = data.draw(
                st.sampled_from([[], [b"a"], [b"a", b"a"], [b"a"] * 5, [b"\xff.", b"."], [b"." * 5000], [b"a." * 3000] * 4])
            )
        elif kind == "histogram":
            value.histo.bucket_limit[:] = data.draw(st.sampled_from([[], [1.0], [float("nan")] * 3]))
            value.histo.bucket[:] = data.draw(st.sampled_from([[], [1.0, 2.0], [-1.0]]))
        else:
            value.tensor.string_val[:] = [data.draw(st.sampled_from(JSONS)).encode()]
    check([framed(event.SerializeToString()) for event in events], folder, tmp_path)


def test_moments_whose_counts_are_lost_are_no_table(honest, tmp_path):
    folder, records = honest
    events = [Event.FromString(record) for record in records]
    lost = [value for event in events for value in event.summary.value if value.tag.startswith("table/grad/count/")]
    assert lost
    for value in lost:
        value.tag = "x"
    check([framed(event.SerializeToString()) for event in events], folder, tmp_path)


@FEW
@given(data=st.binary(max_size=60))
def test_messages_of_any_bytes_are_read_or_damaged(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strings(data)
        edges, counts = buckets(data)
    assert len(edges) == len(counts)
    try:
        read_event(data)
    except DamagedError:
        pass


def crafted(folder, honest, change):
    """Write the honest run with one thing changed: `change(step, value)` of each value of its events."""
    events = [Event.FromString(record) for record in honest[1]]
    for event in events:
        for value in [*event.summary.value]:
            change(event, value)
    file = folder / "events.out.tfevents.1.crafted"
    file.write_bytes(b"".join(framed(event.SerializeToString()) for event in events))
    return file


def test_a_vector_of_another_length_than_its_list_of_rows_is_not_read(honest, tmp_path):
    def longer(event, value):
        if value.tag.startswith("table/grad/mean") and event.step == 2:
            value.tensor.tensor_content = struct.pack("<3f", 1, 2, 3)

    file = crafted(tmp_path, honest, longer)
    with pytest.warns(UserWarning, match=r"1 of 4 vectors of 'table/grad/mean/\w+' are not read: they do not have the 4 rows"):
        table = read_run(tmp_path).table("grad", "mean")
    assert table.steps.tolist() == [0, 1, 3] and not np.isnan(table.values).any()
    index = RunIndex(tmp_path)
    with pytest.warns(UserWarning, match="are not read"):
        index.table_points("grad", "mean")
    (problem,) = index.problems()
    assert problem.startswith(f"{file.name}: 1 of 4 vectors of 'table/grad/mean/")


def test_of_a_tag_of_two_kinds_the_first_is_read(honest, tmp_path):
    def mixed(event, value):
        if value.tag == "run/grad_norm" and event.step >= 2:
            value.tensor.dtype = 1
            value.tensor.tensor_content = bytes(16)
            value.tensor.tensor_shape.dim.add(size=4)

    file = crafted(tmp_path, honest, mixed)
    said = f"{file}: only the values of the kind that came first are read of 'run/grad_norm', which have several kinds"
    with pytest.warns(UserWarning, match=said):
        run = read_run(tmp_path)
    assert run.scalars["run/grad_norm"][0].tolist() == [0, 1]
    with pytest.warns(UserWarning, match=said):
        assert RunIndex(tmp_path).numbers("run/grad_norm")[0].tolist() == [0, 1]


@pytest.mark.parametrize("step", [1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63)])
def test_a_step_beyond_any_run_is_damaged(honest, tmp_path, step):
    def beyond(event, value):
        if event.step == 1:
            event.step = step

    file = crafted(tmp_path, honest, beyond)
    with pytest.warns(UserWarning, match=f"{file}: damaged events are not read \\(1; the first begins at byte"):
        assert read_run(tmp_path).table("grad", "norm").steps.tolist() == [0, 2, 3]


@pytest.mark.parametrize("content", JSONS)
def test_what_is_said_of_rows_is_checked(honest, tmp_path, content):
    def other(event, value):
        if value.tag == "table/about/rows":
            value.tensor.string_val[:] = [content.encode()]

    crafted(tmp_path, honest, other)
    api = Api(LocalRuns(tmp_path))
    answer = api("rows", {"run": ".", "tensor": "grad", "stat": "norm"})
    nodes = {each["name"]: each for each in json.loads(answer.body)["nodes"]}
    assert {*nodes} >= {*NAMES} and nodes[NAMES[0]]["type"] == "" and nodes[NAMES[0]]["shape"] is None


def test_a_number_never_goes_on_in_its_neighbour():
    with pytest.raises(DamagedError, match="ends 1 bytes after its message"):
        [*read_values(b"\x0a\x02\x10\x80" + b"\x01\x00")]
    with pytest.raises(DamagedError, match="has more than 64 bits"):
        read_event(b"\x10" + b"\xff" * 11 + b"\x01")


def test_a_file_that_was_replaced_in_place_by_a_larger_one_is_read_again(tmp_path):
    write_run(tmp_path / "a", range(3))
    write_run(tmp_path / "b", range(100, 109))
    (a,), (b,) = ([*(tmp_path / name).glob("*tfevents*")] for name in "ab")
    index = RunIndex(a)
    history = index.history
    with a.open("r+b") as opened:
        opened.write(b.read_bytes())
    assert index.refresh() and index.history > history
    assert index.table_points("grad", "count").steps.tolist() == [*range(100, 109)]
    assert not index.refresh()
