"""What a transform of a rule keeps in a checkpoint."""

import pytest
import torch
from torch import nn

from lightning_hooks import AddNoise, Apply
from lightning_hooks.engine.change.resolve import resolve_applies


@pytest.mark.parametrize("drawn", [0, 2], ids=["not drawn before", "drawn before"])
def test_a_resumed_run_draws_the_numbers_of_the_run_that_never_stopped(drawn):
    model = nn.Linear(2, 2)

    def bound(seed):
        (one,) = resolve_applies(model, [Apply(AddNoise(0.1), params="weight")], seed)
        return one

    def draw(one):
        return one.run([torch.zeros(4)], ["weight"], [None], 0, owned=True)[0]

    first, resumed = bound(1), bound(2)
    for _ in range(drawn):
        draw(first)
    draw(resumed)
    resumed.load_state_dict(first.state_dict())
    assert torch.equal(draw(resumed), draw(first))
