"""Before the first update, lookouts note swapped betas, and an eps that is 0 in the format of the weights."""

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from lightning_hooks.engine.lookouts.settings import EpsilonLookout
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.participant import PhaseMemo
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

RULES = ["BetasSwapped", "EpsilonVanishes"]


def trained(make, dtype=torch.float32, steps=6):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(dtype)
    optimizer = make(model.parameters())

    def loop(watched, step):
        optimizer.zero_grad()
        model(torch.randn(8, 4, dtype=dtype)).square().mean().backward()
        optimizer.step()

    found = in_loop(model, optimizer, loop, RULES, steps)
    assert_no_hooks(model)
    return found


def test_swapped_betas_are_told_before_the_first_update():
    finding = trained(lambda parameters: torch.optim.AdamW(parameters, betas=(0.999, 0.9)))["BetasSwapped"]
    assert (finding.severity, finding.first_step, finding.rows) == ("warning", 0, ("",))
    assert finding.message == (
        "The betas of the optimizer are (0.999, 0.9): the first one, of the gradients, is larger than the second one, of their "
        "squares; (0.9, 0.999) is usual."
    )


@pytest.mark.parametrize("betas", [(0.95, 0.9), (0.96, 0.94), (0.5, 0.4)])
def test_betas_that_are_hardly_the_other_way_round_are_a_note(betas):
    assert trained(lambda parameters: torch.optim.Adam(parameters, betas=betas))["BetasSwapped"].severity == "info"


class Own(torch.optim.Adam):
    """An optimizer of the user, whose betas may mean something else."""


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam,
        lambda parameters: torch.optim.Adam(parameters, betas=(0.5, 0.9)),
        lambda parameters: torch.optim.Adam(parameters, betas=(0.0, 0.99)),
        lambda parameters: torch.optim.Adam(parameters, betas=(0.9, 0.9)),
        lambda parameters: Own(parameters, betas=(0.99, 0.9)),
        torch.optim.SGD,
        torch.optim.Rprop,
    ],
)
def test_usual_betas_are_no_finding(make):
    assert trained(make) == {}


def test_each_optimizer_with_swapped_betas_is_named(tmp_path):
    module = Net(lambda parameters: torch.optim.NAdam(parameters, betas=(0.999, 0.9)))
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(6)]
    assert in_trainer(tmp_path, module, batches, RULES)["BetasSwapped"].first_step == 0


EPS = (
    "weight: the eps of the optimizer, 1e-08, is 0 in float16, the format of its weights and its state, so that it divides by "
    "0 where squared gradients are 0"
)


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.RAdam]
)
def test_an_eps_that_is_zero_in_float16_is_told_before_the_first_update(make):
    finding = trained(lambda parameters: make(parameters, lr=1e-3), torch.float16)["EpsilonVanishes"]
    assert (finding.severity, finding.first_step, finding.rows) == ("warning", 0, ("weight",))
    assert finding.message.startswith(EPS)


def test_the_share_of_squared_gradients_that_are_zero_is_added_after_the_first_update():
    model = nn.Linear(4, 1, bias=False).half()
    optimizer = torch.optim.Adam(model.parameters())
    lookout = EpsilonLookout(Surroundings.of(model, lambda: [optimizer]))
    assert lookout.step_key(0, "train") is not None and lookout.step_key(0, "validate") is None
    model.weight.grad = torch.tensor([[1.0, 1e-3, 1e-3, 1e-3]]).half()
    optimizer.step()
    lookout.after_update(optimizer, PhaseMemo())
    (sighting,) = lookout.sightings()
    assert sighting.text == EPS.removeprefix("weight: ") + ", as 75 % of them are after the first update"
    lookout.after_update(optimizer, PhaseMemo())
    assert lookout.step_key(2, "train") is None
    assert not torch.isfinite(model.weight).all()


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (torch.optim.Adam, torch.float32),
        (torch.optim.Adam, torch.bfloat16),
        (lambda parameters: torch.optim.Adam(parameters, eps=1e-4), torch.float16),
        (lambda parameters: torch.optim.Adam(parameters, eps=1e-7), torch.float16),
        (lambda parameters: torch.optim.SGD(parameters, 0.1), torch.float16),
        (torch.optim.Adadelta, torch.float16),
    ],
    ids=["float32", "bfloat16", "a larger eps", "a larger eps still", "no eps", "eps 1e-6"],
)
def test_an_eps_that_the_format_holds_is_no_finding(make, dtype):
    assert trained(make, dtype) == {}


def test_frozen_weights_in_float16_beside_trained_ones_in_float32_are_no_finding():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4).half().requires_grad_(False), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def loop(watched, step):
        model[1](model[0](torch.randn(8, 4).half()).float()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert in_loop(model, optimizer, loop, RULES, 6) == {}
