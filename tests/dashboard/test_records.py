"""The flight records of a run, as the page gets them: what is listed, the whole record, damage and size."""

import base64
import json
import os
import re
import zlib
from dataclasses import replace

import pytest

from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.records import MAX_CALLS, MAX_RECORDS, Records, whole
from lightning_hooks.dashboard.report import report
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.recorder.record import Failure, FlightRecord, Gap, Growth, Place, TensorSummary, TrailEntry, Verdict

from .recorded import ENDED, RECORDED, write_record
from .runs import write_run


def asked(api, route, **args):
    answer = api(route, {"run": ".", **args})
    return answer.status, json.loads(answer.body)


def test_the_answers_of_the_api(tmp_path):
    write_run(tmp_path, range(20))
    write_record(tmp_path, RECORDED)
    write_record(tmp_path, ENDED, "flight_record-2")
    api = Api(LocalRuns(tmp_path))
    _, meta = asked(api, "run")
    assert meta["problems"] == [] and [each["name"] for each in meta["records"]] == ["flight_record", "flight_record-2"]
    assert meta["records"][0] == {
        "name": "flight_record",
        "step": 12,
        "verdict": "forward",
        "title": "Forward operation",
        "severity": "critical",
        "message": RECORDED.message,
        "module": "net.1",
        "tensor": "output",
    }
    assert (meta["records"][1]["module"], meta["records"][1]["tensor"]) == ("net.0", "")
    status, record = asked(api, "record", record="flight_record")
    assert status == 200 and record["operation"]["name"] == "aten.exp" and "inputs" not in record["operation"]
    assert record["replay"] == f"lightning-hooks replay {tmp_path}/flight_record"
    assert record["inputs"][0]["headroom"] == pytest.approx(65504 / 12)
    assert record["growth"]["largest"] == 65504 and record["growth"]["abs_max"][-1] == {"float": "inf"}
    assert record["trail"][-1]["nonfinite"] == 3 and record["place"]["result"]["first"] == [3, 1]
    assert record["context"] == [["optimizers", "0 Adam 0.001"], ["precision", "16-mixed"]]  # facts that say something
    _, ended = asked(api, "record", record="flight_record-2")
    assert ended["replay"] is None and ended["place"] is None and ended["failure"]["message"] == "<b>broken</b>"
    status, error = asked(api, "record", record="../flight_record")
    assert (status, error["error"]) == (404, "there is no flight record '../flight_record' in run '.'")
    assert asked(api, "record") == (400, {"error": "record: missing"})


def test_a_record_that_is_written_while_the_page_is_open_changes_the_version(tmp_path):
    write_run(tmp_path, range(20))
    runs = LocalRuns(tmp_path)
    before = runs.open(".").version
    file = write_record(tmp_path, RECORDED)
    runs.open(".").refresh()
    assert runs.open(".").version == before + 1 and [*runs.open(".").records()] == ["flight_record"]
    runs.open(".").refresh()
    assert runs.open(".").version == before + 1
    file.unlink()
    runs.open(".").refresh()
    assert runs.open(".").version == before + 2 and not runs.open(".").records()


def test_a_folder_with_a_record_alone_is_a_run(tmp_path):
    file = write_record(tmp_path, RECORDED)
    (tmp_path / "empty" / "flight_record").mkdir(parents=True)
    runs = LocalRuns(tmp_path)
    assert runs.names() == [{"name": ".", "shown": True, "modified": file.stat().st_mtime}]
    _, meta = asked(Api(runs), "run")
    assert meta["tensors"] == [] and meta["steps"] is None and len(meta["records"]) == 1
    data = re.search(r'<script id="data"[^>]*>([^<]*)</script>', report(tmp_path))
    said = json.loads(zlib.decompress(base64.b64decode(data[1])))
    assert said["records"]["flight_record"]["operation"]["name"] == "aten.exp"


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path):
    file = write_record(tmp_path, RECORDED)
    records = Records(tmp_path)
    first = records.found()["flight_record"]
    assert not records.refresh() and records.found()["flight_record"] is first
    os.utime(file, (1, 1))
    assert records.refresh() and records.found() == {"flight_record": RECORDED}
    assert records.found()["flight_record"] is not first


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "this is no flight record: "),
        ("[]", "it has no number `format`"),
        ('{"format": 99}', "the flight record has format 99"),
        ('{"format": 1, "verdict": "forward", "step": "x"}', "record.step must be an integer below 2**63, got 'x'"),
        ('{"format": 1, "verdict": "sad", "step": 3}', "record.verdict must be one of batch"),
        ("[" * 100_000, "this is no flight record: "),
        (
            '{"format": 1, "verdict": "forward", "step": 1, "growth": {"name": "", "tensor": "", "steps": [], "abs_max": [%s]}}'
            % ("9" * 400),
            "record.growth.abs_max[0] must be a number, or one of nan, inf, -inf",
        ),
        ('{"format": 1, "verdict": "forward", "step": 9007199254740992}', "a step is beyond any run"),
        (" " * 8_000_001, "8,000,001 bytes are more than the 8,000,000 that are read"),
    ],
    ids=["cut", "list", "later", "type", "verdict", "nested", "number", "far", "large"],
)
def test_damage_is_named(content, problem, tmp_path):
    write_record(tmp_path, RECORDED)
    write_record(tmp_path, RECORDED, "flight_record-2").write_text(content)
    records = Records(tmp_path)
    (said,) = records.problems()
    assert said.startswith("flight_record-2/record.json: ") and problem in said
    assert [*records.found()] == ["flight_record"]


def test_other_folders_and_unfinished_ones_are_no_records(tmp_path):
    for name in ("flight_records", "flight_record-x", "my_flight_record"):
        write_record(tmp_path, RECORDED, name)
    (tmp_path / "flight_record").mkdir()
    (tmp_path / "flight_record-3").write_text("a file")
    for number in range(10, 12 + MAX_RECORDS):
        write_record(tmp_path, ENDED, f"flight_record-{number}")
    write_record(tmp_path, RECORDED, "flight_record-2")
    records = Records(tmp_path)
    names = [*records.found()]
    assert names[:2] == ["flight_record-2", "flight_record-10"] and len(names) <= MAX_RECORDS and records.problems() == []


def test_the_whole_record_is_bounded():
    long = "x" * 1_000_000
    tensor = TensorSummary(long, (1,) * 10_000, long)
    nested = {"a": [{"b": "x" * 1000}] * 1000}
    for _ in range(50):
        nested = {"deep": nested}
    big = replace(
        RECORDED,
        message=long,
        place=replace(RECORDED.place, module=long, result=tensor),
        operation=replace(RECORDED.operation, line=long, inputs=(tensor,) * 1000),
        inputs=(tensor,) * 1000,
        trail=tuple(TrailEntry("net.0", "output", step, 0, 0, 0.0, 1.0, 0) for step in range(20_000)),
        growth=Growth("net.0", "output", (*range(20_000),), (1.0,) * 19_999),
        context={"nested": nested, **{str(i): long for i in range(1000)}},
        failure=Failure(long, long, f"{long}the end"),
        notes=(long,) * 1000,
    )
    shown = whole("flight_record", big, "/runs")
    assert len(json.dumps(shown)) < 1_500_000
    assert len(shown["trail"]) == MAX_CALLS and shown["trail"][-1]["step"] == 19_999
    assert len(shown["growth"]["steps"]) == len(shown["growth"]["abs_max"]) == MAX_CALLS
    assert shown["failure"]["traceback"].endswith("the end") and shown["message"].endswith("…")


def test_calls_alone_say_where_a_number_was_noticed():
    place = Place("head", "Linear", "backward", "output_grad", 0, 0, 7, gap=Gap("stem", "stem", ("",)))
    record = FlightRecord(Verdict.BACKWARD, 7, place, trail=(TrailEntry("stem", "output_grad", 7, 0, 0, None, 1.0, 2, "-inf"),))
    shown = whole("flight_record", record, None)
    assert shown["module"] == "stem" and shown["place"]["found"] == "output_grad of stem: 2 −Inf"
    assert shown["place"]["gap"] == {"at": "stem"} and json.dumps(shown)
    assert whole("flight_record", RECORDED, None)["place"]["found"] == ""  # the tensor itself is known


@pytest.mark.parametrize("verdict", [*Verdict])
def test_every_verdict_has_a_title_and_a_severity(verdict):
    shown = whole("flight_record", FlightRecord(verdict, 3), None)
    assert shown["title"] and shown["severity"] == ("warning" if verdict in ("scaler", "signal") else "critical")


def test_what_is_about_the_whole_run_names_no_module():
    for tensor in ("loss", "batch"):
        shown = whole("flight_record", replace(RECORDED, place=replace(RECORDED.place, tensor=tensor)), None)
        assert (shown["module"], shown["replay"]) == ("", None)
