from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin
from torch.utils.tensorboard import SummaryWriter
from werkzeug.test import Client
from werkzeug.wrappers import Response

from lightning_hooks.errors import RuleError
from lightning_hooks.tensorboard.projector import write_projector


class Tab:
    """TensorBoard's own plugin on a log directory, asked the way the page asks it."""

    def __init__(self, logdir: Path) -> None:
        multiplexer = EventMultiplexer().AddRunsFromDirectory(str(logdir))
        multiplexer.Reload()
        provider = MultiplexerDataProvider(multiplexer, str(logdir))
        self.apps = ProjectorPlugin(TBContext(data_provider=provider, logdir=str(logdir))).get_plugin_apps()

    def get(self, route: str, **query: Any) -> Any:
        answer = Client(self.apps[route], Response).get("/", query_string=query)
        assert answer.status_code == 200, answer.get_data(as_text=True)
        return answer

    def tensor(self, name: str, run: str = ".") -> np.ndarray[Any, Any]:
        return np.frombuffer(self.get("/tensor", run=run, name=name).get_data(), dtype=np.float32)

    def metadata(self, name: str, run: str = ".") -> str:
        text: str = self.get("/metadata", run=run, name=name).get_data(as_text=True)
        return text

    def embeddings(self, run: str = ".") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.get("/info", run=run).get_data())["embeddings"]
        return found


def test_a_log_directory_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuleError, match="^write_projector: logdir must be a folder of this machine, got 's3://bucket/run'"):
        write_projector("s3://bucket/run", "encoder", torch.eye(2))
    assert not list(tmp_path.iterdir())


def test_the_plugin_serves_what_was_written_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(20, 5) * 10.0 ** torch.randint(-30, 30, (20, 5))
    labels = {"digit": list(range(20)), "name": [f"sample {i}" for i in range(20)]}
    write_projector(tmp_path, "encoder.0", vectors, labels=labels)
    tab = Tab(tmp_path)
    assert tab.embeddings() == [
        {
            "tensorName": "encoder.0",
            "tensorShape": [20, 5],
            "tensorPath": "projector/encoder.0/tensors.tsv",
            "metadataPath": "projector/encoder.0/metadata.tsv",
        }
    ]
    np.testing.assert_array_equal(tab.tensor("encoder.0"), vectors.numpy().ravel())
    assert tab.metadata("encoder.0").splitlines()[:3] == ["digit\tname", "0\tsample 0", "1\tsample 1"]


def test_beside_the_events_of_a_run(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "version_0")) as writer:
        writer.add_scalar("loss", 1.0, 0)
    write_projector(tmp_path / "version_0", "encoder", torch.eye(3))
    tab = Tab(tmp_path)
    assert json.loads(tab.get("/runs").get_data()) == ["version_0"]
    assert tab.tensor("encoder", run="version_0").tolist() == torch.eye(3).flatten().tolist()


def test_zeros_can_be_read(tmp_path: Path) -> None:
    write_projector(tmp_path, "dead", torch.zeros(3, 2))
    assert Tab(tmp_path).tensor("dead").tolist() == [0.0] * 6


def test_other_names_stay_and_the_same_name_is_replaced(tmp_path: Path) -> None:
    write_projector(tmp_path, "first", torch.eye(2), labels={"digit": [1, 2]})
    write_projector(tmp_path, "second", torch.eye(3))
    write_projector(tmp_path, "first", torch.ones(4, 2))
    tab = Tab(tmp_path)
    found = {embedding["tensorName"]: embedding for embedding in tab.embeddings()}
    assert {name: embedding["tensorShape"] for name, embedding in found.items()} == {"second": [3, 3], "first": [4, 2]}
    assert "metadataPath" not in found["first"]
    assert tab.tensor("first").tolist() == [1.0] * 8
    assert not list(tmp_path.rglob("*.tmp"))


def test_one_column_has_no_heading_and_every_label_stays_on_its_line(tmp_path: Path) -> None:
    labels = {"digit": ["a\tb", "", "c\nd", torch.tensor(3)]}
    write_projector(tmp_path, "encoder", torch.ones(4, 2), labels=labels)
    assert Tab(tmp_path).metadata("encoder") == "a b\n-\nc d\n3\n"


def test_vectors_that_are_not_finite_are_left_out_with_their_labels(tmp_path: Path) -> None:
    vectors = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [3.0, 4.0], [0.0, float("inf")]], dtype=torch.bfloat16)
    write_projector(tmp_path, "encoder", vectors, labels={"digit": [0, 1, 2, 3]})
    tab = Tab(tmp_path)
    assert tab.tensor("encoder").tolist() == [1.0, 2.0, 3.0, 4.0]
    assert tab.metadata("encoder") == "0\n2\n"
    assert tab.embeddings()[0]["tensorShape"] == [2, 2]


@pytest.mark.parametrize("name", ["with/slash", "..", "../up", "a b", "ä", "x" * 300])
def test_any_name_stays_inside_the_log_directory(tmp_path: Path, name: str) -> None:
    write_projector(tmp_path / "logs", name, torch.eye(2))
    assert Tab(tmp_path / "logs").tensor(name).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert len(list((tmp_path / "logs/projector").iterdir())) == 1


def test_what_cannot_be_shown(tmp_path: Path) -> None:
    for vectors in (torch.ones(3), torch.ones(2, 2, 2), torch.ones(0, 3)):
        message = f"vectors must be real numbers [N, D] with elements, got {list(vectors.shape)} of torch.float32"
        with pytest.raises(RuleError, match=re.escape(message)):
            write_projector(tmp_path, "encoder", vectors)
    with pytest.raises(RuleError, match="labels 'digit' has 1 values for 2 vectors"):
        write_projector(tmp_path, "encoder", torch.eye(2), labels={"digit": [1]})
    with pytest.raises(RuleError, match="none of the vectors of 'encoder' is finite"):
        write_projector(tmp_path, "encoder", torch.full((2, 2), float("nan")))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "projector_config.pbtxt").write_text("not: a config {")
    with pytest.raises(RuleError, match="projector_config.pbtxt is not a configuration of the projector"):
        write_projector(tmp_path, "encoder", torch.eye(2))
