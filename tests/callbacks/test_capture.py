"""`ActivationCapture`: what is written in which run, read back with `load_capture`; and the run continues whatever happens."""

from __future__ import annotations

import errno
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Sampler

from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    NoMatchError,
    RuleError,
    StatsMonitor,
    assert_no_hooks,
    load_capture,
)
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.tensorboard.writer import StepEventWriter
from lightning_hooks.transforms import Scale
from tests import forked
from tests.callbacks._tiny import make
from tests.callbacks.models import Net, ValNet, adamw, assert_clean, data, trainer_of
from tests.capture._tools import check_whole
from tests.conformance._tools import run_ranks
from tests.versions import reading


class Encoder(LightningModule):
    """(a, b) becomes (a, b, a + b); nothing is learnt. Row i of a loader is (i, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 3, bias=False)
        self.head = nn.Linear(3, 1)
        self.never = nn.Linear(7, 7)
        with torch.no_grad():
            self.encoder.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(x))
        return y

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self(batch).mean()

    def validation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self(batch)

    def test_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self(batch)

    def predict_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        y: Tensor = self(batch)
        return y

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def rows(number: int, batch_size: int = 2, start: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader([torch.tensor([float(i), 0.0]) for i in range(start, start + number)], batch_size=batch_size, **options)  # type: ignore[arg-type]


def numbers(tensor: Tensor) -> list[int]:
    """Which rows they were."""
    assert torch.equal(tensor[:, 0], tensor[:, 2]) and not tensor[:, 1].any()
    return [int(value) for value in tensor[:, 0]]


# -- in which runs ---------------------------------------------------------------------------------------------------------


def test_every_n_steps_of_a_fit(tmp_path: Path) -> None:
    model = Encoder()
    make(tmp_path, ActivationCapture("encoder", every_n_steps=2), max_epochs=2).fit(model, rows(6), rows(2))
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    assert entries.steps == (1, 3, 5) and entries.batch_indices == (1, 0, 2)
    assert [numbers(tensor) for tensor in entries] == [[2, 3], [0, 1], [4, 5]]
    assert set(entries.stages) == {"train"} and entries.sample_indices == (None,) * 3
    assert_no_hooks(model)


def test_all_batches_of_an_accumulated_step(tmp_path: Path) -> None:
    make(tmp_path, ActivationCapture("encoder", every_n_steps=2), accumulate_grad_batches=2).fit(Encoder(), rows(10), rows(2))
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    assert list(zip(entries.steps, entries.batch_indices, strict=True)) == [(1, 2), (1, 3)]  # the third step is the last batch


def test_validation_runs_of_a_fit_without_the_sanity_check(tmp_path: Path) -> None:
    """Their entries have the step of training after which the run was, as what `self.log` writes there."""
    callback = ActivationCapture("encoder", stages=["validate"])
    trainer = make(tmp_path, callback, max_epochs=2, num_sanity_val_steps=2)
    trainer.fit(Encoder(), rows(6), rows(4, start=50))
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    assert entries.stages == ("validate",) * 4
    assert entries.steps == (2, 2, 5, 5) and entries.batch_indices == (0, 1, 0, 1)
    assert [numbers(tensor) for tensor in entries.where(step=5)] == [[50, 51], [52, 53]]


def test_train_and_validate_side_by_side(tmp_path: Path) -> None:
    callback = ActivationCapture("encoder", every_n_steps=2, stages=["train", "validate"])
    make(tmp_path, callback).fit(Encoder(), rows(8), rows(8, start=50))
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    assert [numbers(tensor) for tensor in entries.where(stage="train")] == [[2, 3], [6, 7]]
    assert [numbers(tensor) for tensor in entries.where(stage="validate")] == [[52, 53], [56, 57]]  # every second batch


def test_a_validation_within_an_accumulated_step(tmp_path: Path) -> None:
    """The batches of training before and after it are of one step."""
    callback = ActivationCapture("encoder", stages=["train", "validate"])
    make(tmp_path, callback, accumulate_grad_batches=4, val_check_interval=2).fit(Encoder(), rows(8), rows(2, start=50))
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    assert [numbers(tensor) for tensor in entries.where(stage="train")] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert entries.where(stage="train").steps == (0,) * 4 and entries.where(stage="train").batch_indices == (0, 1, 2, 3)
    assert [numbers(tensor) for tensor in entries.where(stage="validate")] == [[50, 51]] * 2


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_run_by_itself_and_no_other(tmp_path: Path, stage: str) -> None:
    model = Encoder()
    trainer = make(tmp_path, ActivationCapture("encoder", stages=[stage]))
    for run in ("validate", "test", "predict"):
        getattr(trainer, run)(model, rows(3), **({} if run == "predict" else {"verbose": False}))
        assert_no_hooks(model)
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    assert set(entries.stages) == {stage}
    assert [numbers(tensor) for tensor in entries] == [[0, 1], [2]]
    assert (entries.sample_indices == ((0, 1), (2,))) == (stage == "predict")


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_several_loaders(tmp_path: Path, stage: str) -> None:
    trainer = make(tmp_path, ActivationCapture("encoder", stages=stage))
    getattr(trainer, stage)(Encoder(), [rows(3), rows(2, start=50)])
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    first, second = (entries.where(dataloader_idx=i) for i in range(2))
    assert [numbers(tensor) for tensor in first] == [[0, 1], [2]] and first.batch_indices == (0, 1)
    assert [numbers(tensor) for tensor in second] == [[50, 51]] and second.batch_indices == (0,)
    if stage == "predict":  # of its own data set, each
        assert first.sample_indices == ((0, 1), (2,)) and second.sample_indices == ((0, 1),)


class Backwards(Sampler[int]):
    def __init__(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Iterator[int]:
        return iter(reversed(range(self.number)))

    def __len__(self) -> int:
        return self.number


@pytest.mark.filterwarnings("ignore:.*shuffling enabled")
@pytest.mark.parametrize(
    "options",
    [{"shuffle": False}, {"sampler": Backwards(7)}, {"shuffle": True}, {"num_workers": 2, "multiprocessing_context": "fork"}],
    ids=["in order", "backwards", "shuffled", "workers"],
)
def test_a_prediction_knows_its_samples(tmp_path: Path, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    make(tmp_path, ActivationCapture("encoder", stages=["predict"])).predict(Encoder(), rows(7, 3, **options))
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    assert [len(samples or ()) for samples in entries.sample_indices] == [3, 3, 1]
    for samples, tensor in zip(entries.sample_indices, entries, strict=True):
        assert samples is not None and numbers(tensor) == list(samples)
    assert load_capture(tmp_path / "captures/run_0").sample_indices == tuple(range(7))


def test_without_a_batch_sampler_the_samples_are_not_known(tmp_path: Path) -> None:
    batches = DataLoader([torch.tensor([[1.0, 0.0]])], batch_size=None)  # type: ignore[arg-type]
    make(tmp_path, ActivationCapture("encoder", stages=["predict"])).predict(Encoder(), batches)
    assert load_capture(tmp_path / "captures/run_0")["encoder"].sample_indices == (None,)


# -- what is kept ----------------------------------------------------------------------------------------------------------


def predicted(root: Path, modules: Any = "encoder", **options: Any) -> Any:
    make(root, ActivationCapture(modules, stages=["predict"], **options)).predict(Encoder(), rows(4))
    return load_capture(root / "captures/run_0")


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        ("mean", [0.0, 2 / 3, 4 / 3, 2.0]),
        ("sum", [0.0, 2.0, 4.0, 6.0]),
        ("max", [0.0, 1.0, 2.0, 3.0]),
        ("norm", [0.0, 2**0.5, 8**0.5, 18**0.5]),
    ],
)
def test_reduced_to_a_number_for_each_sample(tmp_path: Path, reduce: str, expected: list[float]) -> None:
    entries = predicted(tmp_path, reduce=reduce)["encoder"]
    assert entries.shapes == ((2,), (2,))
    torch.testing.assert_close(entries.cat(), torch.tensor(expected))


def test_cast_to_another_dtype(tmp_path: Path) -> None:
    entries = predicted(tmp_path, dtype="float16")["encoder"]
    assert entries.dtypes == (torch.float16,) * 2 and numbers(entries.cat()) == [0, 1, 2, 3]


def test_inputs_and_several_modules(tmp_path: Path) -> None:
    capture = predicted(tmp_path, ["encoder", "head"], tensor="input")
    assert capture.names == ("encoder", "head")
    assert capture["encoder"].cat().tolist() == [[float(i), 0.0] for i in range(4)]
    assert numbers(capture["head"].cat()) == [0, 1, 2, 3]


def test_modules_that_are_never_called_are_fine(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"not called in the first step: never \(Linear; ActivationCapture: modules\)"):
        capture = predicted(tmp_path, ["encoder", "never"])
    assert capture.names == ("encoder",)


def test_gradients_in_training(tmp_path: Path) -> None:
    model = Encoder()
    make(tmp_path, ActivationCapture("encoder", tensor="output_grad", every_n_steps=1)).fit(model, rows(4), rows(2))
    entries = load_capture(tmp_path / "captures/run_0")["encoder"]
    assert len(entries) == 2
    torch.testing.assert_close(entries[0], model.head.weight.detach().expand(2, 3) / 2)


class Shared(Encoder):
    """Calls its encoder twice, and returns a nest."""

    def __init__(self) -> None:
        super().__init__()
        self.nest = Nest()

    def forward(self, x: Tensor) -> Tensor:
        self.encoder(x)
        pair = self.nest(self.encoder(x + 10))
        return pair[0]


class Nest(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, 2 * x


def test_each_call_and_each_tensor_is_an_entry_of_its_own(tmp_path: Path) -> None:
    make(tmp_path, ActivationCapture(["encoder", "nest"], stages="predict")).predict(Shared(), rows(2))
    capture = load_capture(tmp_path / "captures/run_0")
    assert [info.call for info in capture["encoder"].infos] == [0, 1]
    assert capture["encoder"][1][:, 0].tolist() == [10.0, 11.0]
    assert [tensor[0, 0].item() for tensor in capture["nest"]] == [10.0, 20.0]


def test_one_part_of_a_nest(tmp_path: Path) -> None:
    make(tmp_path, ActivationCapture("nest", tensor="output[1]", stages="predict")).predict(Shared(), rows(2))
    assert [tensor[0, 0].item() for tensor in load_capture(tmp_path / "captures/run_0")["nest"]] == [20.0]


@pytest.mark.parametrize("after", [True, False])
def test_it_captures_what_the_callbacks_before_it_made(tmp_path: Path, after: bool) -> None:
    change = ActivationTransforms([Apply(Scale(3.0), modules="encoder", stages="predict")])
    capture = ActivationCapture("encoder", stages="predict")
    make(tmp_path, *((change, capture) if after else (capture, change))).predict(Encoder(), rows(2))
    assert load_capture(tmp_path / "captures/run_0")["encoder"][0][1, 0] == (3.0 if after else 1.0)


# -- where -----------------------------------------------------------------------------------------------------------------


def test_the_folder_is_that_of_the_logger(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "logs", name="run", version="7")
    make(tmp_path, ActivationCapture("encoder", stages="predict"), logger=logger).predict(Encoder(), rows(2))
    assert load_capture(tmp_path / "logs/run/7/captures").names == ("encoder",)


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    make(tmp_path, ActivationCapture("encoder", stages="predict", folder=tmp_path / "here")).predict(Encoder(), rows(2))
    assert load_capture(tmp_path / "here").names == ("encoder",)


def test_runs_without_a_folder_of_their_own_are_kept_apart(tmp_path: Path) -> None:
    for start in (0, 4):
        trainer = make(tmp_path, ActivationCapture("encoder", every_n_steps=1, stages=["train", "predict"]))
        trainer.fit(Encoder(), rows(2, start=start), rows(2))
        trainer.predict(Encoder(), rows(2, start=start + 2))  # of the same Trainer
    for run, first in enumerate((0, 4)):
        found = load_capture(tmp_path / "captures" / f"run_{run}")["encoder"]
        assert [numbers(tensor) for tensor in found.where(stage="train")] == [[first, first + 1]]
        assert [numbers(tensor) for tensor in found.where(stage="predict")] == [[first + 2, first + 3]]
    with pytest.raises(RuleError, match=r"no capture in .*captures.*run_0.*run_1"):
        load_capture(tmp_path / "captures")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_umask_gives(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        make(tmp_path, ActivationCapture("encoder", stages="predict", folder=tmp_path / "here")).predict(Encoder(), rows(2))
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "here").iterdir()} == {
        "index-rank0.jsonl": mode,
        "predict-rank0-000000.safetensors": mode,
    }


def test_two_captures_into_one_folder_are_refused(tmp_path: Path) -> None:
    model = Encoder()
    two = [ActivationCapture(name, stages="predict") for name in ("encoder", "head")]
    with pytest.raises(
        RuleError, match="folder: two ActivationCapture would write into the default folder; give one another folder="
    ):
        make(tmp_path, *two).predict(model, rows(2))
    assert_no_hooks(model)
    two[1].folder = tmp_path / "other"
    make(tmp_path, *two).predict(model, rows(2))
    assert load_capture(tmp_path / "captures/run_0").names == ("encoder",)
    assert load_capture(tmp_path / "other").names == ("head",)


def test_a_folder_that_cannot_be_used_is_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = Encoder()
    with pytest.raises(RuleError, match="cannot capture to"):
        make(tmp_path, ActivationCapture("encoder", stages="predict", folder=tmp_path / "file")).predict(model, rows(2))
    assert_no_hooks(model)


def test_a_folder_elsewhere_and_what_is_no_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, capture = Encoder(), ActivationCapture("encoder", stages="predict")
    said = "^ActivationCapture: folder must be a folder of this machine, got 'memory://bucket/x'; give a local one, folder='…'$"
    with pytest.raises(RuleError, match=said):
        make(tmp_path, capture, default_root_dir="memory://bucket/x").predict(model, rows(2))
    with pytest.raises(RuleError, match="^ActivationCapture: folder .* got 'memory://bucket/x/run/version_0'"):
        make(tmp_path, capture, logger=TensorBoardLogger("memory://bucket/x", name="run")).predict(model, rows(2))
    for what in ({"folder": 5}, {"folder": ""}, {"reduce": ["mean"]}):
        (name,) = what
        with pytest.raises(RuleError, match=f"^{name}: no reduction|^{name} must be the path of a folder, got "):
            ActivationCapture("encoder", stages="predict", **what)
    for folder in ("s3://bucket/x", Path("s3://bucket/x")):
        with pytest.raises(RuleError, match="^folder must be a folder of this machine, got 's3:/"):
            ActivationCapture("encoder", stages="predict", folder=folder)
    assert_no_hooks(model)
    assert not list(tmp_path.iterdir())


# -- nothing else changes --------------------------------------------------------------------------------------------------


def test_weights_are_bit_identical(tmp_path: Path) -> None:
    def run(*callbacks: Callback) -> list[Tensor]:
        torch.manual_seed(0)
        model = ValNet(adamw)
        trainer_of(tmp_path, *callbacks, max_epochs=2, accumulate_grad_batches=2).fit(model, data(), data(2))
        assert_clean(model)
        return [p.detach().clone() for p in model.parameters()]

    captures = [
        ActivationCapture("*", tensor=tensor, every_n_steps=1, folder=tmp_path / tensor, reduce=reduce)
        for tensor, reduce in (("output", None), ("input", "mean"), ("output_grad", None), ("input_grad", "norm"))
    ]
    captures.append(ActivationCapture("*", stages=["validate"], folder=tmp_path / "validate"))
    assert all(torch.equal(one, other) for one, other in zip(run(), run(*captures, StatsMonitor()), strict=True))
    assert {path.name for path in tmp_path.iterdir()} >= {"output", "input", "output_grad", "input_grad", "validate"}
    assert len(load_capture(tmp_path / "input_grad")["body.3"]) == 12


@pytest.mark.parametrize("how", ["the training fails", "so does the removal of the hooks"])
def test_what_was_captured_before_an_exception_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def leave(*args: Any) -> None:
        raise ValueError("mine")

    class Fails(Encoder):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            if batch_idx == 2:
                raise ValueError("mine")
            return super().training_step(batch, batch_idx)

    model = Fails()
    if how != "the training fails":
        monkeypatch.setattr(HookManager, "leave", leave)
    with pytest.raises(ValueError, match="mine"):
        make(tmp_path, ActivationCapture("encoder", every_n_steps=1)).fit(model, rows(8), rows(2))
    assert_no_hooks(model)
    assert load_capture(tmp_path / "captures/run_0").steps == (0, 1)


# -- what goes wrong -------------------------------------------------------------------------------------------------------


def caught(run: Any) -> list[str]:
    """The warnings of ours."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    return [str(warning.message) for warning in seen if "capture" in str(warning.message)]


def test_max_bytes_stops_the_capture_with_one_warning_and_not_the_run(tmp_path: Path) -> None:
    model = Encoder()
    callback = ActivationCapture("encoder", stages=["predict"], max_bytes=2000, batches_per_file=1)
    trainer = make(tmp_path, callback)
    done: list[Any] = []
    (message,) = caught(lambda: done.extend(trainer.predict(model, rows(40)) or []))
    assert message.startswith(f"the capture to {tmp_path / 'captures/run_0'} stopped, the run continues: the next ")
    assert message.endswith("would exceed max_bytes=2000")
    assert len(done) == 20
    assert 1 <= len(load_capture(tmp_path / "captures/run_0")["encoder"]) < 20
    assert sum(path.stat().st_size for path in (tmp_path / "captures/run_0").glob("*.safetensors")) <= 2000
    assert_no_hooks(model)


def test_a_full_disk_stops_the_capture_with_one_warning_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, files = safetensors.torch.save_file, []

    def save(tensors: Any, path: Any, metadata: Any = None) -> None:
        files.append(path)
        if len(files) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(safetensors.torch, "save_file", save)
    model = Encoder()
    trainer = make(tmp_path, ActivationCapture("encoder", every_n_steps=1, batches_per_file=1), max_epochs=2)
    (message,) = caught(lambda: trainer.fit(model, rows(8)))
    assert "stopped, the run continues: train-rank0-000002.safetensors could not be written: " in message
    assert "No space left on device" in message
    assert trainer.global_step == 8 and len(files) == 3
    assert load_capture(tmp_path / "captures/run_0").steps == (0, 1)
    assert check_whole(tmp_path / "captures/run_0") == 2
    assert_no_hooks(model)


KILLED = """
import os, signal, sys, torch
from lightning.pytorch import Trainer
from lightning_hooks import ActivationCapture
from tests.callbacks.test_capture import Encoder, rows

class Killed(Encoder):
    def training_step(self, batch, batch_idx):
        if self.global_step == 11:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)

capture = ActivationCapture(["encoder", "head"], every_n_steps=1, batches_per_file=2, folder=sys.argv[1])
Trainer(max_epochs=9, callbacks=[capture], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        accelerator="cpu", devices=1, default_root_dir=sys.argv[1]).fit(Killed(), rows(20))
"""


def test_a_killed_run_leaves_whole_files_and_a_true_index(tmp_path: Path) -> None:
    done = forked.run(["-c", KILLED, str(tmp_path)])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert check_whole(tmp_path) == 20  # ten batches of two modules; the last one was still in memory
    entries = load_capture(tmp_path)["encoder"]
    assert entries.steps == tuple(range(10))
    assert numbers(entries[9]) == [18, 19]


def test_two_processes_capture_the_samples_of_both(tmp_path: Path) -> None:
    assert [rank["captures"] for rank in run_ranks("tests.callbacks.two_ranks", ["captures"], tmp_path)] == [None, None]
    capture = load_capture(tmp_path / "captures/captures/run_0")
    assert capture.ranks == (0, 1)
    trained = capture["encoder"].where(stage="train")
    assert [sorted(set(trained.where(rank=rank).steps)) for rank in (0, 1)] == [[0, 1], [0, 1]]
    assert sorted(int(value) for tensor in trained for value in tensor) == list(range(8))
    predicted = capture["encoder"].where(stage="predict")
    for samples, tensor in zip(predicted.sample_indices, predicted, strict=True):
        assert samples is not None and [int(value) for value in tensor] == list(samples)
    assert capture.sample_indices == tuple(range(10))


def test_a_resumed_run_goes_on_in_the_folder(tmp_path: Path) -> None:
    def run(epochs: int, resume: Path | None = None) -> None:
        saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_epochs=1, save_top_k=-1)
        callback = ActivationCapture("encoder", every_n_steps=2)
        logger = TensorBoardLogger(tmp_path, name="logs", version=0)
        trainer = make(tmp_path, callback, saver, logger=logger, max_epochs=epochs, enable_checkpointing=True)
        trainer.fit(Encoder(), rows(8), rows(2), ckpt_path=resume, **reading(False if resume else None))

    run(1)
    run(2, tmp_path / "step=4.ckpt")
    entries = load_capture(tmp_path / "logs/version_0/captures")["encoder"]
    assert entries.steps == (1, 3, 5, 7)
    assert [info.run for info in entries.infos] == [0, 0, 1, 1]


# -- TensorBoard -----------------------------------------------------------------------------------------------------------


class Images(LightningModule):
    """Feature maps [N, 2, 3, 3] and their means [N, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(1, 2, 3), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pool(self.conv(x))
        return y

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self(batch).mean()

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        y: Tensor = self(batch)
        return y

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def pictures(number: int, batch_size: int = 2) -> DataLoader[Any]:
    return DataLoader([torch.full((1, 5, 5), float(i)) for i in range(number)], batch_size=batch_size)  # type: ignore[arg-type]


def shown(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()


def test_the_last_batch_of_an_epoch_in_tensorboard(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="run", version="")
    callback = ActivationCapture(["conv", "pool"], every_n_steps=2, tensorboard=True)
    make(tmp_path, callback, logger=logger, max_epochs=2).fit(Images(), pictures(6))
    events = shown(tmp_path / "run")
    assert events.Tags()["images"] == ["watch/captures_train/conv"]
    images = events.Images("watch/captures_train/conv")
    assert [image.step for image in images] == [2, 5]  # after an epoch of three steps
    assert (images[0].height, images[0].width) == (2 * 4 + 1, 2 * 4 + 1)  # two samples, two channels of 3 by 3
    text = (tmp_path / "run/projector_config.pbtxt").read_text()
    assert 'tensor_name: "watch/captures_train/pool"' in text and text.count("embeddings {") == 1


def test_each_stage_shows_its_own_last_batch(tmp_path: Path) -> None:
    """Validation ends before the epoch of training does."""

    class Validates(Images):
        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            self(batch)

    logger = TensorBoardLogger(tmp_path, name="run", version="")
    callback = ActivationCapture("conv", stages=["train", "validate"], every_n_steps=2, tensorboard=True)
    trainer = make(tmp_path, callback, logger=logger, max_epochs=2, num_sanity_val_steps=0)
    trainer.fit(Validates(), pictures(8), pictures(1))  # the one batch of validation is not captured
    assert shown(tmp_path / "run").Tags()["images"] == ["watch/captures_train/conv"]
    trainer = make(tmp_path, callback, logger=logger, max_epochs=2, num_sanity_val_steps=0)
    trainer.fit(Validates(), pictures(8), pictures(4))
    events = shown(tmp_path / "run")
    # Sorted: two files made within a second may be read in either order.
    assert sorted(events.Tags()["images"]) == ["watch/captures_train/conv", "watch/captures_validate/conv"]
    assert len(events.Images("watch/captures_train/conv")) == 4 and len(events.Images("watch/captures_validate/conv")) == 2


def test_the_points_of_a_prediction_have_their_samples(tmp_path: Path) -> None:
    """Every second batch of three is captured: the labels are those of the second, not of the last."""
    logger = TensorBoardLogger(tmp_path, name="run", version="")
    callback = ActivationCapture("pool", stages=["predict"], every_n_steps=2, tensorboard=True)
    make(tmp_path, callback, logger=logger).predict(Images(), pictures(6))
    (vectors,) = (tmp_path / "run").glob("projector/*/tensors.tsv")
    capture = load_capture(tmp_path / "run/captures")["pool"]
    found = torch.tensor([[float(x) for x in line.split("\t")] for line in vectors.read_text().splitlines()])
    torch.testing.assert_close(found, capture[0])
    assert (vectors.parent / "metadata.tsv").read_text().split() == ["2", "3"]
    assert capture.sample_indices == ((2, 3),)


def test_tensors_that_have_no_picture_and_other_loggers_are_fine(tmp_path: Path) -> None:
    callback = ActivationCapture(["conv", "pool"], stages=["predict"], reduce="mean", tensorboard=True)
    loggers = [CSVLogger(tmp_path, name="csv", version=""), TensorBoardLogger(tmp_path, name="run", version="")]
    make(tmp_path, callback, logger=loggers).predict(Images(), pictures(2))
    assert shown(tmp_path / "run").Tags()["images"] == []


class Sparse(Images):
    """The output of `odd` cannot be stored."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.odd = kind, nn.Identity()

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        y = self(batch)
        if self.kind == "nested":
            self.odd(torch.nested.nested_tensor_from_jagged(y, torch.tensor([0, 1, len(y)])))
        else:
            self.odd(y.to_sparse() if self.kind == "coo" else y.to_sparse_csr())
        return y


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("options", [{}, {"reduce": "mean"}, {"reduce": "norm"}, {"reduce": "token_mean"}], ids=str)
@pytest.mark.parametrize("kind", ["coo", "csr", "nested"])
def test_what_cannot_be_stored_is_a_warning_where_it_would_be_shown_or_reduced(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    callback = ActivationCapture(["odd", "pool"], stages=["predict"], tensorboard=True, **options)
    logger = TensorBoardLogger(tmp_path, name="run", version="")
    with pytest.warns(UserWarning, match="odd is not captured"):
        make(tmp_path, callback, logger=logger).predict(Sparse(kind), pictures(4))
    assert len(load_capture(tmp_path / "run/captures")["pool"]) == 2


def test_without_a_logger_nothing_is_kept_to_be_shown(tmp_path: Path) -> None:
    class Clones(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += func is torch.ops.aten.clone.default
            return func(*args, **(kwargs or {}))

    def clones(**options: Any) -> int:
        callback = ActivationCapture("conv", stages=["predict"], **options)
        with Clones() as clones:
            make(tmp_path, callback).predict(Images(), pictures(4))
        return clones.seen

    assert clones(tensorboard=True) == clones()


def breaks_at(call: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every write to an event file fails from one on; the list is filled with one number for each."""
    real, calls = StepEventWriter._current, list[int]()

    def current(self: StepEventWriter) -> Any:
        calls.append(len(calls))
        if len(calls) > call:
            raise error
        return real(self)

    monkeypatch.setattr(StepEventWriter, "_current", current)
    return calls


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("I/O operation on closed file")]
)
def test_a_logger_that_fails_is_shown_nothing_more_with_one_warning_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls = breaks_at(1, error, monkeypatch)
    loggers = [CSVLogger(tmp_path, name="csv"), *(TensorBoardLogger(tmp_path, name=name, version="") for name in "ab")]
    callback = ActivationCapture("*", every_n_steps=1, tensorboard=True, folder=tmp_path / "captured")
    trainer = make(tmp_path, callback, logger=loggers, max_epochs=4)
    messages = caught(lambda: trainer.fit(Images(), pictures(4)))
    said = f"the capture shows nothing more in TensorBoard after {type(error).__name__}: {error}; "
    assert messages == [f"{said}it continues, and so does the run"] * 2  # one for each logger
    assert trainer.global_step == 8 and len(calls) == 3
    assert load_capture(tmp_path / "captured").steps == tuple(range(8))


@pytest.mark.parametrize("first", ["monitor", "capture"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("I/O operation on closed file")]
)
def test_a_logger_that_stopped_a_monitor_is_shown_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, first: str
) -> None:
    calls = breaks_at(3, error, monkeypatch)
    monitor = StatsMonitor(on_error="warn")
    capture = ActivationCapture(["conv", "pool"], every_n_steps=1, tensorboard=True, folder=tmp_path / "captured")
    ours = [monitor, capture] if first == "monitor" else [capture, monitor]
    trainer = make(tmp_path, *ours, logger=TensorBoardLogger(tmp_path, name="run", version=""), max_epochs=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer.fit(Images(), pictures(12))
    messages = [
        str(warning.message)
        for warning in seen
        if type(error).__name__ in str(warning.message) or "shown" in str(warning.message)
    ]
    assert messages == [f"a StatsMonitor stopped watching after {type(error).__name__}: {error}; training continues"]
    assert trainer.global_step == 12 and len(calls) == 4
    assert load_capture(tmp_path / "captured").steps == tuple(range(12))


def test_what_cannot_be_shown_is_a_warning(tmp_path: Path) -> None:
    class Bad(Images):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.pool(self.conv(x * float("nan")))
            return y

    logger = TensorBoardLogger(tmp_path, name="run", version="")
    callback = ActivationCapture("pool", stages=["predict"], tensorboard=True)
    with pytest.warns(UserWarning, match="pool is not shown in TensorBoard: .*none of the vectors"):
        make(tmp_path, callback, logger=logger).predict(Bad(), pictures(2))


# -- rules -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give every_n_steps=… to capture while training, or stages=\\['predict'\\], or both"),
        ({"stages": ["predcit"]}, r"stages\[0\] must be one of train, validate, test, predict, got 'predcit' \(did you mean"),
        ({"stages": []}, "stages is empty"),
        ({"every_n_steps": 0}, "every_n_steps"),
        ({"stages": "predict", "reduce": "maen"}, r"reduce: no reduction 'maen' \(did you mean 'mean'"),
        ({"stages": "predict", "dtype": "int8"}, "dtype must be None, float16"),
        ({"stages": "predict", "max_bytes": 0}, "max_bytes must be an integer of at least 1"),
        ({"stages": "predict", "batches_per_file": 0}, "batches_per_file must be an integer of at least 1"),
        ({"stages": "predict", "tensor": "outptu"}, "tensor: unknown tensor 'outptu' .*did you mean 'output'"),
        ({"stages": "predict", "tensor": ["output"]}, r"tensor: unknown tensor \['output'\]"),
        ({"stages": "predict", "tensor": "output_grad"}, "stages: 'output_grad' is a gradient, which there is in training"),
        ({"stages": ["train", "test"], "tensor": "input_grad"}, r"stages: .* training only; got \['train', 'test'\]"),
        ({"stages": "predict", "modules": None}, "modules must be a pattern or a list of patterns, got None"),
        ({"stages": "predict", "modules": []}, "modules is an empty list"),
        ({"stages": "predict", "modules": [1]}, r"modules\[0\] must be a string, got 1"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=f"^{message}"):
        ActivationCapture(**{"modules": "encoder", **options})


def test_patterns_that_match_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match="^ActivationCapture: modules: 'encodr' matches nothing; .*'encoder'"):
        make(tmp_path, ActivationCapture("encodr", stages="predict")).predict(Encoder(), rows(2))
    lenient = ActivationCapture("encodr", stages="predict", strict=False)
    with pytest.warns(UserWarning) as warned:
        make(tmp_path, lenient).predict(Encoder(), rows(2))
    said = [str(warning.message) for warning in warned if "encodr" in str(warning.message)]
    assert len(said) == 2
    assert said[0].startswith("ActivationCapture: modules: 'encodr' matches nothing; the nearest names are 'encoder'")
    assert said[1] == "ActivationCapture: no rule matches anything (modules=('encodr',)); it does nothing in this run"
    assert not (tmp_path / "captures").exists()


def test_match_and_repr() -> None:
    callback = ActivationCapture("body.*", types="Linear", stages=["predict"], reduce="mean", dtype="float16")
    report = callback.match(Net())
    assert report.names == ["body.0", "body.3"]
    assert "reduce='mean'" in str(report) and "output" in str(report)
    assert repr(callback) == (
        "ActivationCapture(modules=('body.*',), types=('Linear',), stages=('predict',), reduce='mean', dtype='float16')"
    )
