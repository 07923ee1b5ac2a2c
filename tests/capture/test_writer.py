from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightning_hooks.capture import CaptureWriter, load_capture
from lightning_hooks.errors import RuleError, UnsupportedError

from ._tools import batch, capture_batches, check_whole, records


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_for_every_n_batches_and_one_for_the_rest(tmp_path: Path) -> None:
    writer = capture_batches(tmp_path, 5, batches_per_file=2)
    assert files(tmp_path) == [
        ".rank0.tmp",
        "index-rank0.jsonl",
        "train-rank0-000000.safetensors",
        "train-rank0-000001.safetensors",
    ]
    writer.close()
    assert files(tmp_path) == [
        "index-rank0.jsonl",
        "train-rank0-000000.safetensors",
        "train-rank0-000001.safetensors",
        "train-rank0-000002.safetensors",
    ]
    assert [len(record.entries) for record in records(tmp_path)] == [2, 2, 1]
    assert writer.bytes_written == sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))


def test_a_file_is_ordinary_safetensors(tmp_path: Path) -> None:
    capture_batches(tmp_path, 1).close()
    tensors = load_file(tmp_path / "train-rank0-000000.safetensors")
    assert list(tensors) == ["0:layer"]
    assert torch.equal(tensors["0:layer"], batch(0))


def test_add_keeps_a_private_copy(tmp_path: Path) -> None:
    source = torch.ones(2, 3, requires_grad=True)
    with CaptureWriter(tmp_path) as writer:
        writer.add("layer", source, step=0, stage="train", batch_idx=0)
        with torch.no_grad():
            source.zero_()
    (tensor,) = load_capture(tmp_path)["layer"]
    assert torch.equal(tensor, torch.ones(2, 3))
    assert not tensor.requires_grad


def test_stages_go_to_files_of_their_own_and_count_their_own_batches(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, batches_per_file=2) as writer:
        for batch_idx, stage in enumerate(["train", "validate", "train", "validate", "validate"]):
            writer.add("layer", batch(batch_idx), step=0, stage=stage, batch_idx=batch_idx)
            writer.end_batch()
    assert [(record.file, len(record.entries)) for record in records(tmp_path)] == [
        ("train-rank0-000000.safetensors", 2),
        ("validate-rank0-000001.safetensors", 2),
        ("validate-rank0-000002.safetensors", 1),
    ]
    assert load_capture(tmp_path).stages == ("train", "validate")


def test_two_calls_in_one_batch_are_two_entries(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer:
        for batch_idx in range(2):
            for call in range(2):
                writer.add("shared", batch(10 * batch_idx + call), step=0, stage="train", batch_idx=batch_idx)
            writer.end_batch()
    entries = load_capture(tmp_path)["shared"]
    assert [(info.batch_idx, info.call) for info in entries.infos] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [tensor[0, 0].item() for tensor in entries] == [0, 1, 10, 11]


def test_floating_tensors_are_cast_and_no_others(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, dtype="float16") as writer:
        writer.add("float", torch.tensor([1.0, 1e6]), step=0, stage="train", batch_idx=0)
        writer.add("tokens", torch.tensor([70000]), step=0, stage="train", batch_idx=0)
    capture = load_capture(tmp_path)
    assert capture["float"][0].tolist() == [1.0, float("inf")]
    assert (capture["float"].dtypes, capture["tokens"].dtypes) == ((torch.float16,), (torch.int64,))
    assert capture["tokens"][0].tolist() == [70000]


def test_under_inference_mode(tmp_path: Path) -> None:
    with torch.inference_mode(), CaptureWriter(tmp_path) as writer:
        writer.add("layer", torch.ones(2), step=0, stage="predict", batch_idx=0)
    assert load_capture(tmp_path)["layer"][0].tolist() == [1.0, 1.0]


def nested(layout: torch.layout) -> torch.Tensor:
    # Torch warns that nested tensors of the strided layout are a prototype.
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.eye(2).to_sparse(), "torch.float32 of torch.sparse_coo on cpu"),
        (torch.ones(2, device="meta"), "torch.float32 of torch.strided on meta"),
        (nested(torch.jagged), "a nested tensor"),
        (nested(torch.strided), "a nested tensor"),
    ],
    ids=["sparse", "meta", "jagged", "nested"],
)
def test_a_tensor_that_cannot_be_stored_is_left_out_with_one_message(tmp_path: Path, tensor: torch.Tensor, what: str) -> None:
    problems: list[str] = []
    with CaptureWriter(tmp_path, on_problem=problems.append) as writer:
        for batch_idx in range(2):
            writer.add("odd", tensor, step=0, stage="train", batch_idx=batch_idx)
            writer.add("layer", batch(0), step=0, stage="train", batch_idx=batch_idx)
            writer.end_batch()
    assert problems == [f"odd is not captured: {what} cannot be stored"]
    assert load_capture(tmp_path).names == ("layer",)


def test_max_bytes_keeps_what_fits_and_stops_with_one_message(tmp_path: Path) -> None:
    problems: list[str] = []
    capture_batches(tmp_path / "free", 2, batches_per_file=2).close()
    size = next((tmp_path / "free").glob("*.safetensors")).stat().st_size
    folder = tmp_path / "limited"
    limit = 2 * size + 10
    writer = capture_batches(folder, 20, batches_per_file=2, max_bytes=limit, on_problem=problems.append)
    writer.close()
    assert len(list(folder.glob("*.safetensors"))) == 2
    assert writer.bytes_written == 2 * size <= limit
    assert len(problems) == 1
    assert f"the capture to {folder} stopped, the run continues: the next " in problems[0]
    assert f"would exceed max_bytes={limit}" in problems[0]
    assert check_whole(folder) == 4
    assert not (folder / ".rank0.tmp").exists()


def test_a_batch_too_big_for_max_bytes_is_not_held_and_the_whole_batches_before_it_are_written(tmp_path: Path) -> None:
    problems: list[str] = []
    writer = capture_batches(tmp_path, 2, batches_per_file=10, max_bytes=100_000, on_problem=problems.append)
    writer.add("layer", batch(7), step=2, stage="train", batch_idx=2)
    writer.add("big", torch.zeros(100_000), step=2, stage="train", batch_idx=2)
    writer.add("layer", batch(8), step=2, stage="train", batch_idx=2)
    # add() runs inside a hook and only collects tensors. The capture stops in end_batch().
    assert problems == []
    writer.end_batch()
    assert problems == [f"the capture to {tmp_path} stopped, the run continues: the next batch would exceed max_bytes=100000"]
    writer.close()
    assert load_capture(tmp_path)["layer"].steps == (0, 1)
    assert writer.stopped == "the next batch would exceed max_bytes=100000"


def test_max_bytes_counts_the_files_of_earlier_runs(tmp_path: Path) -> None:
    problems: list[str] = []
    first = capture_batches(tmp_path, 2)
    first.close()
    capture_batches(tmp_path, 2, first=2, max_bytes=first.bytes_written + 50, on_problem=problems.append).close()
    assert len(problems) == 1
    assert len(records(tmp_path)) == 1


def test_a_second_run_goes_on_after_the_first(tmp_path: Path) -> None:
    capture_batches(tmp_path, 2, batches_per_file=1).close()
    capture_batches(tmp_path, 2, first=2, batches_per_file=1).close()
    entries = load_capture(tmp_path)["layer"]
    assert entries.steps == (0, 1, 2, 3)
    assert [(record.file, record.run) for record in records(tmp_path)] == [
        ("train-rank0-000000.safetensors", 0),
        ("train-rank0-000001.safetensors", 0),
        ("train-rank0-run1-000000.safetensors", 1),
        ("train-rank0-run1-000001.safetensors", 1),
    ]


def test_the_name_of_a_file_is_never_used_again(tmp_path: Path) -> None:
    other = tmp_path / "train-rank0-run1-000000.safetensors"
    other.write_bytes(b"not ours")
    capture_batches(tmp_path, 1).close()
    assert other.read_bytes() == b"not ours"
    assert records(tmp_path)[-1].file == "train-rank0-run2-000000.safetensors"


def test_closing_twice_and_adding_afterwards_do_nothing(tmp_path: Path) -> None:
    writer = capture_batches(tmp_path, 1)
    writer.close()
    writer.close()
    writer.add("layer", batch(1), step=1, stage="train", batch_idx=1)
    writer.end_batch()
    writer.close()
    assert len(records(tmp_path)) == 1


def test_without_a_callable_a_problem_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="odd is not captured"):
        CaptureWriter(tmp_path).add("odd", torch.eye(2).to_sparse(), step=0, stage="train", batch_idx=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": -1}, "CaptureWriter.rank must be an integer of at least 0, got -1"),
        ({"batches_per_file": 0}, "CaptureWriter.batches_per_file must be an integer of at least 1, got 0"),
        ({"batches_per_file": True}, "CaptureWriter.batches_per_file must be an integer of at least 1, got True"),
        ({"max_bytes": 1.5}, "CaptureWriter.max_bytes must be an integer of at least 1, got 1.5"),
        ({"dtype": "int8"}, "CaptureWriter.dtype must be None, float16, bfloat16, float32, float64, got 'int8'"),
        ({"dtype": torch.int8}, "CaptureWriter.dtype must be None, float16, bfloat16, float32, float64, got torch.int8"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError) as caught:
        CaptureWriter(tmp_path, **options)
    assert str(caught.value) == message


def test_a_stage_that_cannot_be_part_of_a_file_name(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"stage must consist of letters, digits and underscores, got '\.\./x'"):
        CaptureWriter(tmp_path).add("layer", batch(0), step=0, stage="../x", batch_idx=0)


def test_a_folder_that_cannot_be_used_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuleError, match="CaptureWriter.folder: cannot capture to .*file"):
        CaptureWriter(tmp_path / "file")
    with pytest.raises(RuleError, match="CaptureWriter.folder must be a folder of this machine, got 's3://bucket'"):
        CaptureWriter("s3://bucket")


def test_without_safetensors_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'lightning-hooks\[capture\]'"):
        CaptureWriter(tmp_path)


def test_capturing_does_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture_batches(tmp_path, 3, batches_per_file=2).close()
