"""What is written is read back by TensorBoard itself: its accumulator, and its server over HTTP with both loaders."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks.tensorboard import StepEventWriter, is_tensorboard

from .records import NAMES, record

STEPS = 5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    summary_writer = SummaryWriter(folder)
    writer = StepEventWriter(summary_writer)
    writer.write_start("| a | b |\n|---|---|\n| 1 | 2 |", [("grad", "norm")], 0)
    for step in range(STEPS):
        summary_writer.add_scalar("loss", step / 2, step)
        writer.write(record(step, histograms=True))
    summary_writer.close()
    return folder


def events(folder):
    (file,) = folder.glob("*tfevents*")
    return [event for event in LegacyEventFileLoader(str(file)).Load() if event.HasField("summary")]


def test_one_event_a_step_in_the_file_of_the_logger(run):
    ours = [event for event in events(run) if not any(value.tag == "loss" for value in event.summary.value)]
    assert [event.step for event in ours] == [0, *range(STEPS)]  # what is watched, then a step each


def test_accumulator_reads_every_form(run):
    accumulator = EventAccumulator(str(run), size_guidance={"histograms": 0, "tensors": 0}).Reload()
    tags = accumulator.Tags()
    assert tags["scalars"] == ["loss", "grad_norm/encoder.0.weight", "grad_norm/encoder.0.bias", "run/grad_norm"]
    assert [point.value for point in accumulator.Scalars("grad_norm/encoder.0.bias")] == [1 + s / 8 for s in range(STEPS)]
    assert tags["histograms"] == ["grad_histogram/encoder.0.weight"]
    drawn = accumulator.Histograms("grad_histogram/encoder.0.weight")
    assert [point.step for point in drawn] == list(range(STEPS))
    assert drawn[0].histogram_value.num == 10
    vectors = [tag for tag in tags["tensors"] if tag.startswith("table/grad/norm/")]
    assert len(vectors) == 1
    np.testing.assert_array_equal(make_ndarray(accumulator.Tensors(vectors[0])[-1].tensor_proto), [0.5, 1.5, np.nan])
    assert list(accumulator.PluginTagToContent("lightning_hooks")) == [tag for tag in tags["tensors"] if "table" in tag]


def test_a_reopened_writer_explains_its_new_file(tmp_path):
    summary_writer = SummaryWriter(tmp_path)
    writer = StepEventWriter(summary_writer)
    writer.write(record(0))
    summary_writer.close()
    time.sleep(1.1)  # the name of a file holds the second
    writer.write(record(1))
    summary_writer.close()
    files = sorted(tmp_path.glob("*tfevents*"))
    assert len(files) == 2
    for file in files:
        (event,) = [event for event in LegacyEventFileLoader(str(file)).Load() if event.HasField("summary")]
        assert any(value.tag.startswith("table/rows/") for value in event.summary.value)


def test_the_last_layout_of_a_run_holds_the_charts_of_all_monitors(tmp_path):
    """TensorBoard shows one layout for each run: the last."""
    summary_writer, other = SummaryWriter(tmp_path / "run"), SummaryWriter(tmp_path / "other")
    StepEventWriter(other).write_start("", [("param", "norm")], 0)
    norm = ("grad", "norm")
    for prefix, pairs in (("a/", [norm]), ("b/", [norm]), ("a/", [("grad", "std"), ("update", "norm")])):
        StepEventWriter(summary_writer).write_start("", pairs, 0, prefix)
    summary_writer.close()
    other.close()
    last = EventAccumulator(str(tmp_path / "run")).Reload().Tensors("custom_scalars__config__")[-1]
    layout = layout_pb2.Layout.FromString(last.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == ["a/run", "a/grad", "b/run", "b/grad", "a/update"]
    assert [chart.title for chart in layout.category[1].chart] == ["grad norm", "grad std"]
    assert len(layout.category[0].chart) == 5  # each once


def test_only_torchs_summary_writer_is_taken_for_tensorboard(tmp_path):
    writer = SummaryWriter(tmp_path)
    assert is_tensorboard(writer)
    assert not is_tensorboard(object())
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--load_fast=false"]], ids=["fast loader", "python loader"])
def test_server_shows_every_form(run, flags):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.parent), "--host", "127.0.0.1"]
    server = subprocess.Popen([*command, "--port", str(port), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        scalars = wait_for(port, "scalars/tags", lambda found: found.get("digits"))
        assert set(scalars["digits"]) == {"loss", "grad_norm/encoder.0.weight", "grad_norm/encoder.0.bias", "run/grad_norm"}
        points = fetch(port, "scalars/scalars?run=digits&tag=grad_norm%2Fencoder.0.bias")
        assert [(step, value) for _, step, value in points] == [(s, 1 + s / 8) for s in range(STEPS)]
        assert list(fetch(port, "histograms/tags")["digits"]) == ["grad_histogram/encoder.0.weight"]
        assert "run/rules" in fetch(port, "text/tags")["digits"]
        shown = fetch(port, "text/text?run=digits&tag=run%2Frules")
        assert re.search(r"<table>", shown[0]["text"])
        layout = fetch(port, "custom_scalars/layout")
        assert [category["title"] for category in layout["category"]] == ["run", "grad"]
    finally:
        server.kill()
        server.wait(10)


def fetch(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/{path}", timeout=10) as answer:
        return json.load(answer)


def wait_for(port, path, ready):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            found = fetch(port, path)
            if ready(found):
                return found
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"TensorBoard did not show {path} in time")


def test_names_are_those_of_the_record(run):
    tags = [value.tag for event in events(run) for value in event.summary.value]
    assert f"grad_norm/{NAMES[-1]}" not in tags  # not measured
