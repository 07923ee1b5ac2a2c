"""A lookout compares integer buffers of averaged copies, and notes norms of copies whose statistics are not kept up."""

from copy import deepcopy

import pytest
import torch
from lightning.pytorch.callbacks import Callback, WeightAveraging
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

INTEGERS, STATISTICS, LAGS = "AveragedIntegers", "AverageWithoutStatistics", "AverageLags"
RULES = [INTEGERS, STATISTICS, LAGS]


class Places(nn.Module):
    """Adds a learned number for each place, which a table of integers looks up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(40))
        self.register_buffer("index", torch.arange(40))

    def forward(self, x):
        return x + self.table[self.index]


class Model(nn.Module):
    """A layer, a norm and places."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 40), nn.BatchNorm1d(40), Places())
        self.head = nn.Linear(40, 1)

    def forward(self, x):
        return self.head(self.body(x).tanh())

    def loss(self):
        return self(torch.randn(16, 4)).square().mean()


def said(model, follow, steps=40):
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], 1e-3)

    def loop(watched, step):
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()
        follow(step)

    found = in_loop(model, optimizer, loop, RULES, steps)
    assert_no_hooks(model)
    return found


@torch.no_grad()
def move(copy, model, kinds=("parameters", "buffers"), decay=0.95, floats=False):
    for kind in kinds:
        for own, source in zip(getattr(copy, kind)(), getattr(model, kind)(), strict=True):
            if own.is_floating_point() or not floats:
                own.copy_(own * decay + (1 - decay) * source)
            else:
                own.copy_(source)


def test_integers_that_are_averaged_are_named_in_a_copy_outside_of_the_model():
    model = Model()
    copy = deepcopy(model)
    finding = said(model, lambda step: move(copy, model))[INTEGERS]
    assert (finding.rows, finding.first_step, finding.severity) == (("body.2",), 4, "warning")
    assert finding.message.startswith(
        "body.2: a copy outside of the model has other integers in the buffer `index`, which the model never changes: "
    )
    assert finding.message.endswith(" of 40 differ, as after averaging and rounding down.")


def test_a_copy_whose_weights_follow_at_each_step_without_their_statistics_is_a_warning():
    model = Model()
    copy = deepcopy(model)
    finding = said(model, lambda step: move(copy, model, ["parameters"]))[STATISTICS]
    assert (finding.rows, finding.severity) == (("body.1",), "warning")
    assert finding.message == (
        "body.1: a copy outside of the model has weights that follow the model at each step, but the running statistics of "
        "its norms are those with which it began."
    )


def test_a_copy_that_is_made_later_is_found():
    model = Model()
    copies = []

    def follow(step):
        if step == 20:
            copies.append(deepcopy(model))
        for copy in copies:
            move(copy, model)

    assert said(model, follow, steps=300)[INTEGERS].first_step > 50


def test_a_copy_that_follows_now_and_then_is_a_note_because_its_statistics_may_be_taken_at_the_end():
    model = Model()
    copy = deepcopy(model)
    found = said(model, lambda step: None if step % 5 else move(copy, model, ["parameters"]), steps=300)
    assert found[STATISTICS].severity == "info"


class Taught(nn.Module):
    """Holds an average of its network, which it asks for targets."""

    def __init__(self, mode):
        super().__init__()
        self.network = Model()
        self.ema = deepcopy(self.network).requires_grad_(False).train(mode)

    def loss(self):
        inputs = torch.randn(16, 4)
        with torch.no_grad():
            targets = self.ema(inputs)
        return (self.network(inputs) - targets).square().mean()


def test_a_copy_in_the_model_has_its_name_there():
    model = Taught(False)
    finding = said(model, lambda step: move(model.ema, model.network, ["parameters"]))[STATISTICS]
    assert finding.rows == ("network.body.1",)
    assert "the copy `ema` has weights that follow the model at each step" in finding.message


def test_a_teacher_in_training_mode_takes_its_own_statistics():
    model = Taught(True)
    assert said(model, lambda step: move(model.ema, model.network, ["parameters"])) == {}


def averaged(model, **options):
    average = AveragedModel(model, **options)
    return lambda step: average.update_parameters(model)


def follows(model, **options):
    copy = deepcopy(model)
    return lambda step: move(copy, model, floats=True, **options)


def loads(model):
    copy = deepcopy(model)
    return lambda step: copy.load_state_dict(model.state_dict()) if step % 10 == 0 else None


def also_trained(model):
    other = Model()
    optimizer = torch.optim.SGD(other.parameters(), 0.01)

    def step_of_other(step):
        optimizer.zero_grad()
        other.loss().backward()
        optimizer.step()

    return step_of_other


@pytest.mark.parametrize(
    "follow",
    [
        averaged,
        lambda model: averaged(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)),
        follows,
        loads,
        also_trained,
        lambda model: deepcopy(model) and (lambda step: None),
    ],
    ids=["equal average", "moving average", "floats only", "target network", "another training", "a copy of the start"],
)
def test_what_is_done_on_purpose_is_no_finding(follow):
    model = Model()
    assert said(model, follow(model)) == {}


class Normed(Net):
    """A network with a norm."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), Places(), nn.Linear(40, 3))


class Averaging(WeightAveraging):
    """Averages all buffers, integers too, at each step."""

    def __init__(self, **options):
        super().__init__(multi_avg_fn=get_ema_multi_avg_fn(0.95), **options)


def test_a_callback_that_averages_integers_is_named_and_one_that_copies_buffers_is_not(tmp_path):
    batches = [(torch.randn(8, 6), torch.randn(8, 3)) for _ in range(20)]
    found = in_trainer(tmp_path, Normed(), batches, RULES, callbacks=[Averaging()])
    assert found[INTEGERS].rows == ("body.2",)
    assert in_trainer(tmp_path, Normed(), batches, RULES, callbacks=[Averaging(use_buffers=False)]) == {}


class Follower(Callback):
    """Averages the weights at each step."""

    def __init__(self, decay):
        self.decay, self.copy = decay, None

    def on_fit_start(self, trainer, pl_module):
        self.copy = deepcopy(pl_module.body)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        move(self.copy, pl_module.body, decay=self.decay, floats=True)


def plain():
    torch.manual_seed(0)
    return Net(lambda parameters: torch.optim.Adam(parameters, 0.02), dropout=0.0)


def learnable(count):
    torch.manual_seed(1)
    inputs = torch.randn(count, 8, 6)
    return [(each, 5 * each[:, :3].tanh()) for each in inputs]


def test_an_average_that_is_still_the_beginning_after_half_of_the_fit_is_named(tmp_path):
    finding = in_trainer(tmp_path, plain(), learnable(120), RULES, callbacks=[Follower(0.9999)])[LAGS]
    assert (finding.rows, finding.severity) == (("",), "warning")
    assert 60 <= finding.first_step <= 65
    assert finding.message == (
        "A copy outside of the model has gone 0.29 % of the way that the model has gone since its first steps: so slow an "
        "average is still the weights of the beginning."
    )


@pytest.mark.parametrize("decay", [0.95, 0.98])
def test_an_average_that_arrives_before_the_fit_ends_is_no_finding(tmp_path, decay):
    assert in_trainer(tmp_path, plain(), learnable(120), RULES, callbacks=[Follower(decay)]) == {}
