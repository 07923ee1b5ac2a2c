"""Flight records that somebody else has written: none runs code, and a damaged one is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks.cli.main import main

EMPTY = '{"format":1,"tensors":"","value":{"dict":[]}}'
CONTEXT = {"module": "lightning.pytorch.demos.boring_classes.BoringModel", "hyperparameters": {}}
RECORD = {
    "format": 1,
    "verdict": "forward",
    "step": 3,
    "files": {"batch": "batch.json", "weights": "weights.json"},
    "context": CONTEXT,
}


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A record that names a command of the shell as its module."""
    folder = tmp_path / "flight_record"
    folder.mkdir()
    context = {"module": "os.system", "hyperparameters": {"command": "touch RAN"}}
    record = {**RECORD, "verdict": "batch", "message": "", "files": {"batch": "batch.json"}, "context": context}
    (folder / "record.json").write_text(json.dumps(record))
    (folder / "batch.json").write_text('{"format":1,"tensors":"","value":1}')
    return folder


def test_replay_calls_no_function_that_a_record_names(
    stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command refuses a record whose module is no class of modules."""
    monkeypatch.chdir(tmp_path)
    assert main(["replay", str(stranger)]) == 2
    assert "os.system" in capsys.readouterr().err
    assert not (tmp_path / "RAN").exists()


def _of_context(**fields: Any) -> bytes:
    return json.dumps({**RECORD, "context": {**CONTEXT, **fields}}).encode()


def _of_files(**fields: Any) -> bytes:
    return json.dumps({**RECORD, "files": {**RECORD["files"], **fields}}).encode()  # type: ignore[dict-item]


DAMAGED: dict[str, tuple[bytes, str]] = {
    "a record that is no UTF-8": (b"\xff\xfe", EMPTY),
    "a deep record": (b"[" * 100_000, EMPTY),
    "a deep batch": (json.dumps(RECORD).encode(), "[" * 100_000),
    "an epoch of letters": (_of_context(epoch="x"), EMPTY),
    "a clip value of letters": (_of_context(gradient_clip_val="x"), EMPTY),
    "hyperparameters in a list": (_of_context(hyperparameters=[1]), EMPTY),
    "a file that is a number": (_of_files(batch=5), EMPTY),
    "generators without content": (_of_files(generators="weights.json"), EMPTY),
    "a sparse tensor of lists": (
        json.dumps(RECORD).encode(),
        '{"format":1,"tensors":"","value":{"sparse":[{"list":[]},{"list":[]}],"shape":[9]}}',
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_record_is_a_sentence(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each damage ends `lightning-hooks replay` with the code 2 and one sentence."""
    record, batch = DAMAGED[damage]
    (tmp_path / "record.json").write_bytes(record)
    (tmp_path / "batch.json").write_text(batch)
    (tmp_path / "weights.json").write_text(EMPTY)
    assert main(["replay", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert said and "Traceback" not in said
