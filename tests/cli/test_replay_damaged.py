"""A damaged record: each reader works or raises one kind of error, and the command prints one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lightning_hooks.cli.main import main
from lightning_hooks.dashboard.records import Records, listed, whole
from lightning_hooks.engine.recording.saving import (
    load_batch,
    load_generators,
    load_optimizers,
    load_weights,
    save_batch,
    save_generators,
    save_optimizers,
    save_weights,
)
from lightning_hooks.errors import RuleError
from lightning_hooks.recorder.command import replay_command
from lightning_hooks.recorder.files import RECORD, read_record
from lightning_hooks.recorder.files import to_json as json_of
from tests.damage import damaged
from tests.recorder.test_files import RECORD as WRITTEN

MODULE = "lightning.pytorch.demos.boring_classes.BoringModel"
CONTEXT = {
    "module": MODULE,
    "hyperparameters": {"a": [1]},
    "epoch": 1,
    "batch_idx": 2,
    "global_step": 3,
    "precision": "32-true",
}
BATCH = {"x": torch.ones(1, 32), "y": (torch.eye(2).to_sparse(), torch.tensor([1j]), [b"x", torch.float16, float("nan"), {1}])}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a record by their names."""
    folder = tmp_path_factory.mktemp("saved")
    model = nn.Module()
    model.layer = nn.Linear(32, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model.layer(BATCH["x"]).sum().backward()
    optimizer.step()
    files = {
        "batch": save_batch(BATCH["x"], folder).file,
        "weights": save_weights(model, folder).file,
        "optimizers": save_optimizers([optimizer], folder).file,
        "generators": save_generators(folder).file,
    }
    (folder / "other").mkdir()
    save_batch(BATCH, folder / "other")
    values = {**json.loads(json_of(WRITTEN)), "context": CONTEXT, "files": files}
    (folder / RECORD).write_text(json.dumps(values))
    # The states of the generators are long, and all their words alike.
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(folder.rglob("*.*"))}


@pytest.fixture
def folder(saved: dict[str, bytes], tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    for name, content in saved.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def damage(data: st.DataObject, saved: dict[str, bytes], folder: Path, names: list[str]) -> None:
    """Put one damaged file into a folder in which all others are whole."""
    for name, content in saved.items():
        (folder / name).write_bytes(content)
    name = data.draw(st.sampled_from(names))
    (folder / name).write_bytes(data.draw(damaged(saved[name], name.endswith(".json"))))


@settings(SETTINGS, max_examples=200)
@given(st.data())
def test_a_damaged_part_is_read_or_refused(saved: dict[str, bytes], folder: Path, data: st.DataObject) -> None:
    damage(data, saved, folder, [name for name in saved if name != RECORD])
    model = nn.Module()
    model.layer = nn.Linear(32, 2)
    readers: list[Callable[[], Any]] = [
        lambda: load_batch(folder),
        lambda: load_batch(folder / "other"),
        lambda: load_optimizers(folder),
        lambda: load_generators(folder).restore(),
        lambda: load_weights(model, folder),
    ]
    state = torch.get_rng_state()
    for reader in readers:
        try:
            reader()
        except RuleError as error:
            assert str(folder) in str(error) or "the module is not the one" in str(error)
    torch.set_rng_state(state)


@settings(SETTINGS, max_examples=200)
@given(st.data())
def test_a_damaged_record_is_read_or_refused(saved: dict[str, bytes], folder: Path, data: st.DataObject) -> None:
    (folder / "flight_record").mkdir(exist_ok=True)
    content = data.draw(damaged(saved[RECORD]))
    (folder / "flight_record" / RECORD).write_bytes(content)
    records = Records(folder)
    assert len(records.found()) + len(records.problems()) == 1
    for name, record in records.found().items():
        json.dumps([listed({name: record}), whole(name, record, str(folder))])
        assert replay_command(record, folder).startswith("lightning-hooks replay") or "batch" not in record.files
    try:
        read_record(folder / "flight_record")
    except RuleError as error:
        assert str(folder) in str(error) and not records.found()


@settings(SETTINGS, max_examples=12)
@given(st.data())
def test_the_command_prints_one_line(
    saved: dict[str, bytes], folder: Path, capsys: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    damage(data, saved, folder, [*(name for name in saved if name.endswith(".json") and "/" not in name), RECORD, RECORD])
    one_line(main(["replay", str(folder), "--module", MODULE]), capsys)


def one_line(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    said = capsys.readouterr()
    assert code in (0, 1, 2)
    if code == 2:
        assert said.err.startswith("lightning-hooks: error: ") and said.err.count("\n") == 1 and not said.out


def changed_record(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps({**values, **changes}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"context": {**CONTEXT, "epoch": "x"}}, "context.epoch must be a count, got 'x': the record is damaged"),
        ({"context": {**CONTEXT, "gradient_clip_val": "x"}}, "context.gradient_clip_val must be a finite number, got 'x'"),
        ({"context": {**CONTEXT, "hyperparameters": [1]}}, "context.hyperparameters must be a mapping, got [1]"),
        ({"context": {**CONTEXT, "optimizers": {"SGD": [None]}}}, "context.optimizers must be learning rates by optimizer"),
        ({"context": {**CONTEXT, "precision": "x"}}, "the training could not be set up again: "),
        ({"files": {"batch": 5}}, "record.files['batch'] must be a string, got 5"),
        ({"step": 10**400}, "record.step must be an integer below 2**63"),
        (
            {"growth": {"name": "", "tensor": "", "steps": [], "abs_max": [10**400]}},
            "record.growth.abs_max[0] must be a number",
        ),
        ({"verdict": [1]}, "record.verdict must be one of batch"),
        ({"files": {"batch": "batch.json", "generators": "weights.json"}}, "no generator has this state"),
    ],
)
def test_what_is_damaged_is_named(
    change: dict[str, Any], reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed_record(folder, **change)
    assert main(["replay", str(folder), "--module", MODULE]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"[]", b""])
@pytest.mark.parametrize("name", [RECORD, "batch.json"])
def test_a_file_that_is_no_json_is_refused(name: str, content: bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / name).write_bytes(content)
    assert main(["replay", str(folder), "--module", MODULE]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lightning-hooks: error: {folder / name}: ") and said.count("\n") == 1
