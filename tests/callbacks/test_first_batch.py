import json
import warnings

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor, RuleError, StatsMonitor, assert_no_hooks, check
from tests.conformance.test_precision import scaler

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Plain(LightningModule):
    automatic = True

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
        self.losses = []
        self.automatic_optimization = self.automatic

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0] + 0.1 * torch.randn_like(batch[0])), batch[1])
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))]


class Manual(Plain):
    automatic = False

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        for optimizer in (first, second):
            optimizer.zero_grad()
        self.manual_backward(loss)
        first.step()
        if batch_idx % 2 == 0:
            second.step()
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self):
        groups = self.net[:2].parameters(), self.net[4].parameters()
        optimizers = [torch.optim.Adam(each, lr=1e-2) for each in groups]
        return optimizers, [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]


def loader(workers=0):
    numbers = torch.randn(48, 4)
    return DataLoader(TensorDataset(numbers, torch.randint(3, (48,))), 8, shuffle=True, num_workers=workers)


def fitted(kind, tmp_path, callbacks=(), checks_before=False, workers=0, ckpt_path=None, epochs=2, **options):
    seed_everything(7, verbose=False)
    module, data = kind(), loader(workers)
    callbacks = [each() for each in callbacks]
    trainer = Trainer(max_epochs=epochs, callbacks=callbacks, default_root_dir=tmp_path, **QUIET, **options)
    if checks_before:
        check(trainer, module, data)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return module, trainer


def same(one, other):
    numbers, others = one.state_dict(), other.state_dict()
    return one.losses == other.losses and all(torch.equal(numbers[name], others[name]) for name in numbers)


def checking(**options):
    return lambda: HealthMonitor(check_first_batch=True, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}],
    ids=str,
)
def test_a_fit_after_check_is_bit_for_bit_the_same(tmp_path, options):
    plain, _ = fitted(Plain, tmp_path, **options)
    checked, _ = fitted(Plain, tmp_path, checks_before=True, **options)
    assert same(plain, checked)


@pytest.mark.parametrize("kind", [Plain, Manual])
def test_a_fit_whose_first_batch_is_checked_is_bit_for_bit_the_same(tmp_path, kind):
    plain, _ = fitted(kind, tmp_path)
    checked, trainer = fitted(kind, tmp_path, [lambda: StatsMonitor(loggers="none", logdir=None), checking()])
    assert same(plain, checked)
    report = trainer.callbacks[1].check_report
    assert [each.check for each in report if each.status == "fail"] == [] and len(report) == 17
    assert_no_hooks(checked)


def test_with_a_loss_scaler_weights_and_scale_are_the_same(tmp_path):
    plain, without = fitted(Plain, tmp_path, plugins=scaler(growth_interval=2))
    checked, trainer = fitted(Plain, tmp_path, [checking()], plugins=scaler(growth_interval=2))
    scales = [each.precision_plugin.scaler.state_dict() for each in (without, trainer)]
    assert same(plain, checked) and scales[0] == scales[1] and scales[0]["scale"] > 1024
    report = trainer.callbacks[0].check_report
    assert report.ok and report["ParametersMove"].status == report["InputsMatter"].status == "pass"


class Gan(Plain):
    """Two nets that are trained in turns, one of them at every second batch, each with the parameters of the other frozen."""

    automatic = False

    def __init__(self):
        super().__init__()
        self.judge = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def training_step(self, batch, batch_idx):
        maker, judge = self.optimizers()
        if batch_idx % 2 == 0:
            self.toggle_optimizer(maker)
            loss = -self.judge(self.net(batch[0])).mean()
            maker.zero_grad()
            self.manual_backward(loss)
            maker.step()
            self.untoggle_optimizer(maker)
        else:
            self.toggle_optimizer(judge)
            loss = self.judge(self.net(batch[0]).detach()).mean() - self.judge(torch.randn(len(batch[0]), 3)).mean()
            judge.zero_grad()
            self.manual_backward(loss)
            judge.step()
            self.untoggle_optimizer(judge)
        self.losses.append(loss.item())

    def configure_optimizers(self):
        return [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (self.net, self.judge)]


def test_nets_that_are_trained_in_turns_pass_and_go_on_the_same(tmp_path):
    plain, _ = fitted(Gan, tmp_path)
    checked, trainer = fitted(Gan, tmp_path, [checking()])
    report = trainer.callbacks[0].check_report
    assert same(plain, checked) and report.ok and all(each.requires_grad for each in checked.parameters())
    assert report["GradientsReachParameters"].status == report["ParametersMove"].status == "pass"


@pytest.mark.slow
def test_with_workers_a_fit_whose_first_batch_is_checked_is_the_same(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, _ = fitted(Plain, tmp_path, workers=1, epochs=1)
        checked, _ = fitted(Plain, tmp_path, [checking()], workers=1, epochs=1)
        before, _ = fitted(Plain, tmp_path, checks_before=True, workers=1, epochs=1)
    assert same(plain, checked) and same(plain, before)


def test_a_resumed_fit_is_checked_and_goes_on_the_same(tmp_path):
    _, trainer = fitted(Plain, tmp_path, epochs=1)
    path = tmp_path / "kept.ckpt"
    trainer.save_checkpoint(path)
    plain, _ = fitted(Plain, tmp_path, ckpt_path=path)
    checked, trainer = fitted(Plain, tmp_path, [checking()], ckpt_path=path)
    assert same(plain, checked) and trainer.callbacks[0].check_report["StepRuns"].status == "pass"


class Softmaxed(Plain):
    def __init__(self):
        super().__init__()
        self.net.append(nn.Softmax(1))


def test_what_fails_is_told_and_written_and_what_passes_is_not_told(tmp_path, capsys):
    _, trainer = fitted(Softmaxed, tmp_path, [checking()], epochs=1)
    said = capsys.readouterr().err
    assert "FAIL  ActivationBeforeLoss  net.5: a softmax stands in front of `cross_entropy`" in said and "PASS" not in said
    written = json.loads((tmp_path / "check.json").read_text())
    assert written == trainer.callbacks[0].check_report.to_dict()
    fitted(Plain, tmp_path, [checking()], epochs=1)
    assert "Checks of the first batch" not in capsys.readouterr().err


def test_accept_counts_for_checks_and_a_mapping_chooses_them(tmp_path, capsys):
    options = {"accept": "ActivationBeforeLoss/net.*"}
    monitor = HealthMonitor(check_first_batch={"InputScale": False}, **options)
    _, trainer = fitted(Softmaxed, tmp_path, [lambda: monitor], epochs=1)
    assert "Checks of the first batch" not in capsys.readouterr().err
    assert monitor.check_report["ActivationBeforeLoss"].message.startswith("accepted: ")
    assert "InputScale" not in [each.check for each in monitor.check_report]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"check_first_batch": "yes"}, "check_first_batch must be True, False, a list of checks or a mapping, got 'yes'"),
        ({"check_first_batch": {"InptScale": False}}, "there is no check 'InptScale'"),
        ({"accept": "InputScale"}, "there is no health rule 'InputScale'"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(RuleError, match=said):
        HealthMonitor(**options)


def test_callbacks_and_loggers_hear_nothing_of_a_check(tmp_path):
    heard = []

    class Listener(Callback):
        def on_before_backward(self, *args):
            heard.append("backward")

        def on_before_optimizer_step(self, *args):
            heard.append("step")

    fitted(Manual, tmp_path, [Listener, checking()], epochs=1)
    assert heard == ["backward", "step", "step", "backward", "step"] * 3


def test_a_check_with_a_trainer_leaves_no_trace(tmp_path):
    seed_everything(7, verbose=False)
    module, data = Plain(), loader()
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, enable_checkpointing=False, **QUIET)
    before, drawn = {name: each.clone() for name, each in module.state_dict().items()}, torch.get_rng_state()
    attributes = sorted(vars(module))
    report = check(trainer, module, data)
    assert report.ok and torch.get_rng_state().equal(drawn)
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())
    assert sorted(vars(module)) == attributes and module.losses == [] and module._trainer is None
    assert list(tmp_path.iterdir()) == []


def test_the_arguments_after_a_trainer_are_checked(tmp_path):
    trainer = Trainer(default_root_dir=tmp_path, **QUIET)
    with pytest.raises(RuleError, match="after a Trainer comes a LightningModule, got Linear"):
        check(trainer, nn.Linear(1, 1), loader())
    with pytest.raises(RuleError, match="with a Trainer, loss is that of the LightningModule"):
        check(trainer, Plain(), loader(), loss=nn.MSELoss())
    with pytest.raises(RuleError, match="Plain is a LightningModule; call check.trainer, module, data."):
        check(Plain(), next(iter(loader())))
    with pytest.raises(RuleError, match="the loader gives no batch"):
        check(trainer, Plain(), [])
