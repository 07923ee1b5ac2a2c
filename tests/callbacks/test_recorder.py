"""FlightRecorder in a fit: what it records, where it writes, and that the training is what it is without it."""

import errno
import json
import math
import os
import signal
import warnings
from itertools import count

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor, Watch
from lightning_hooks.callbacks import _flights
from lightning_hooks.engine.recording.late_recorder import LateRecorder
from lightning_hooks.engine.recording.saving import load_batch, load_generators, load_weights
from lightning_hooks.engine.watching.row_fallback import RowFallback
from lightning_hooks.errors import RuleError
from lightning_hooks.recorder.files import read_record
from lightning_hooks.recorder.record import Gap, Verdict
from tests import late_copies
from tests.conformance.test_precision import scaler

BAD_STEP = 5


pytestmark = pytest.mark.filterwarnings("ignore:matched modules were not called")


class Log(nn.Module):
    def forward(self, x):
        return x.relu().log()


class Net(LightningModule):
    """From `BAD_STEP` on the logarithm of 0 is taken, if `is_sick`."""

    def __init__(self, is_sick=True, raises=None):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))
        self.log_of = Log()
        self.head = nn.Linear(8, 1)
        self.is_sick, self.raises, self.seen = is_sick, raises, []

    def training_step(self, batch, batch_idx):
        hidden = self.body(batch[0])
        if batch_idx >= BAD_STEP and self.is_sick:
            hidden = self.log_of(hidden - 100)
        if batch_idx == BAD_STEP and self.raises is not None:
            raise self.raises
        loss = self.head(hidden).pow(2).mean()
        self.log("loss", loss)
        self.seen.append(batch_idx)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def fit(model, *callbacks, folder, steps=8, **options):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(8 * steps, 4)), batch_size=8)
    trainer = Trainer(
        max_epochs=1,
        callbacks=[*callbacks],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    trainer.fit(model, loader)
    return trainer


def made(**options):
    torch.manual_seed(1)
    return Net(**options)


def test_the_operation_is_named_at_once(tmp_path, capsys):
    recorder = FlightRecorder()
    fit(made(), recorder, folder=tmp_path)
    record = recorder.record
    assert record.verdict is Verdict.FORWARD and record.reproduced
    assert (record.place.module, record.place.type, record.place.step) == ("log_of", "Log", BAD_STEP)
    assert record.place.result.negative_infinite == 64 and record.place.result.first == (0, 0)
    assert record.operation.name == "aten.log" and record.operation.line.strip() == "return x.relu().log()"
    assert record.inputs[0].maximum == 0.0 and record.inputs[0].abs_min == 0.0 and record.place.gap is None
    assert record.trail[-1].name == "log_of" and record.trail[-1].nonfinite_text == "64 −Inf"
    assert record.trail[-2].name == "body.2" and record.trail[-2].maximum > 0
    assert record.context["optimizers"] == {"0 Adam": [0.01]} and record.context["precision"] == "32-true"
    assert recorder.folder == tmp_path / "flight_record" and read_record(recorder.folder) == record
    text = (recorder.folder / "record.md").read_text()
    order = ["**Forward.**", "## Where", "`aten.log`", "## What it read", "calls", "## Context", "## Replay"]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    shown = " ".join(capsys.readouterr().err.split())
    assert "In the forward pass of step 5, log_of (Log) gave the first number that is not finite." in shown
    assert str(recorder.folder / "record.md") in shown


class SetsOneElement(torch.optim.SGD):
    """Steps, and sets an element of the last parameter at `BAD_STEP`."""

    def __init__(self, parameters, element):
        super().__init__(parameters, lr=1e-3)
        self.element, self.count = element, count()

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        if next(self.count) == BAD_STEP:
            self.param_groups[0]["params"][-1].view(-1)[0] = self.element
        return loss


BESIDE = {
    "alone": (),
    "every change is measured": ({"tensors": ("update",)},),
    "changes are measured at other steps": ({"tensors": ("update",), "every_n_steps": 4},),
    "other changes are measured": ({"params": "*.weight", "tensors": ("update",)},),
}


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "some frozen"])
@pytest.mark.parametrize("element", [math.nan, -math.inf, 3e38])
@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("is_late", [False, True], ids=["in host memory", "on a device"])
def test_a_parameter_that_an_update_spoils_is_named(is_late, beside, element, frozen, tmp_path, monkeypatch):
    if is_late:
        record_late(monkeypatch)
    model, recorder = made(is_sick=False), FlightRecorder()
    model.head.bias.data[0] = -3e38 if element == 3e38 else 0.0
    # The loss has no part of the head, so that no number but the parameter's tells of it.
    model.training_step = lambda batch, batch_idx: model.body(batch[0]).pow(2).mean()
    model.body[0].bias.requires_grad_(not frozen)
    model.configure_optimizers = lambda: SetsOneElement(model.parameters(), element)
    fit(model, *(StatsMonitor([Watch(**{"params": "*", **each})]) for each in beside), recorder, folder=tmp_path)
    if element == 3e38:
        # The change of the bias is too large for float32, but the bias is not.
        assert recorder.record is None
    else:
        assert (recorder.record.verdict, recorder.record.step) == (Verdict.UPDATE, BAD_STEP)
        assert "head.bias" in recorder.record.message


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a monitor"])
@pytest.mark.parametrize("is_sick", [False, True], ids=["healthy", "sick"])
def test_the_training_is_what_it_is_without(beside, is_sick, tmp_path):
    monitors = [StatsMonitor(logdir=tmp_path / "own")] if beside else []
    plain, recorded, recorder = made(is_sick=is_sick), made(is_sick=is_sick), FlightRecorder()
    one = fit(plain, folder=tmp_path)
    drawn = torch.rand(3)
    other = fit(recorded, *monitors, recorder, folder=tmp_path)
    assert torch.equal(drawn, torch.rand(3))
    assert (recorder.record is not None) == is_sick
    for (name, mine), theirs in zip(plain.state_dict().items(), recorded.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs) or (mine.isnan() == theirs.isnan()).all(), name
    assert plain.seen == recorded.seen and one.callback_metrics.keys() == other.callback_metrics.keys()
    states = [each.optimizers[0].state_dict()["state"] for each in (one, other)]
    for mine, theirs in zip(*(state.values() for state in states), strict=True):
        assert all(torch.equal(mine[key].nan_to_num(), theirs[key].nan_to_num()) for key in mine)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in recorded.modules())


def test_a_monitor_of_health_is_given_the_cause(tmp_path, capsys):
    recorder, health = FlightRecorder(), HealthMonitor()
    fit(made(), health, recorder, StatsMonitor(logdir=tmp_path / "own"), folder=tmp_path)
    cause = next(each for each in health.causes if each.name == "FirstBadNumberForward")
    assert cause.confidence == "certain" and "log_of (Log)" in cause.message
    rules = {finding.rule for finding in health.findings if finding.number in cause.numbers}
    assert rules == {"NonFinite"}
    assert capsys.readouterr().err.count("CRITICAL: FirstBadNumberForward") == 1
    assert recorder.folder.parent == health._job.reporter._journal.path.parent  # beside the journal and the event file


def test_without_one_it_has_a_journal_of_its_own(tmp_path):
    recorder = FlightRecorder()
    fit(made(), recorder, folder=tmp_path)
    events = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["begin", "new", "cause", "end"]
    assert events[1]["finding"]["fingerprint"] == "NonFinite/log_of" and events[1]["finding"]["severity"] == "critical"


def test_the_record_says_why_the_step_was_not_run_again(tmp_path):
    recorder = FlightRecorder(autopsy=False)
    model = made()
    fit(model, recorder, folder=tmp_path)
    assert recorder.record.reproduced is None and recorder.record.operation is None
    assert "The step was not run again: only a FlightRecorder with autopsy=True runs steps again." in recorder.record.notes
    assert recorder.record.place.module == "log_of" and model.seen == list(range(8))


def test_the_record_says_that_compiled_modules_ran_eagerly(tmp_path):
    model, recorder = made(), FlightRecorder()
    model.head._compiled_call_impl = model.head._call_impl  # what compile() leaves on a module, without the compiler
    fit(model, recorder, folder=tmp_path)
    assert recorder.record.operation.name == "aten.log" and recorder.record.context["compiled"] == ["head"]
    assert "compiled modules ran eagerly when the step was run again: head" in recorder.record.notes


def test_what_a_replay_needs_is_kept_as_it_was(tmp_path):
    class Reads(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx == BAD_STEP:
                self.before = {name: each.detach().clone() for name, each in self.named_parameters()}
                self.batch, self.drawn = batch[0].clone(), torch.get_rng_state()
            return super().training_step(batch, batch_idx)

    torch.manual_seed(1)
    model, recorder = Reads(), FlightRecorder(weights=True)
    fit(model, recorder, folder=tmp_path)
    assert set(recorder.record.files) == {"batch", "generators", "weights", "optimizers"}
    assert torch.equal(load_batch(recorder.folder).value[0], model.batch)
    assert torch.equal(load_generators(recorder.folder).torch, model.drawn)
    weights = Net()
    load_weights(weights, recorder.folder)
    assert all(torch.equal(each, model.before[name]) for name, each in weights.named_parameters())
    assert not all(torch.isfinite(each).all() for each in model.parameters())  # the training went on
    assert f"lightning-hooks replay {recorder.folder}" in (recorder.folder / "record.md").read_text()


def test_a_batch_that_was_changed_in_place_is_not_kept(tmp_path):
    class Changes(Net):
        def training_step(self, batch, batch_idx):
            batch[0].mul_(2)
            return super().training_step(batch, batch_idx)

    torch.manual_seed(1)
    recorder = FlightRecorder()
    fit(Changes(), recorder, folder=tmp_path)
    assert "The batch is not kept: batch[0] was changed in place since the step began." in recorder.record.notes
    assert "batch" not in recorder.record.files and recorder.record.place.module == "log_of"
    assert "The step was not run again: batch[0] was changed in place since the step began." in recorder.record.notes
    assert "cannot be replayed" in (recorder.folder / "record.md").read_text()


@pytest.mark.parametrize(("on", "written"), [("exception", True), ("nonfinite", False)])
def test_an_exception_is_recorded(on, written, tmp_path, capsys):
    recorder = FlightRecorder(on=on)
    with pytest.raises(ValueError, match="broken"):
        fit(made(raises=ValueError("broken")), recorder, folder=tmp_path)
    assert (recorder.record is not None) == written
    if written:
        record = read_record(tmp_path / "flight_record")
        assert record.verdict is Verdict.EXCEPTION and record.step == BAD_STEP
        assert (record.failure.type, record.failure.message, record.failure.module) == ("ValueError", "broken", "")
        assert "raise self.raises" in record.failure.traceback
        assert "The flight record of ValueError in step 5 is in" in " ".join(capsys.readouterr().err.split())


def test_only_the_first_is_recorded(tmp_path):
    recorder = FlightRecorder()
    fit(made(), recorder, folder=tmp_path)
    assert recorder.record.step == BAD_STEP and [each.name for each in tmp_path.glob("flight_record*")] == ["flight_record"]
    fit(made(), recorder, folder=tmp_path)  # another fit has a folder of its own
    assert recorder.folder == tmp_path / "flight_record-2"


def test_a_folder_that_cannot_be_written_does_not_stop_the_training(tmp_path):
    (tmp_path / "file").write_text("")
    recorder = FlightRecorder(logdir=tmp_path / "file")
    model = made()
    with pytest.warns(UserWarning, match="the flight record is not complete: .*; training continues"):
        fit(model, recorder, folder=tmp_path)
    assert model.seen == list(range(8)) and recorder.record.place.module == "log_of"


def test_a_log_that_is_not_on_this_machine_gets_no_folder_of_its_name_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder, model = FlightRecorder(), made()
    with pytest.warns(UserWarning, match="no flight record will be written: .* got 's3://bucket/runs'; give FlightRecorder"):
        fit(model, recorder, folder="s3://bucket/runs")
    assert recorder.record.place.module == "log_of" and recorder.folder is None and not list(tmp_path.iterdir())


class Block(nn.Module):
    """Has an operation of its own behind its layers."""

    def __init__(self):
        super().__init__()
        self.net, self.is_sick = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), False

    def forward(self, x):
        return torch.log(self.net(x) - 5) if self.is_sick else self.net(x)


class Blocks(LightningModule):
    """From `BAD_STEP` on the logarithm of a negative number is taken in the block, or between two calls of the cell."""

    def __init__(self, calls=1):
        super().__init__()
        self.block, self.cell, self.head, self.calls = Block(), nn.Linear(8, 8), nn.Linear(8, 1), calls

    def training_step(self, batch, batch_idx):
        is_sick = batch_idx >= BAD_STEP
        self.block.is_sick = is_sick and self.calls == 1
        hidden = self.block(batch[0])
        for call in range(self.calls):
            hidden = self.cell(hidden.relu().neg().log() if is_sick and call == 1 else hidden)
        return self.head(hidden).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def record_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a device: Python writes every row, and its copies are read later."""
    late_copies.install(monkeypatch)
    monkeypatch.setattr("lightning_hooks.engine.recording.step_numbers.begin_copy", late_copies.LateCopy)
    monkeypatch.setattr(RowFallback, "note_order", lambda self: None)
    monkeypatch.setattr(_flights, "recorder_for", lambda observer, share, last, device: LateRecorder(observer, share, last))


@pytest.mark.parametrize("is_late", [False, True], ids=["autopsy off", "on a device"])
def test_calls_alone_do_not_blame_a_layer_for_the_code_before_it(is_late, tmp_path, monkeypatch):
    if is_late:
        record_late(monkeypatch)
    recorder = FlightRecorder(autopsy=False)
    fit(Blocks(), recorder, folder=tmp_path)
    record = recorder.record
    assert (record.verdict, record.place.module) == (Verdict.FORWARD, "cell")
    assert record.place.gap == Gap("block.net.1", "cell", ("block", ""))
    assert record.message == (
        "In the forward pass of step 5, the output of cell (Linear) is the first that is not finite. cell made it, or code "
        "between the calls of block.net.1 and cell, such as the forward of block or the model."
    )
    assert read_record(recorder.folder) == record
    text = (recorder.folder / "record.md").read_text()
    assert "- first noticed at: cell (Linear)" in text and "- not finite in the output of cell: 64, with NaN" in text


def test_calls_that_a_device_has_joined_are_not_told_apart(tmp_path, monkeypatch):
    record_late(monkeypatch)
    recorder = FlightRecorder()
    fit(Blocks(calls=3), recorder, folder=tmp_path)
    assert recorder.record.place.gap == Gap("block.net.1", "cell", (), joined=True)
    assert "the output of cell (Linear) is not finite. cell was called several times" in recorder.record.message


def test_one_of_several_calls_is_named_in_host_memory(tmp_path):
    recorder = FlightRecorder(autopsy=False)
    fit(Blocks(calls=3), recorder, folder=tmp_path)
    assert recorder.record.place.call == 1 and "at its call 2 is the first that is not finite" in recorder.record.message
    assert "or code between two calls of cell, such as the forward of the model." in recorder.record.message


@pytest.mark.parametrize("steps", [BAD_STEP + 1, 8], ids=["at the last step", "in the middle"])
def test_on_a_device_the_trail_names_the_module_a_step_later(steps, tmp_path, monkeypatch):
    record_late(monkeypatch)
    plain, model, recorder = made(), made(), FlightRecorder(last=9)
    fit(plain, folder=tmp_path, steps=steps)
    fit(model, recorder, folder=tmp_path, steps=steps)
    record = read_record(tmp_path / "flight_record")
    assert record == recorder.record and record.verdict is Verdict.FORWARD
    assert (record.place.module, record.place.type, record.step) == ("log_of", "Log", BAD_STEP)
    assert record.trail[-1].name == "log_of" and record.trail[-1].nonfinite == 64
    assert [entry.name for entry in record.trail[:-1]] == ["body.0", "body.1", "body.2"]
    why = "the numbers came from a device one step late, and the weights have changed since"
    assert f"The step was not run again: {why}." in record.notes and record.operation is None
    assert torch.isfinite(load_batch(recorder.folder).value[0]).all()
    assert all((one == other)[~one.isnan()].all() for one, other in zip(plain.parameters(), model.parameters(), strict=True))


def test_on_a_device_the_batches_of_a_step_are_counted(tmp_path, monkeypatch):
    record_late(monkeypatch)
    recorder = FlightRecorder()
    fit(made(), recorder, folder=tmp_path, accumulate_grad_batches=2)
    assert (recorder.record.step, recorder.record.place.micro_batch) == (BAD_STEP // 2, 1)


class Killed(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == BAD_STEP:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_record_outlives_a_kill_right_after_the_event(tmp_path):
    child = os.fork()
    if child == 0:
        try:
            fit(made(), FlightRecorder(), Killed(), folder=tmp_path)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    record = read_record(tmp_path / "flight_record")
    assert record.operation.name == "aten.log" and record.step == BAD_STEP
    assert {path.name for path in (tmp_path / "flight_record").iterdir()} >= {"record.json", "record.md", record.files["batch"]}


@pytest.mark.parametrize("fits", [0, 1, 2, 3, 5])
def test_a_disk_that_fills_leaves_whole_files_and_the_training_goes_on(fits, tmp_path, monkeypatch):
    """`fits` files can be written: the record and its text, what is kept beside it, and both again with the operation."""
    synced, written = os.fsync, count()

    def full(descriptor):
        if next(written) >= fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    model, recorder = made(), FlightRecorder()
    with pytest.warns(UserWarning, match="the flight record is not complete: OSError: .*No space left on device"):
        fit(model, recorder, folder=tmp_path)
    assert model.seen == list(range(8)) and recorder.record.place.module == "log_of"
    files = [path.name for path in (tmp_path / "flight_record").iterdir()]
    assert not [name for name in files if name.endswith(".tmp")]
    assert ("record.json" in files) == (fits > 0) and ("record.md" in files) == (fits > 1)
    if fits:
        assert read_record(tmp_path / "flight_record").place.module == "log_of"


def test_what_is_usual_is_not_recorded(tmp_path):
    class Masked(Net):
        def training_step(self, batch, batch_idx):
            x = batch[0].masked_fill(batch[0] > 1, math.nan)
            hidden = self.body(x.nan_to_num())
            self.extra = self.log_of(hidden - 100)
            scores = hidden.masked_fill(hidden < 0, -math.inf).softmax(-1)
            return self.head(torch.nan_to_num(scores)).pow(2).mean()

    torch.manual_seed(1)
    recorder = FlightRecorder()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="lightning_hooks")
        fit(Masked(), recorder, folder=tmp_path)
    assert recorder.record is None and not list(tmp_path.iterdir())


def test_bad_arguments():
    with pytest.raises(RuleError, match="on: choose from nonfinite, exception, got 'nonfinit' .did you mean 'nonfinite'"):
        FlightRecorder(on="nonfinit")
    with pytest.raises(RuleError, match="last must be an integer of at least 1, got 0"):
        FlightRecorder(last=0)
    with pytest.raises(RuleError, match="weights must be True or False"):
        FlightRecorder(weights="yes")
    with pytest.raises(RuleError, match="limit must be a number of seconds above 0 and below 1e9, got -1"):
        FlightRecorder(limit=-1)
    assert repr(FlightRecorder(on=["exception"], last=50)) == "FlightRecorder(last=50, on=('exception',))"


class Counting(nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def forward(self, x):
        next(self.counts)
        return x


@pytest.mark.parametrize("is_generator", [False, True])
def test_a_step_that_would_use_up_what_cannot_be_restored_is_not_run_again(tmp_path, is_generator):
    plain, model = made(), made()
    for each in (plain, model):
        each.body.append(Counting((i for i in range(99)) if is_generator else count()))
    fit(plain, folder=tmp_path, steps=BAD_STEP + 1)
    recorder = FlightRecorder()
    fit(model, recorder, folder=tmp_path, steps=BAD_STEP + 1)
    assert next(plain.body[-1].counts) == next(model.body[-1].counts)
    why = "The step was not run again: the step uses model.body.3.counts (generator), which cannot be restored."
    assert (why in recorder.record.notes) == is_generator == (recorder.record.operation is None)


class HalfByHand(Net):
    """A manual step whose output exceeds the range of float16, and whose hooks the second run calls without a trace."""

    def __init__(self):
        super().__init__(is_sick=False)
        self.automatic_optimization = False
        self.hooked = []

    def training_step(self, batch, batch_idx):
        loss = (self.head(self.body(batch[0])) * (1e6 if batch_idx == BAD_STEP else 1)).float().mean()
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.hooked.append([math.isfinite(loss.item()), batch_idx])
        if batch_idx < BAD_STEP:
            optimizer.step()

    def on_before_backward(self, loss):
        self.hooked.append("backward")


def test_a_manual_step_runs_again_in_its_precision_and_leaves_no_trace(tmp_path):
    def trained(*callbacks):
        torch.manual_seed(1)
        model = HalfByHand()
        fit(model, *callbacks, folder=tmp_path, steps=6, plugins=scaler())
        return model

    recorder, plain = FlightRecorder(), trained()
    recorded = trained(recorder)
    record = recorder.record
    assert record.verdict is Verdict.FORWARD and record.reproduced and record.place.step == BAD_STEP
    assert record.operation.name == "aten.mul" and record.operation.result.dtype == "float16"
    assert recorded.hooked == plain.hooked and plain.hooked[-1] == [False, BAD_STEP]
    numbers = plain.state_dict()
    assert all(torch.equal(numbers[name], each) for name, each in recorded.state_dict().items())
