"""Precision: gradients without the scale of the loss, whatever multiplied it; a step that did not happen is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, UnsupportedError, Watch
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.transforms import ClipByGlobalNorm, Scale, SkipStep
from tests.callbacks.models import Net, adamw, assert_clean, data, plain_sgd, trainer_of
from tests.conformance._tools import Book, Spy, everything, three_runs
from tests.stats.kernels import stand_in


def scaler(scale: float = 1024.0, growth_interval: int = 2000) -> MixedPrecision:
    made = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
    return MixedPrecision("16-mixed", "cpu", scaler=made)


def fused_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, fused=True)


def fused_adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


class Overflows(Net):
    """The loss is infinite in some batches."""

    def __init__(self, optimizer: Any = plain_sgd, batches: tuple[int, ...] = (1,)) -> None:
        super().__init__(optimizer, dropout=0.0)
        self.batches = batches

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (float("inf") if batch_idx in self.batches else 1.0)


class Half(Net):
    """Computes in whatever dtype its weights have."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = (part.to(self.body[0].weight.dtype) for part in batch)
        return nn.functional.mse_loss(self(x), y)


# -- without a scaler ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "16-true", "bf16-mixed"])
def test_every_number_in_every_precision(tmp_path: Path, precision: str, accumulate: int) -> None:
    runs = three_runs(tmp_path, Half, lambda: data(5), precision=precision, accumulate_grad_batches=accumulate)
    dtypes = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}
    assert runs.spies["step"].dtypes == {dtypes.get(precision, torch.float32)}
    assert runs.bare.body[0].weight.dtype is dtypes.get(precision, torch.float32)


@pytest.mark.parametrize("optimizer", [fused_sgd, fused_adamw])
def test_a_fused_optimizer_without_a_scaler_is_as_any_other(tmp_path: Path, optimizer: Any) -> None:
    three_runs(tmp_path, lambda: Net(optimizer), lambda: data(5))


# -- with one --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [plain_sgd, adamw])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_number_under_a_scaler_whose_scale_grows(tmp_path: Path, accumulate: int, optimizer: Any) -> None:
    runs = three_runs(
        tmp_path,
        lambda: Net(optimizer),
        lambda: data(6),
        accumulate_grad_batches=accumulate,
        plugins=lambda: scaler(growth_interval=2),
    )
    assert runs.spies["backward"].dtypes == runs.spies["output_grad"].dtypes == {torch.float32}


@pytest.mark.parametrize("optimizer", [fused_sgd, fused_adamw])
def test_every_number_under_a_scaler_with_an_optimizer_that_unscales_inside_its_step(tmp_path: Path, optimizer: Any) -> None:
    """Its gradients are still scaled when they are read; the statistics are those of the gradients without the scale."""
    three_runs(
        tmp_path,
        lambda: Net(optimizer),
        lambda: data(5),
        plugins=lambda: scaler(growth_interval=2),
        stages=("backward", "output_grad"),
    )


class Deep(Net):
    """Has two parameters for each layer."""

    def __init__(self, optimizer: Any, layers: int) -> None:
        super().__init__(optimizer)
        torch.manual_seed(0)
        self.body = nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers)), nn.Linear(6, 3))


@pytest.mark.parametrize("on", ["host", "device"])
def test_gradients_that_an_optimizer_unscales_itself_are_measured_and_compared_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    if on == "device":
        if stand_in.missing() is not None:
            pytest.skip(str(stand_in.missing()))
        stand_in.install(monkeypatch)
    counts: list[int] = []
    read = Observer.read_before_step

    def counting(*args: Any) -> None:
        with Operations() as operations:
            read(*args)
        counts.append(operations.count)

    monkeypatch.setattr(Observer, "read_before_step", counting)
    found = []
    for optimizer, layers in ((fused_sgd, 2), (plain_sgd, 2), (fused_sgd, 29)):
        counts.clear()
        monitor = StatsMonitor([Watch(params="*", tensors=["grad"], stats=["norm", "max", "zero_fraction", "cosine"])])
        trainer_of(tmp_path, monitor, plugins=scaler()).fit(Deep(optimizer, layers), data(4))
        found.append(({tag: value for tag, value in monitor.latest.items() if tag.startswith("grad_")}, counts[-1]))
    (numbers, few), (unscaled, _), (_, many) = found
    assert few == many < 2 * 30 and numbers.keys() == unscaled.keys() and len(numbers) == 4 * 6
    for tag, value in numbers.items():
        assert value == pytest.approx(unscaled[tag], rel=1e-6, abs=1e-9), tag


class Operations(TorchDispatchMode):
    """Counts the operations of torch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_step_rule_is_refused_where_the_optimizer_unscales_inside_its_step(tmp_path: Path) -> None:
    model = Net(fused_sgd)
    rule = GradientTransforms([Apply(ClipByGlobalNorm(1.0), params="*")])
    with pytest.raises(UnsupportedError, match=r"apply\[0\].*fused=True.*unscales inside its own step.*fused=False or when="):
        trainer_of(tmp_path, rule, plugins=scaler()).fit(model, data())
    assert_clean(model)


# -- an overflow -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [plain_sgd, adamw, fused_sgd, fused_adamw])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_the_scaler_leaves_out_has_no_update_and_counts(tmp_path: Path, optimizer: Any, accumulate: int) -> None:
    monitor = StatsMonitor([*everything(), Watch(params="*", tensors=["update"], stats=["norm", "ratio"])], max_scalars=10**6)
    book, model = Book(monitor), Overflows(optimizer, (1, 4))
    trainer_of(tmp_path, monitor, book, plugins=scaler(), accumulate_grad_batches=accumulate).fit(model, data(6))
    left_out = {1: [1, 4], 2: [0, 2]}[accumulate]
    steps = range(6 // accumulate)
    for tag in ("update_norm", "update_ratio", "update_mean", "update_p50"):
        assert book.steps_of(f"{tag}/body.0.weight") == [step for step in steps if step not in left_out], tag
    for tensor in ("param", "grad", "final_grad"):
        assert book.steps_of(f"{tensor}_norm/body.0.weight") == list(steps)
    assert [value > 0 for value in book.values("grad_nonfinite/body.0.weight")] == [step in left_out for step in steps]
    assert book.values("run/skipped_steps") == [float(sum(at <= step for at in left_out)) for step in steps]
    assert book.steps_of("run/update_ratio") == [step for step in steps if step not in left_out]
    assert_clean(model)


def test_without_a_scaler_no_step_is_said_to_be_left_out(tmp_path: Path) -> None:
    monitor = StatsMonitor()
    trainer_of(tmp_path, monitor).fit(Net(), data(2))
    assert "run/skipped_steps" not in monitor.latest


def test_optimizer_state_has_no_row_where_the_step_was_left_out(tmp_path: Path) -> None:
    for optimizer in (adamw, fused_adamw):
        monitor = StatsMonitor([Watch(params="*.weight", tensors="state.exp_avg", stats="norm")])
        book = Book(monitor)
        trainer_of(tmp_path, monitor, book, plugins=scaler()).fit(Overflows(optimizer, (2,)), data(4))
        assert book.steps_of("state.exp_avg_norm/body.0.weight") == [0, 1, 3]


def test_a_step_that_both_a_transform_and_the_scaler_skip_counts_once(tmp_path: Path) -> None:
    monitor = StatsMonitor()
    book = Book(monitor)
    skip = GradientTransforms([Apply(SkipStep(), params="*")])
    trainer_of(tmp_path, monitor, skip, book, plugins=scaler()).fit(Overflows(plain_sgd, (1,)), data(4))
    assert book.values("run/skipped_steps") == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("optimizer", [plain_sgd, fused_sgd])
def test_skipped_steps_are_counted_after_the_callback_that_counts_was_removed(tmp_path: Path, optimizer: Any) -> None:
    class Removes(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.callbacks = [each for each in trainer.callbacks if each is not first]

    first, monitor = StatsMonitor(prefix="first/"), StatsMonitor()
    book = Book(monitor)
    trainer = trainer_of(tmp_path, first, monitor, book, Removes(), plugins=scaler())
    trainer.fit(Overflows(optimizer, (0, 2)), data(4))
    assert book.values("run/skipped_steps") == [1.0, 1.0, 2.0, 2.0] and skipped(trainer) == 2.0
    assert book.steps_of("update_norm/body.0.weight") == [1, 3]


def test_the_count_covers_steps_that_are_not_logged_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    monitor = StatsMonitor(every_n_steps=3)
    trainer = trainer_of(tmp_path, monitor, plugins=scaler())
    trainer.fit(Overflows(plain_sgd, (0, 1, 5)), data(6))
    assert monitor.latest["run/skipped_steps"] == 3.0
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed = StatsMonitor(every_n_steps=3)
    again = trainer_of(tmp_path, resumed, plugins=scaler(), max_epochs=2)
    again.fit(Overflows(plain_sgd, (4,)), data(6), ckpt_path=tmp_path / "last.ckpt")
    assert resumed.latest["run/skipped_steps"] == 4.0


def skipped(trainer: Trainer) -> float:
    """The count in a checkpoint that is saved now."""
    file = Path(trainer.default_root_dir) / "now.ckpt"
    trainer.save_checkpoint(file)
    count: float = torch.load(file)["lightning_hooks.loss_scaler"]["skipped_steps"]
    return count


@pytest.mark.parametrize("reads", [False, True])
def test_a_checkpoint_after_another_run_has_the_count_of_the_fit(tmp_path: Path, reads: bool) -> None:
    class Tests(Overflows):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self(batch[0])

    def fit(batches: int) -> Trainer:
        trainer = trainer_of(tmp_path, monitor, plugins=scaler())
        trainer.fit(Tests(plain_sgd, (0, 1)), data(batches))
        return trainer

    monitor = StatsMonitor()
    assert skipped(fit(1)) == 1.0
    trainer = fit(3)
    trainer.test(Tests(), data(1), ckpt_path=tmp_path / "now.ckpt" if reads else None, verbose=False)
    assert skipped(trainer) == 2.0


def test_of_several_callbacks_one_counts_also_after_a_resume(tmp_path: Path) -> None:
    for epochs, path in ((1, None), (2, tmp_path / "now.ckpt")):
        callbacks = [StatsMonitor(), GradientTransforms([Apply(Scale(1.0), params="*")])]
        trainer = trainer_of(tmp_path, *callbacks, plugins=scaler(), max_epochs=epochs)
        trainer.fit(Overflows(plain_sgd, (1,)), data(3), ckpt_path=path)
        assert skipped(trainer) == epochs


def test_reports_of_transforms_without_a_monitor_hold_the_count(tmp_path: Path) -> None:
    from tests.callbacks.models import Memory

    memory = Memory()
    rules = GradientTransforms([Apply(Scale(1.0), params="*")])
    trainer_of(tmp_path, rules, plugins=scaler(), logger=memory).fit(Overflows(plain_sgd, (1,)), data(3))
    assert memory.values("run/skipped_steps") == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("where", [{"params": "*", "when": "backward"}, {"modules": "*"}], ids=["params", "modules"])
def test_rules_in_backward_see_the_overflow_and_the_scaler_sees_it_after_them(tmp_path: Path, where: dict[str, Any]) -> None:
    spy, model = Spy(), Overflows(plain_sgd, (1,))
    trainer = trainer_of(tmp_path, GradientTransforms([Apply([spy, Scale(0.5)], **where)]), plugins=scaler(1024.0))
    trainer.fit(model, data(3))
    finite = {step: all(bool(t.isfinite().all()) for ts in named.values() for t in ts) for step, named in spy.seen.items()}
    assert finite == {0: True, 1: False, 2: True}
    assert trainer.precision_plugin.scaler.get_scale() == 512.0  # type: ignore[attr-defined]
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_second_fit_starts_counting_again(tmp_path: Path) -> None:
    monitor = StatsMonitor()
    for _ in range(2):
        trainer_of(tmp_path, monitor, plugins=scaler()).fit(Overflows(plain_sgd, (1,)), data(3))
        assert monitor.latest["run/skipped_steps"] == 1.0


def greatest(tensor: Tensor) -> Tensor:
    return tensor.abs().max()


@pytest.mark.parametrize("optimizer", [plain_sgd, fused_sgd])
def test_statistics_of_a_users_own_are_given_unscaled_gradients(tmp_path: Path, optimizer: Any) -> None:
    tensors = ["output_grad", "input_grad"]
    rules = [
        Watch(modules="body.3", tensors=tensors, stats=["abs_max", "tests.conformance.test_precision.greatest"]),
        Watch(params="*", tensors=["grad", "final_grad"], stats=["abs_max", "tests.conformance.test_precision.greatest"]),
    ]
    monitor = StatsMonitor(rules)
    trainer_of(tmp_path, monitor, plugins=scaler()).fit(Net(optimizer), data(3))
    rows = [tag for tag in monitor.latest if "_greatest/" in tag]
    assert len(rows) == 2 + 2 * 4
    for tag in rows:
        assert monitor.latest[tag] == pytest.approx(monitor.latest[tag.replace("_greatest/", "_abs_max/")], rel=1e-6), tag


# -- a training step without a loss ----------------------------------------------------------------------------------------


class WithoutLoss(Net):
    """Has no loss in the last batch of the second window: Lightning then steps without dividing what was accumulated."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        return None if batch_idx == 3 else super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.training_step. returned .None.")
def test_what_was_accumulated_before_a_training_step_without_a_loss_has_no_loss_scale(tmp_path: Path) -> None:
    norms: dict[int, float] = {}

    class Keep(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            norms[len(norms)] = float(pl_module.body[0].weight.grad.norm()) / (1024.0 if len(norms) == 1 else 1.0)

    monitor, spy = StatsMonitor(everything(), max_scalars=10**6), Spy()
    book, rules = Book(monitor), GradientTransforms([Apply(spy, params="body.0.weight")])
    options: Any = {"accumulate_grad_batches": 2, "plugins": scaler()}
    trainer_of(tmp_path, monitor, rules, book, Keep(), **options).fit(WithoutLoss(), data(6))
    assert dict(enumerate(book.values("grad_norm/body.0.weight"))) == pytest.approx(norms, rel=1e-6)
    assert book.steps_of("update_norm/body.0.weight") == list(spy.seen) == [0, 2]
