"""A lookout says what a fit that goes on from a checkpoint has lost: moments, counts, schedules; a new fit loses nothing."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR, StepLR
from torch.utils.data import DataLoader

from lightning_hooks import HealthMonitor, StatsMonitor, assert_no_hooks, instrument
from lightning_hooks.engine.lookouts.found_schedules import found_schedules
from tests.callbacks.models import Net, assert_clean, trainer_of

RULES = ("StateNotRestored", "ResumedOtherwise", "LossAfterResume")
RATE = ": the rate is 0.00655, and the schedule goes on from 0.01"
EMPTY = "its state is empty for 4 of 4 parameters"


class Loop:
    """A plain loop of a small model, with what it saves and loads by hand."""

    def __init__(self, make=torch.optim.AdamW, schedule=lambda optimizer: CosineAnnealingLR(optimizer, 100)):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = make(self.model.parameters(), lr=1e-2)
        self.schedule = None if schedule is None else schedule(self.optimizer)

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()

    def trained(self, steps=40):
        """A copy of all that this loop could save after so many steps."""
        for _ in range(steps):
            self.step()
        schedule = None if self.schedule is None else self.schedule.state_dict()
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), schedule))


def said(loop, first_step=0, steps=15, watched=None):
    """{rule: finding} of a loop that goes on."""
    monitor = HealthMonitor(rules=list(RULES))
    optimizers = [loop.optimizer] if watched is None else watched
    with instrument(loop.model, [StatsMonitor(loggers=[]), monitor], optimizer=optimizers, first_step=first_step):
        for _ in range(steps):
            loop.step()
    assert_no_hooks(loop.model)
    return {each.rule: each for each in monitor.findings}


def resumed(parts, **options):
    """A new loop that has loaded some of `weights`, `optimizer` and `schedule`."""
    weights, optimizer, schedule = Loop(**options).trained()
    loop = Loop(**options)
    if "weights" in parts:
        loop.model.load_state_dict(weights)
    if "optimizer" in parts:
        loop.optimizer.load_state_dict(optimizer)
    if "schedule" in parts:
        loop.schedule.load_state_dict(schedule)
    return loop


def test_a_loop_that_goes_on_without_moments_is_told_so():
    finding = said(resumed(("weights", "schedule")), 40)["StateNotRestored"]
    assert (finding.severity, finding.rows, finding.first_step) == ("warning", ("",), 41)
    assert finding.message == f"The fit goes on at step 40 without the moments of AdamW: {EMPTY}."


def test_a_schedule_that_begins_again_is_told():
    finding = said(resumed(("weights", "optimizer")), 40)["StateNotRestored"]
    assert (finding.severity, finding.message) == (
        "warning",
        f"The fit goes on at step 40 with CosineAnnealingLR at its step 0{RATE}.",
    )


def test_without_the_number_of_the_first_step_a_schedule_that_goes_on_tells_of_lost_moments():
    finding = said(resumed(("weights", "schedule")))["StateNotRestored"]
    assert (finding.severity, finding.message) == (
        "warning",
        f"CosineAnnealingLR goes on at its step 40, but AdamW begins without moments: {EMPTY}.",
    )


def test_without_the_number_of_the_first_step_the_moments_that_go_on_tell_of_a_lost_schedule():
    finding = said(resumed(("weights", "optimizer")))["StateNotRestored"]
    assert (finding.severity, finding.message) == (
        "warning",
        f"AdamW goes on at its step 40, but CosineAnnealingLR at its step 0{RATE}.",
    )


def with_momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def test_an_optimizer_without_step_counts_tells_of_a_lost_schedule_by_its_rate():
    finding = said(resumed(("weights", "optimizer"), make=with_momentum))["StateNotRestored"]
    assert (finding.severity, finding.message) == (
        "warning",
        f"SGD goes on with moments of 4 of 4 parameters, but CosineAnnealingLR at its step 0{RATE}.",
    )
    assert said(resumed(("weights", "optimizer", "schedule"), make=with_momentum)) == {}


def test_an_optimizer_that_has_stepped_before_a_schedule_was_made_is_none_that_goes_on():
    loop = Loop(make=with_momentum, schedule=None)
    loop.step()
    loop.schedule = CosineAnnealingLR(loop.optimizer, 100)
    assert said(loop) == {}


def test_a_step_count_that_begins_again_is_told():
    loop = resumed(("weights", "optimizer", "schedule"))
    for state in loop.optimizer.state.values():
        state["step"].zero_()
    assert said(loop, 40)["StateNotRestored"].message == "The fit goes on at step 40 with AdamW at its step 0."


def every_part():
    return resumed(("weights", "optimizer", "schedule")), 40


def fine_tuned():
    return resumed(("weights",)), 0


def without_state():
    return resumed(("weights",), make=torch.optim.SGD, schedule=None), 40


def schedule_by_epochs():
    loop = resumed(("weights", "optimizer"))
    step, loop.schedule = loop.step, None
    loop.kept, loop.step = StepLR(loop.optimizer, 5), step
    return loop, 40


def unfrozen():
    loop = resumed(("weights", "optimizer", "schedule"))
    added = nn.Parameter(torch.zeros(1))
    loop.model.register_parameter("added", added)
    loop.optimizer.add_param_group({"params": [added]})
    loop.schedule = None
    return loop, 40


def numbered_from_one():
    return Loop(), 1


@pytest.mark.parametrize(
    "make", [every_part, fine_tuned, without_state, schedule_by_epochs, unfrozen, numbered_from_one], ids=lambda f: f.__name__
)
def test_what_is_complete_or_on_purpose_is_no_finding(make):
    loop, first = make()
    assert said(loop, first) == {}


@pytest.mark.parametrize("first", [0, 40])
def test_a_new_schedule_that_has_set_the_rate_is_a_note_only(first):
    loop = resumed(("weights", "optimizer"))
    loop.schedule = None
    for group in loop.optimizer.param_groups:
        del group["initial_lr"]
        group["lr"] = 1e-4
    loop.schedule = LambdaLR(loop.optimizer, lambda step: 1 / (1 + step))
    assert said(loop, first)["StateNotRestored"].severity == "info"


def test_of_two_optimizers_the_one_without_state_is_noted():
    loop = resumed(("weights", "optimizer", "schedule"))
    extra = nn.Linear(4, 1)
    loop.model.add_module("extra", extra)
    other, step = torch.optim.Adam(extra.parameters()), loop.step

    def both():
        step()
        extra(torch.randn(8, 4)).square().mean().backward()
        other.step()
        other.zero_grad()

    loop.step = both
    loop.model.forward = lambda x: loop.model[2](loop.model[1](loop.model[0](x)))
    finding = said(loop, watched=[loop.optimizer, other])["StateNotRestored"]
    assert (finding.severity, finding.message) == (
        "info",
        "Optimizer 0 (AdamW) goes on at its step 40, but optimizer 1 (Adam) begins without moments: its state is empty for 2 "
        "of 2 parameters.",
    )


def test_the_whole_schedule_is_found_and_none_where_several_would_do():
    optimizer = torch.optim.SGD([torch.ones(1)], 0.1)
    assert found_schedules([optimizer]) == []
    parts = [LambdaLR(optimizer, lambda step: 0.1), StepLR(optimizer, 3)]
    assert found_schedules([optimizer]) == []
    whole = SequentialLR(optimizer, parts, [2])
    assert found_schedules([optimizer]) == [whole]


class Scheduled(Net):
    """Follows a schedule by steps; loses what is named of a checkpoint."""

    def __init__(self, loses=(), rate=1e-2, make=torch.optim.AdamW):
        super().__init__()
        self.loses, self.rate, self.make = loses, rate, make

    def configure_optimizers(self):
        optimizer = self.make(self.parameters(), lr=self.rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": CosineAnnealingLR(optimizer, 100), "interval": "step"}}

    def on_load_checkpoint(self, checkpoint):
        for key in self.loses:
            checkpoint[key] = []

    def on_train_start(self):
        if self.global_step and self.rate != 1e-2:
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] = self.rate


BATCHES = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(10)]
SAMPLES = [(x, y) for xs, ys in BATCHES for x, y in zip(xs, ys, strict=True)]


def fitted(folder, module, epochs, rules=RULES, **fit):
    monitor = HealthMonitor(rules=list(rules))
    trainer = trainer_of(folder, StatsMonitor(loggers=[]), *([monitor] if rules else []), max_epochs=epochs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(BATCHES, batch_size=None), **fit)
    assert_clean(module)
    return trainer, {each.rule: each for each in monitor.findings}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints of the same fit after 40 steps, with and without a `HealthMonitor`."""
    folder = tmp_path_factory.mktemp("seam")
    for name, rules in (("with", RULES), ("without", ())):
        torch.manual_seed(0)
        trainer, _ = fitted(folder, Scheduled(), 4, rules)
        trainer.save_checkpoint(folder / f"{name}.ckpt")
    return folder


def gone_on(checkpoints, name, module):
    return fitted(checkpoints, module, 6, ckpt_path=checkpoints / f"{name}.ckpt")[1]


@pytest.mark.parametrize("name", ["with", "without"])
def test_a_trainer_that_restores_everything_is_no_finding(checkpoints, name):
    assert gone_on(checkpoints, name, Scheduled()) == {}


@pytest.mark.parametrize(
    ("name", "loses", "message"),
    [
        ("without", ("optimizer_states",), f"without the moments of AdamW: {EMPTY}"),
        (
            "with",
            ("optimizer_states",),
            f"without the moments of AdamW: {EMPTY}; the rate of AdamW is 0.01, where 0.00655 was saved",
        ),
        ("without", ("lr_schedulers",), f"with CosineAnnealingLR at its step 0{RATE}"),
        ("with", ("lr_schedulers",), "with CosineAnnealingLR at its step 0, where step 40 was saved"),
    ],
)
def test_what_a_trainer_does_not_restore_is_told(checkpoints, name, loses, message):
    found = gone_on(checkpoints, name, Scheduled(loses))
    assert {rule: finding.message for rule, finding in found.items() if finding.severity != "info"} == {
        "StateNotRestored": f"The fit goes on at step 40 {message}."
    }


def test_a_rate_that_is_changed_on_purpose_is_a_note(checkpoints):
    finding = gone_on(checkpoints, "with", Scheduled(rate=5e-3))["ResumedOtherwise"]
    assert (finding.severity, finding.message) == ("info", "The rate of AdamW is 0.005, where 0.00655 was saved.")


def test_generators_that_begin_again_and_an_epoch_that_does_are_one_line_of_a_note(tmp_path):
    found = []
    for path in (None, tmp_path / "half.ckpt"):
        torch.manual_seed(0)
        monitor, module = HealthMonitor(rules=list(RULES)), Scheduled()
        trainer = trainer_of(
            tmp_path, StatsMonitor(loggers=[]), monitor, max_epochs=3 if path else -1, max_steps=-1 if path else 14
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, DataLoader(SAMPLES, batch_size=4, shuffle=True), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / "half.ckpt")
        found.append([(each.rule, each.severity, each.message) for each in monitor.findings])
    assert found == [
        [],
        [
            (
                "ResumedOtherwise",
                "info",
                "PyTorch's generator stands where the training once began, so that the same numbers are drawn again; 4 batches "
                "of an epoch were trained, but the loader begins its order anew.",
            )
        ],
    ]


class Scaled(Scheduled):
    """Has other moments than those that were saved."""

    def on_train_start(self):
        if self.global_step:
            for state in self.trainer.optimizers[0].state.values():
                state["exp_avg"].mul_(3)


def test_moments_that_are_not_the_saved_ones_are_told(checkpoints):
    finding = gone_on(checkpoints, "with", Scaled())["StateNotRestored"]
    assert finding.severity == "warning"
    assert "the moments of AdamW are not the saved ones for 4 of 4 parameters" in finding.message


class LoadedAgain(Scheduled):
    """Has other weights than those of the checkpoint, as after a second load."""

    factor = 1.0

    def on_train_start(self):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(self.factor)


def test_weights_that_are_not_the_saved_ones_are_a_warning_if_the_loss_jumps(checkpoints):
    module = LoadedAgain()
    module.factor = 3.0
    finding = gone_on(checkpoints, "with", module)["StateNotRestored"]
    assert finding.severity == "warning" and finding.harm and len(finding.rows) == 4
    assert "the weights are not the saved ones for 4 of 4 parameters: the norm is" in finding.message
    assert "StateNotRestored" not in gone_on(checkpoints, "without", module)


def test_a_second_fit_of_a_trainer_without_a_checkpoint_is_a_note(tmp_path):
    torch.manual_seed(0)
    module = Scheduled()
    trainer, _ = fitted(tmp_path, module, 2)
    monitor = next(each for each in trainer.callbacks if isinstance(each, HealthMonitor))
    trainer.fit_loop.max_epochs = 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(BATCHES, batch_size=None))
    assert {each.severity for each in monitor.findings} == {"info"}


def test_the_fit_goes_on_bit_by_bit_as_it_does_unwatched(checkpoints):
    states = []
    for rules in (RULES, ()):
        torch.manual_seed(1)
        module = Scheduled()
        fitted(checkpoints, module, 6, rules, ckpt_path=checkpoints / "with.ckpt")
        states.append({**module.state_dict(), "drawn": torch.rand(1)})
    assert all(torch.equal(one, other) for one, other in zip(states[0].values(), states[1].values(), strict=True))
