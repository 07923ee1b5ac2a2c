"""The states of random number generators, read again and again."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks.engine.recording.saving import load_generators, save_generators
from lightning_hooks.snapshot.generators import Generators

# What a training does with NumPy's generator between two batches. A normal number leaves a second one for the next call.
DRAWS = {
    "nothing": lambda: None,
    "uniform": np.random.rand,
    "normal": np.random.randn,
    "two normals": lambda: np.random.randn(2),
    "a permutation": lambda: np.random.permutation(700),
    "a seed": lambda: type(np.random.get_bit_generator()) is np.random.MT19937 and np.random.seed(7),
    "the same state": lambda: np.random.set_state(_numpy_state()),
    "another kind": lambda: np.random.set_bit_generator(np.random.PCG64(1)),
    "another twister": lambda: np.random.set_bit_generator(np.random.MT19937(1)),
}


@pytest.fixture(autouse=True)
def _kept_generator():
    kept, state = np.random.get_bit_generator(), Generators()
    yield
    np.random.set_bit_generator(kept)
    state.restore()


def _numpy_state():
    is_default = type(np.random.get_bit_generator()) is np.random.MT19937
    return np.random.get_state(legacy=is_default)


@given(st.lists(st.sampled_from(sorted(DRAWS)), max_size=12))
def test_states_read_after_earlier_ones_are_the_same_as_read_anew(draws):
    kept = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.MT19937(0))
    try:
        states = Generators()
        for draw in draws:
            DRAWS[draw]()
            states = Generators(states)
            np.testing.assert_equal(states.numpy, _numpy_state())
    finally:
        np.random.set_bit_generator(kept)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64])
def test_a_generator_of_another_kind_is_saved_and_restored(kind, tmp_path):
    np.random.set_bit_generator(kind(3))
    save_generators(tmp_path)
    drawn = np.random.randn(3)
    np.random.set_bit_generator(np.random.MT19937(0))
    load_generators(tmp_path).restore()
    assert np.array_equal(np.random.randn(3), drawn) and type(np.random.get_bit_generator()) is kind


def test_a_draw_is_repeated_after_the_states_are_restored():
    first = Generators()
    states = Generators(first)
    drawn = np.random.randn(3), torch.randn(3)
    states.restore()
    assert np.array_equal(np.random.randn(3), drawn[0]) and torch.equal(torch.randn(3), drawn[1])
