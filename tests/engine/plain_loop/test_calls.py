"""Which calls of modules belong to a training step in a plain loop."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import ActivationTransforms, Apply, CustomHooks, Hook, RuleError, StatsMonitor, Watch, instrument
from lightning_hooks.transforms import Scale

RULE = Watch(modules="*", tensors=["output", "input"], stats=["norm"])
BATCH = 4


class Net(nn.Module):
    """A frozen encoder that runs in evaluation mode and without gradients, and a trained head, perhaps checkpointed."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.encoder = nn.Linear(3, 3).requires_grad_(False)
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 1)
        self.reentrant = reentrant

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            hidden = self.encoder(x)
        hidden = hidden.requires_grad_() if self.reentrant else hidden
        body = self.body if self.reentrant is None else partial(checkpoint, self.body, use_reentrant=self.reentrant)
        return self.head(body(hidden))


def counts(view):
    """The number of elements of each output in a step, by module."""
    index = view.rows
    return {index.names[i]: int(view.moments[i, 0]) for i in range(len(index.names)) if index.tensors[i] == "output"}


def train(net, *, evaluate=None, steps=2, **options):
    """The counts of the last of some steps, with an evaluation of five batches before each but the first."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with instrument(net, [StatsMonitor([RULE])], optimizer=optimizer, **options) as watched:
        for step in range(steps):
            if step and evaluate is not None:
                for _ in range(5):
                    evaluate(net)
            net(torch.ones(BATCH, 3)).sum().backward()
            optimizer.step()
        return counts(watched.view)


def in_evaluation_mode(context, net):
    net.eval()
    with context():
        net(torch.ones(BATCH, 3))
    net.train()


def without_gradients(net):
    with torch.no_grad():
        net(torch.ones(BATCH, 3))


ONE = {"encoder": 3 * BATCH, "body": 3 * BATCH, "head": BATCH}
SIX = {name: 6 * count for name, count in ONE.items()}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_between_two_steps_is_not_a_part_of_the_next(context):
    assert train(Net(), evaluate=partial(in_evaluation_mode, context)) == ONE
    assert train(Net(), evaluate=partial(in_evaluation_mode, context), calls="all") == SIX


def test_a_frozen_part_without_gradients_is_a_part_of_the_step():
    assert train(Net()) == ONE


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_part_is_measured_once(reentrant):
    assert train(Net(reentrant), evaluate=partial(in_evaluation_mode, torch.no_grad)) == ONE


def test_a_policy_that_trains_in_evaluation_mode_is_measured():
    net = Net()
    net.eval()
    with pytest.warns(UserWarning, match="encoder .* ran without gradients"):
        counted = train(net)
    assert counted == {"encoder": 0, "body": 3 * BATCH, "head": BATCH}


def test_data_that_is_collected_in_training_mode_counts_unless_only_gradients_do():
    assert train(Net(), evaluate=without_gradients) == SIX
    with pytest.warns(UserWarning, match="encoder .* ran without gradients"):
        counted = train(Net(), evaluate=without_gradients, calls="gradients")
    assert counted == {**ONE, "encoder": 0}


def test_a_compiled_model_leaves_out_an_evaluation():
    net = torch.compile(Net(), backend="eager")
    evaluate = partial(in_evaluation_mode, torch.no_grad)
    assert train(net, evaluate=evaluate) == ONE
    assert train(torch.compile(Net(), backend="aot_eager"), evaluate=evaluate) == ONE


def test_what_is_left_out_is_not_changed_and_calls_no_hook():
    called = []

    def note(module, args, output):
        called.append(torch.is_grad_enabled())

    net, x = nn.Sequential(nn.Linear(3, 3)), torch.ones(2, 3)
    doubles = ActivationTransforms([Apply(Scale(2.0), modules="0", tensor="output")])
    plain = net(x).detach()
    with instrument(net, [doubles, CustomHooks([Hook(note, kind="forward", modules="0")])]) as watched:
        assert torch.equal(net(x), 2 * plain)
        net.eval()
        with torch.no_grad():
            assert torch.equal(net(x), plain)
        watched.step()
    assert called == [True]


def test_measuring_without_training_says_how():
    net = nn.Sequential(nn.Linear(3, 1)).eval()
    said = (
        r"^matched modules were not called in training in the first step: 0 \(Linear; watch\). They ran without gradients, and "
        "instrument leaves out such calls by default if the model is in evaluation mode; calls='all' measures them too$"
    )
    with pytest.warns(UserWarning, match=said), instrument(net, [StatsMonitor([RULE])]) as watched, torch.no_grad():
        net(torch.ones(2, 3))
        watched.step()
    with warnings.catch_warnings(), instrument(net, [StatsMonitor([RULE])], calls="all") as watched, torch.no_grad():
        net(torch.ones(2, 3))
        watched.step()
    assert counts(watched.view) == {"0": 2}


def test_a_wrong_value_is_refused():
    with pytest.raises(
        RuleError, match=r"^calls must be one of training, gradients, all, got 'trainng' \(did you mean 'training'\?\)$"
    ):
        instrument(nn.Linear(1, 1), [StatsMonitor()], calls="trainng")
