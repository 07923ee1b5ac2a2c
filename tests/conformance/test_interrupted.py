"""However a fit ends, none of our callbacks leaves a hook, and the exception that ended it is the one the user sees.

What a monitor alone does is in tests/callbacks/test_lifecycle.py; here are the other callbacks, all of them at once, and the
event file on a full disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_hooks import StatsMonitor
from tests import forked
from tests.callbacks.models import Net, ValNet, adamw, assert_clean, data, ours_on, trainer_of
from tests.conformance._lifecycle_tools import EACH, Boom, all_ours, equal_weights

OTHERS = [name for name in EACH if name != "StatsMonitor"]


class RaiseBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise Boom("in backward")


class Fails(ValNet):
    """Fails in its second batch of training, with hooks of ours on it."""

    where = ""

    def __init__(self) -> None:
        super().__init__(adamw)
        self.error: BaseException = Boom("in forward")
        self.hooked = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.where == "module" and self.trainer.training and self.trainer.global_step == 1:
            self.body[0](x)
            return self.body[3](x)  # of the wrong shape: the module itself raises
        return super().forward(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 1:
            self.hooked = ours_on(self)
        loss = super().training_step(batch, batch_idx)
        if batch_idx == 1 and self.where == "forward":
            raise self.error
        return RaiseBackward.apply(loss) if batch_idx == 1 and self.where == "backward" else loss


class Raises(Callback):
    """Raises in one hook, from the second batch on."""

    def __init__(self, name: str, error: BaseException) -> None:
        self.error = error
        setattr(self, name, self._raise)

    def _raise(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_idx >= 1 or not trainer.training:
            raise self.error


@pytest.mark.parametrize("ours", OTHERS)
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_in_the_model(tmp_path: Path, where: str, ours: str) -> None:
    model = Fails()
    model.where = where
    with pytest.raises(Boom, match=f"^in {where}$") as raised:
        trainer_of(tmp_path, *EACH[ours](tmp_path)).fit(model, data(), data(2))
    assert model.hooked > 0
    assert where == "backward" or raised.value is model.error
    assert raised.value.__cause__ is None and raised.value.__context__ is None
    assert not getattr(raised.value, "__notes__", [])
    assert_clean(model)


@pytest.mark.parametrize("ours", EACH)
def test_an_exception_inside_a_module_that_carries_hooks(tmp_path: Path, ours: str) -> None:
    model = Fails()
    model.where = "module"
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        trainer_of(tmp_path, *EACH[ours](tmp_path)).fit(model, data(), data(2))
    assert_clean(model)
    model.where = ""
    trainer_of(tmp_path, *EACH[ours](tmp_path)).fit(model, data(2), data(2))  # nothing is half begun
    assert_clean(model)


MOMENTS = ["on_train_batch_start", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_fit_end"]


@pytest.mark.parametrize("first", [True, False], ids=["before ours", "after ours"])
@pytest.mark.parametrize("moment", [*MOMENTS, "on_validation_batch_end", "on_train_epoch_end"])
def test_an_exception_in_another_callback_beside_all_of_ours(tmp_path: Path, moment: str, first: bool) -> None:
    model, other, ours = Fails(), Raises(moment, Boom(moment)), all_ours(tmp_path)
    with pytest.raises(Boom, match=f"^{moment}$") as raised:
        trainer_of(tmp_path, *([other, *ours] if first else [*ours, other])).fit(model, data(), data(2))
    assert raised.value is other.error
    assert_clean(model)


@pytest.mark.parametrize("moment", MOMENTS[:4])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["ctrl-c", "exit"])
def test_an_interrupt_at_any_moment(tmp_path: Path, error: BaseException, moment: str) -> None:
    model, ours = Fails(), all_ours(tmp_path)
    with pytest.raises(SystemExit):
        trainer_of(tmp_path, *ours[:2], Raises(moment, error), *ours[2:]).fit(model, data(), data(2))
    assert_clean(model)


INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
from lightning.pytorch import Callback
from tests.callbacks.models import Net, assert_clean, data, ours_on, trainer_of
from tests.conformance._lifecycle_tools import all_ours

class Ready(Net):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            assert ours_on(self) > 0
            os.kill(os.getpid(), signal.SIGINT)
        return super().training_step(batch, batch_idx)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
model = Ready()
try:
    trainer_of(Path(sys.argv[1]), *all_ours(Path(sys.argv[1]))).fit(model, data(1000))
except (SystemExit, KeyboardInterrupt):
    assert_clean(model)
    print("clean")
"""


@pytest.mark.slow
def test_a_real_ctrl_c(tmp_path: Path) -> None:
    done = forked.run(["-c", INTERRUPTED, str(tmp_path)])
    assert done.stdout.strip().endswith("clean"), done.stderr[-2000:]


class Stops(Callback):
    def __init__(self, moment: str) -> None:
        setattr(self, moment, self._stop)

    def _stop(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize("ours", OTHERS)
@pytest.mark.parametrize("moment", MOMENTS[:4])
def test_should_stop_at_any_moment(tmp_path: Path, moment: str, ours: str) -> None:
    model = Fails()
    trainer_of(tmp_path, Stops(moment), *EACH[ours](tmp_path), accumulate_grad_batches=2).fit(model, data(), data(2))
    assert_clean(model)


class Full(OSError):
    """What the operating system says; a class of its own, to recognise it."""


def no_space(*args: Any, **kwargs: Any) -> Any:
    raise Full(errno.ENOSPC, "No space left on device")


def full_disk_in_the_writer(monkeypatch: pytest.MonkeyPatch, trainer: Any) -> None:
    """A record of ours does not go through, and the queue of the file writer refuses."""
    monkeypatch.setattr(trainer.logger.experiment._get_file_writer().event_writer._general_file_writer, "write", no_space)
    monkeypatch.setattr(trainer.logger.experiment._get_file_writer().event_writer._async_writer, "write", no_space)


def full_disk_in_its_thread(monkeypatch: pytest.MonkeyPatch, trainer: Any) -> None:
    """The thread that writes the logger's own records meets the error, and the next event raises it."""
    monkeypatch.setattr(trainer.logger.experiment._get_file_writer().event_writer._async_writer._writer, "write", no_space)


DISKS: dict[str, Callable[[pytest.MonkeyPatch, Any], None]] = {
    "at once": full_disk_in_the_writer,
    "in the writing thread": full_disk_in_its_thread,
}


class Fills(Callback):
    """The disk is full from the third batch on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        self.monkeypatch, self.how = monkeypatch, how
        self.thread: Any = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            DISKS[self.how](self.monkeypatch, trainer)
            self.thread = trainer.logger.experiment._get_file_writer().event_writer._async_writer._worker


def logged(root: Path, *callbacks: Callback, **options: Any) -> Any:
    return trainer_of(root, *callbacks, logger=TensorBoardLogger(root), log_every_n_steps=1, max_epochs=4, **options)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore:findings are not shown in the event file any more")
@pytest.mark.parametrize("how", DISKS)
def test_a_full_disk_ends_the_fit_with_the_error_of_the_system_and_no_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    model, disk = Net(adamw, log=True), Fills(monkeypatch, how)
    with pytest.raises(OSError) as raised:
        logged(tmp_path, *all_ours(tmp_path), disk).fit(model, data())
    assert raised.value.errno == errno.ENOSPC
    assert_clean(model)
    if DISKS[how] is full_disk_in_its_thread:  # what it says as it ends belongs to this test, not to the next one
        disk.thread.join(timeout=60)
        assert not disk.thread.is_alive()


def test_with_warn_the_monitor_leaves_and_training_ends_with_the_weights_of_the_plain_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the monitor alone writes to the full disk; a logger that fails by itself still ends the run, as ever."""
    models = []
    for ours in ([], [StatsMonitor(on_error="warn")]):
        torch.manual_seed(0)
        model = Net(adamw)
        torch.manual_seed(1)
        trainer = trainer_of(tmp_path, *ours, logger=TensorBoardLogger(tmp_path))
        if ours:
            # The module logs nothing, so that all events are ours.
            events = trainer.logger.experiment._get_file_writer().event_writer
            monkeypatch.setattr(events._general_file_writer, "write", no_space)
            with pytest.warns(UserWarning, match="stopped watching after Full: .*No space left"):
                trainer.fit(model, data())
        else:
            trainer.fit(model, data())
        assert_clean(model)
        models.append(model)
    assert equal_weights(*models)


LIMITED = """
import resource, signal, sys, warnings
from pathlib import Path
from lightning.pytorch.loggers import TensorBoardLogger
from tests.callbacks.models import Net, assert_clean, data, trainer_of
from tests.conformance._lifecycle_tools import all_ours

root, model = Path(sys.argv[1]), Net()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
try:
    trainer_of(root, *all_ours(root), logger=TensorBoardLogger(root), max_epochs=100).fit(model, data())
except OSError as error:
    print("errno", error.errno)
finally:
    assert_clean(model)
    print("clean", flush=True)
"""


WARNED = """
import resource, signal, sys, warnings
from pathlib import Path
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from lightning_hooks import StatsMonitor
from tests.callbacks.models import Net, assert_clean, data, everything, trainer_of

root, model = Path(sys.argv[1]), Net(log=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
logger = TensorBoardLogger(root)
monitor = StatsMonitor(everything(), max_scalars=2000, on_error="warn")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    trainer = trainer_of(root, monitor, logger=logger, max_epochs=4, log_every_n_steps=1)
    trainer.fit(model, data())
said = [str(each.message) for each in caught if "stopped watching" in str(each.message)]
assert_clean(model)
(path,) = Path(logger.log_dir).glob("*tfevents*")
tags = [value.tag for event in LegacyEventFileLoader(str(path)).Load() for value in event.summary.value]
print(said, trainer.global_step, "logged", tags.count("loss"), "ours", 0 < tags.count("watch/run/grad_norm") < 24, flush=True)
"""


def test_with_warn_a_file_that_may_not_grow_ends_the_monitor_and_not_the_users_own_log(tmp_path: Path) -> None:
    """For real: what of ours does not fit is taken back, and what the module logs still goes through."""
    done = forked.run(["-c", WARNED, str(tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("stopped watching after OSError: [Errno 27] File too large: ") == 1 and "tfevents" in done.stdout
    assert "24 logged 24 ours True" in done.stdout


@pytest.mark.slow
def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """For real: the operating system refuses to let any file of the process grow past a limit."""
    done = forked.run(["-c", LIMITED, str(tmp_path)])
    assert "clean" in done.stdout and f"errno {errno.EFBIG}" in done.stdout, done.stderr[-3000:]
