"""Looking for hooks that are left changes nothing."""

import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from lightning_hooks.engine import inspect


def test_looking_for_hooks_draws_no_random_numbers():
    inspect._dictionaries.cache_clear()  # as in a new process
    model, state = nn.Linear(1, 1), torch.get_rng_state()
    assert_no_hooks(model)
    assert torch.equal(torch.get_rng_state(), state)
