import itertools
import json
import warnings
from dataclasses import dataclass

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor, RuleError, StatsMonitor, assert_no_hooks, check
from lightning_hooks.cli.doctor import doctor
from lightning_hooks.health.journal import read_findings
from lightning_hooks.health.reporter import HealthError
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


def checking_alone(**options):
    return checking(rules=["NonFinite", "NotInOptimizer"], **options)


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
    assert [each.check for each in report if each.status == "fail"] == [] and len(report) == 23
    assert_no_hooks(checked)


@dataclass(slots=True)
class Slots:
    n: int = 0

    def __next__(self):
        self.n += 1
        return self.n


class Scheduled(Plain):
    """Multiplies its loss by what it takes from an object that it holds."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + min(next(self.held), 20) / 10)


def numbers():
    yield from range(1000)


@pytest.mark.parametrize("make", [Slots, itertools.count, lambda: iter(list(range(1000)))], ids=["slots", "count", "iterator"])
def test_a_fit_goes_on_the_same_with_a_model_that_counts(tmp_path, make):
    plain, _ = fitted(lambda: holding(make()), tmp_path)
    checked, trainer = fitted(lambda: holding(make()), tmp_path, [checking()])
    assert same(plain, checked) and trainer.callbacks[0].check_report["StepRuns"].status == "pass"


def test_checks_that_would_use_up_a_generator_are_skipped_and_name_it(tmp_path):
    plain, _ = fitted(lambda: holding(numbers()), tmp_path)
    checked, trainer = fitted(lambda: holding(numbers()), tmp_path, [checking()])
    report = trainer.callbacks[0].check_report
    assert same(plain, checked) and report.ok
    assert report["StepRuns"].status == report["NonFinite"].status == "skip"
    assert report["StepRuns"].message == "the step uses model.held (generator), which cannot be restored"


def test_a_generator_that_the_step_does_not_use_skips_no_check(tmp_path):
    checked, trainer = fitted(lambda: holding(numbers(), Plain), tmp_path, [checking()])
    assert trainer.callbacks[0].check_report["StepRuns"].status == "pass" and next(checked.held) == 0


def holding(held, kind=Scheduled):
    module = kind()
    module.held = held
    return module


def test_with_a_loss_scaler_weights_and_scale_are_the_same(tmp_path):
    plain, without = fitted(Plain, tmp_path, plugins=scaler(growth_interval=2))
    checked, trainer = fitted(Plain, tmp_path, [checking()], plugins=scaler(growth_interval=2))
    scales = [each.precision_plugin.scaler.state_dict() for each in (without, trainer)]
    assert same(plain, checked) and scales[0] == scales[1] and scales[0]["scale"] > 1024
    report = trainer.callbacks[0].check_report
    assert report.ok and report["UnchangedParameter"].status == report["InputsMatter"].status == "pass"


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
    assert report["NoGradient"].status == report["UnchangedParameter"].status == "pass"


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


TOLD = "CRITICAL: LossGivenWrongNumbers (certain). The loss is given other numbers than it is made for."


def test_what_fails_is_a_finding_and_what_passes_is_not_told(tmp_path, capsys):
    _, trainer = fitted(Softmaxed, tmp_path, [checking_alone()], epochs=1)
    said = capsys.readouterr().err
    assert said.count(TOLD) == 1 and "PASS" not in said
    monitor = trainer.callbacks[0]
    assert json.loads((tmp_path / "check.json").read_text()) == monitor.check_report.to_dict()
    (finding,) = read_findings(tmp_path).findings
    assert [finding.to_dict()] == [each.to_dict() for each in monitor.findings]
    assert (finding.fingerprint, finding.severity) == ("ActivationBeforeLoss/net.5", "critical")
    assert (finding.first_step, finding.last_step, finding.number) == (0, 0, 1)
    assert finding.evidence[0].text.startswith("a softmax stands in front of") and finding.next_steps
    assert doctor([str(tmp_path)]) == 1 and TOLD in capsys.readouterr().out
    fitted(Plain, tmp_path / "plain", [checking_alone()], epochs=1)
    assert "ActivationBeforeLoss" not in capsys.readouterr().err


def test_a_guest_of_a_monitor_tells_it_too_and_a_monitor_without_rules_shows_the_table(tmp_path, capsys):
    _, trainer = fitted(Softmaxed, tmp_path, [lambda: StatsMonitor(loggers="none"), checking_alone()], epochs=1)
    assert capsys.readouterr().err.count(TOLD) == 1 and len(read_findings(tmp_path).findings) == 1
    with pytest.warns(UserWarning, match="no rule matches anything"):
        fitted(Softmaxed, tmp_path / "none", [checking(rules=[])], epochs=1)
    assert "FAIL  ActivationBeforeLoss  net.5: a softmax stands in front of" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["critical", "ActivationBeforeLoss"])
def test_actions_stop_the_fit_call_and_save_and_silence(tmp_path, capsys, key):
    called = []
    actions = {key: ["stop", "checkpoint", called.append]}
    _, trainer = fitted(Softmaxed, tmp_path, [checking_alone(actions=actions)], epochs=1)
    assert trainer.global_step == 1 and [each.rule for each in called] == ["ActivationBeforeLoss"]
    assert (tmp_path / "ActivationBeforeLoss_net.5-step0.ckpt").exists()
    assert TOLD not in capsys.readouterr().err


def test_the_action_raise_ends_the_fit_before_its_first_step(tmp_path):
    seed_everything(7, verbose=False)
    module = Softmaxed()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    monitor = HealthMonitor(check_first_batch=True, actions={"ActivationBeforeLoss": "raise"})
    trainer = Trainer(max_epochs=1, callbacks=[monitor], default_root_dir=tmp_path, **QUIET)
    with pytest.raises(HealthError, match="ActivationBeforeLoss, since step 0. net.5: a softmax"):
        trainer.fit(module, loader())
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())
    assert_no_hooks(module)


def test_a_resumed_fit_tells_nothing_again_and_says_when_a_fault_is_gone(tmp_path, capsys):
    called = []
    options = {"actions": {"critical": ["warn", called.append]}}
    _, trainer = fitted(Softmaxed, tmp_path, [checking_alone(**options)], epochs=1)
    path = tmp_path / "kept.ckpt"
    trainer.save_checkpoint(path)
    assert capsys.readouterr().err.count(TOLD) == len(called) == 1
    fitted(Softmaxed, tmp_path, [checking_alone(**options)], ckpt_path=path)
    (finding,) = read_findings(tmp_path).findings
    assert TOLD not in capsys.readouterr().err and len(called) == 1
    assert (finding.first_step, finding.last_step, finding.is_over) == (0, 6, None)
    fitted(Plain, tmp_path, [checking_alone(**options)], ckpt_path=path)  # the same parameters, without the softmax
    (finding,) = read_findings(tmp_path).findings
    assert finding.is_over == 6 and len(called) == 1 and doctor([str(tmp_path)]) == 0


class Headless(Plain):
    def configure_optimizers(self):
        return torch.optim.SGD(self.net[0].parameters(), lr=1e-2)


def test_a_rule_that_finds_the_same_fault_belongs_to_the_same_cause(tmp_path, capsys):
    _, trainer = fitted(Headless, tmp_path, [checking_alone()], epochs=3)
    said = capsys.readouterr().err
    assert said.count("CRITICAL: ParametersForgotten (certain).") == 1 and said.count("CRITICAL: ") == 1
    (cause,) = trainer.callbacks[0].causes
    assert cause.findings == ("NotInOptimizer/net.*",) and len(trainer.callbacks[0].findings) == 1


class Pixels(Plain):
    def __init__(self):
        super().__init__()
        self.net[1] = nn.Identity()  # a norm would take the scale of the input away
        self.net[4].weight.data *= 1e-3  # so that the first loss is that of a guess

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0] * 60 + 127, batch[1]), batch_idx)


def test_what_a_check_and_a_rule_of_one_name_find_is_told_once(tmp_path, capsys):
    called = []
    options = {"rules": ["InputNotNormalised", "NonFinite"], "actions": {"InputNotNormalised": ["warn", called.append]}}
    _, trainer = fitted(Pixels, tmp_path, [checking(**options)], epochs=6)
    said = capsys.readouterr().err
    (finding,) = trainer.callbacks[0].findings
    assert (said.count("InputNotNormalised, since"), len(called)) == (1, 1) and "WARNING: DataNotNormalised" not in said
    assert (finding.rows, finding.first_step, len(finding.evidence)) == (("net.0",), 0, 2)
    assert finding.evidence[1].text.startswith("the input has a root mean square of")
    assert [each.rule for each in read_findings(tmp_path).findings] == ["InputNotNormalised"]
    accepted = HealthMonitor(rules=["InputNotNormalised"], check_first_batch=True, accept="InputNotNormalised/net.0")
    fitted(Pixels, tmp_path / "accepted", [lambda: accepted])
    assert accepted.findings == [] and accepted.check_report["InputNotNormalised"].message.startswith("accepted: ")


def test_a_check_has_the_thresholds_of_the_rule_with_its_name(tmp_path):
    monitor = HealthMonitor({"InputNotNormalised": {"most": 999.0}, "NonFinite": False}, check_first_batch=True)
    fitted(Pixels, tmp_path, [lambda: monitor], epochs=1)
    assert monitor.check_report["InputNotNormalised"].threshold == 999
    assert "NonFinite" not in [each.check for each in monitor.check_report]
    named = HealthMonitor({"NonFinite": False}, check_first_batch=["NonFinite"])
    fitted(Plain, tmp_path / "named", [lambda: named], epochs=1)
    assert named.check_report["NonFinite"].status == "pass"


def test_accept_counts_for_checks_and_a_mapping_chooses_them(tmp_path, capsys):
    options = {"accept": "ActivationBeforeLoss/net.*"}
    monitor = HealthMonitor(rules=["NonFinite"], check_first_batch={"InputNotNormalised": False}, **options)
    _, trainer = fitted(Softmaxed, tmp_path, [lambda: monitor], epochs=1)
    assert "ActivationBeforeLoss" not in capsys.readouterr().err and monitor.findings == []
    assert monitor.check_report["ActivationBeforeLoss"].message.startswith("accepted: ")
    assert "InputNotNormalised" not in [each.check for each in monitor.check_report]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"check_first_batch": "yes"}, "check_first_batch must be True, False, a list of checks or a mapping, got 'yes'"),
        ({"check_first_batch": {"InputNotNormalized": False}}, "there is no check 'InputNotNormalized'"),
        (
            {"check_first_batch": True, "actions": {"InputNotNormalized": "stop"}},
            "actions: 'InputNotNormalized' is neither .* 'InputNotNormalised'",
        ),
        ({"accept": "BiasBeforeNorm"}, "there is no health rule 'BiasBeforeNorm'"),
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


class FromIterator(Plain):
    def training_step(self, dataloader_iter):
        (numbers, labels), _, _ = next(dataloader_iter)
        loss = nn.functional.cross_entropy(self.net(numbers), labels)
        self.losses.append(loss.item())
        return loss


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter`")
def test_a_step_that_takes_its_batches_itself_is_not_checked_and_says_why(tmp_path):
    plain, _ = fitted(FromIterator, tmp_path, epochs=1)
    checked, trainer = fitted(FromIterator, tmp_path, [checking()], epochs=1)
    assert same(plain, checked)
    assert {each.message for each in trainer.callbacks[0].check_report} == {
        "the training step takes its batches from an iterator"
    }
