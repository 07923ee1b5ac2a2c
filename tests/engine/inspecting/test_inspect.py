"""`assert_no_hooks` changes nothing."""

import pytest
import torch
from torch import nn

from lightning_hooks import CustomHooks, Hook, HooksLeftError, assert_no_hooks, instrument
from lightning_hooks.engine.inspecting import inspect


def test_looking_for_hooks_draws_no_random_numbers():
    inspect._dictionaries.cache_clear()  # A new process has an empty cache too.
    model, state = nn.Linear(1, 1), torch.get_rng_state()
    assert_no_hooks(model)
    assert torch.equal(torch.get_rng_state(), state)


class Answers(nn.Module):
    def __getattr__(self, name):
        return lambda *args: None

    def forward(self, x):
        return x


def test_a_module_that_has_every_attribute_has_no_hook():
    assert_no_hooks(nn.Sequential(Answers()))
    with instrument(model := nn.Sequential(Answers()), [CustomHooks([Hook(print, kind="forward", modules="0")])]) as watched:
        model(torch.ones(1))
        watched.step()
        with pytest.raises(HooksLeftError, match="module 0"):
            assert_no_hooks(model)
