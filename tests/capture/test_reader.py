from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from lightning_hooks.capture import CaptureWriter, load_capture
from lightning_hooks.errors import RuleError

from ._tools import batch, capture_batches


class Counting:
    """Replaces `safe_open`, and records the tensors that are read and the files that are opened."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real = real
        self.files: list[str] = []
        self.tensors: list[str] = []

    def __call__(self, path: Path, framework: str) -> Any:
        self.files.append(path.name)
        counting = self

        class Opened:
            def __enter__(self) -> Opened:
                self.inner = counting.real(path, framework=framework).__enter__()
                return self

            def __exit__(self, *error: object) -> None:
                self.inner.__exit__(None, None, None)

            def get_tensor(self, key: str) -> torch.Tensor:
                counting.tensors.append(key)
                tensor: torch.Tensor = self.inner.get_tensor(key)
                return tensor

        return Opened()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting(safetensors.safe_open)
    monkeypatch.setattr(safetensors, "safe_open", counting)
    return counting


def test_only_what_is_asked_for_is_read(tmp_path: Path, counted: Counting) -> None:
    capture_batches(tmp_path, 10, batches_per_file=2).close()
    capture = load_capture(tmp_path)
    entries = capture["layer"]
    assert (len(entries), entries.steps, capture.shapes) == (10, tuple(range(10)), {"layer": ((2, 3),)})
    assert len(entries[2:5].where(stage="train")) == 3
    assert counted.files == counted.tensors == []
    assert entries[7][0, 0].item() == 7
    assert entries[-4][0, 0].item() == 6
    assert counted.tensors == ["1:layer", "0:layer"]
    assert counted.files == ["train-rank0-000003.safetensors"]


def test_a_bounded_number_of_files_stays_open(tmp_path: Path, counted: Counting) -> None:
    capture_batches(tmp_path, 20, batches_per_file=1).close()
    entries = load_capture(tmp_path)["layer"]
    for _ in range(2):
        assert entries.cat()[::2, 0].tolist() == list(range(20))
    assert len(entries._files._open) == 8
    assert len(counted.files) == 40


def test_ranks_are_merged_by_step_then_rank_then_batch(tmp_path: Path) -> None:
    for rank in (1, 0):
        with CaptureWriter(tmp_path, rank=rank, batches_per_file=3) as writer:
            for batch_idx in range(4):
                samples = [10 * batch_idx + 2 * rank, 10 * batch_idx + 2 * rank + 1]
                tensor = torch.tensor(samples)
                writer.add("layer", tensor, step=batch_idx // 2, stage="predict", batch_idx=batch_idx, sample_indices=tensor)
                writer.end_batch()
    capture = load_capture(tmp_path)
    entries = capture["layer"]
    order = [(info.step, info.rank, info.batch_idx) for info in entries.infos]
    assert order == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 2), (1, 0, 3), (1, 1, 2), (1, 1, 3)]
    assert entries.cat().tolist() == [0, 1, 10, 11, 2, 3, 12, 13, 20, 21, 30, 31, 22, 23, 32, 33]
    assert sum((samples or () for samples in entries.sample_indices), ()) == tuple(entries.cat().tolist())
    assert (capture.ranks, capture.steps, capture.stages) == ((0, 1), (0, 1), ("predict",))
    assert capture.sample_indices == (0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33)
    assert entries.where(rank=1, step=0).cat().tolist() == [2, 3, 12, 13]


def test_a_batch_that_two_runs_captured_is_there_twice_and_can_be_chosen(tmp_path: Path) -> None:
    capture_batches(tmp_path, 3).close()
    capture_batches(tmp_path, 3, first=2).close()
    entries = load_capture(tmp_path)["layer"]
    assert entries.steps == (0, 1, 2, 2, 3, 4)
    assert entries.where(run=1).steps == (2, 3, 4)


def test_entries_are_a_sequence(tmp_path: Path) -> None:
    capture_batches(tmp_path, 4).close()
    entries = load_capture(tmp_path)["layer"]
    assert [tensor[0, 0].item() for tensor in reversed(entries)] == [3, 2, 1, 0]
    assert entries[::2].steps == (0, 2)
    assert entries.batch_indices == (0, 1, 2, 3)
    assert repr(entries) == "<Entries 'layer': 4 tensors, 96 bytes>"
    with pytest.raises(IndexError):
        entries[4]


def test_a_capture_is_a_mapping(tmp_path: Path) -> None:
    capture_batches(tmp_path, 2).close()
    capture = load_capture(str(tmp_path))
    assert (list(capture), len(capture), "layer" in capture, "other" in capture) == (["layer"], 1, True, False)
    assert capture.get("other") is None
    assert [name for name, entries in capture.items() if len(entries) == 2] == ["layer"]
    assert repr(capture) == f"<Capture {str(tmp_path)!r}: 1 names, 2 tensors, 48 bytes>"


def test_a_tensor_that_was_read_is_the_reader_s_own(tmp_path: Path) -> None:
    capture_batches(tmp_path, 2).close()
    entries = load_capture(tmp_path)["layer"]
    first = entries[1]
    first.add_(100)
    assert first.untyped_storage().nbytes() == 24
    assert load_capture(tmp_path)["layer"][1][0, 0].item() == 1


def test_a_capture_can_be_pickled(tmp_path: Path) -> None:
    capture_batches(tmp_path, 2).close()
    capture = load_capture(tmp_path)
    assert capture["layer"][0][0, 0].item() == 0
    assert pickle.loads(pickle.dumps(capture))["layer"][1][0, 0].item() == 1


def test_cat_refuses_entries_that_do_not_fit_together(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer:
        for stage in ("train", "validate"):
            writer.add("stages", batch(0), step=0, stage=stage, batch_idx=0)
        for columns in (3, 4):
            writer.add("shapes", batch(0, columns=columns), step=0, stage="train", batch_idx=0)
    capture = load_capture(tmp_path)
    with pytest.raises(
        RuleError, match=r"'stages' has entries of train and validate: select one with where\(stage='train'\) before cat"
    ):
        capture["stages"].cat()
    with pytest.raises(RuleError, match=r"cannot be concatenated: \[2, 3\] float32, \[2, 4\] float32"):
        capture["shapes"].cat()
    with pytest.raises(RuleError, match="'stages': no entry to concatenate"):
        capture["stages"].where(stage="test").cat()
    with pytest.raises(RuleError, match=r"Entries.where: no field 'stagee' \(did you mean 'stage'"):
        capture["stages"].where(stagee="test")
    assert capture["stages"].where(stage="train").cat().shape == (2, 3)


def test_batches_of_several_sizes_and_scalars_are_concatenated(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer:
        for batch_idx, rows in enumerate([4, 4, 1]):
            writer.add("layer", batch(batch_idx, rows=rows), step=0, stage="train", batch_idx=batch_idx)
            writer.add("loss", torch.tensor(float(batch_idx)), step=0, stage="train", batch_idx=batch_idx)
            writer.end_batch()
    capture = load_capture(tmp_path)
    assert capture["layer"].cat().shape == (9, 3)
    assert capture["loss"].cat().tolist() == [0, 1, 2]


def test_errors_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="there is no folder '.*nowhere'"):
        load_capture(tmp_path / "nowhere")
    with pytest.raises(RuleError, match=r"no capture in '.*': no index-rank\*\.jsonl in it$"):
        load_capture(tmp_path)
    capture_batches(tmp_path / "version_0", 1).close()
    with pytest.raises(RuleError, match="; there are captures in .*version_0$"):
        load_capture(tmp_path)
    with pytest.raises(RuleError, match=r"nothing captured under 'layr' in .* \(did you mean 'layer'\?\)"):
        load_capture(tmp_path / "version_0")["layr"]


def test_a_file_that_was_deleted_or_damaged_is_an_error(tmp_path: Path) -> None:
    capture_batches(tmp_path, 2, batches_per_file=1).close()
    entries = load_capture(tmp_path)["layer"]
    (tmp_path / "train-rank0-000000.safetensors").unlink()
    (tmp_path / "train-rank0-000001.safetensors").write_bytes(b"short")
    with pytest.raises(RuleError, match="train-rank0-000000.safetensors, which holds 'layer', is gone from"):
        entries[0]
    with pytest.raises(RuleError, match="train-rank0-000001.safetensors is damaged"):
        entries[1]
