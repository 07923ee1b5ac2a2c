"""Of generators of random numbers a fit that goes on says which begin again, and which of them alone were restored."""

import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_hooks.engine.lookouts.generators import begins_of, states_of, verdict
from lightning_hooks.engine.lookouts.loaders import begins_anew
from lightning_hooks.engine.lookouts.surroundings import Surroundings

MODEL = nn.Linear(1, 1)
OWN = torch.Generator()
LOADER = DataLoader([1, 2, 3], generator=OWN)
AROUND = Surroundings.of(MODEL, list, loaders=lambda: [LOADER])
PYTHON, NUMPY, TORCH = "Python's generator", "NumPy's generator", "PyTorch's generator"


def seed():
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    OWN.manual_seed(5)


def draw(count=3):
    random.getrandbits(32 * count)
    np.random.bytes(4 * count)
    torch.rand(count)
    torch.rand(count, generator=OWN)


def begun():
    """What is known of a fit that has just made its first steps, and the state that it saves then."""
    seed()
    begin = states_of(AROUND, {})
    draw()
    begins = begins_of(begin, states_of(AROUND, {}))
    draw(70_000)
    return begins, states_of(AROUND, begins, ahead=True)


def resumed(restore, saved, between=draw):
    """What is said of a fit that goes on; `restore` is called when it has begun."""
    begin = states_of(AROUND, {})
    restore()
    between()
    first = states_of(AROUND, {})
    return verdict(begins_of(begin, first), first, saved)


def kept():
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), OWN.get_state()


def put_back(states, only=(0, 1, 2, 3)):
    functions = (random.setstate, np.random.set_state, torch.set_rng_state, OWN.set_state)
    for at in only:
        functions[at](states[at])


def test_generators_of_a_script_that_seeds_them_again_begin_again():
    _, saved = begun()
    seed()
    assert resumed(lambda: None, saved) == (
        f"{PYTHON}, {NUMPY}, {TORCH} and generator 0 of loader 0 stand where the training once began, so that the same numbers "
        "are drawn again"
    )


@pytest.mark.parametrize("count", [1, 1000, 200_000])
def test_restored_generators_go_on_however_much_is_drawn_before_the_first_step(count):
    _, saved = begun()
    states = kept()
    seed()
    assert resumed(lambda: put_back(states), saved, lambda: draw(count)) == ""


def test_a_generator_that_alone_is_not_restored_is_named():
    _, saved = begun()
    states = kept()
    random.seed(1), np.random.seed(2), torch.manual_seed(3), OWN.manual_seed(4)
    said = resumed(lambda: put_back(states, (0, 2, 3)), saved)
    assert said == f"{PYTHON}, {TORCH} and generator 0 of loader 0 go on from the saved state, but {NUMPY} does not"


def test_a_process_that_restores_none_or_has_drawn_none_is_told_nothing():
    _, saved = begun()
    random.seed(1), np.random.seed(2), torch.manual_seed(3), OWN.manual_seed(4)
    assert resumed(lambda: None, saved) == ""
    seed()
    begins = begins_of(states_of(AROUND, {}), states_of(AROUND, {}))
    unused = states_of(AROUND, begins, ahead=True)
    assert resumed(seed, unused, lambda: None) == ""
    assert resumed(seed, saved[:0]) == ""


def test_asking_for_states_draws_no_number():
    seed()
    numbers = (random.random(), np.random.rand(), torch.rand(1), torch.rand(1, generator=OWN))
    seed()
    states_of(AROUND, {}, ahead=True)
    assert numbers == (random.random(), np.random.rand(), torch.rand(1), torch.rand(1, generator=OWN))


def test_another_generator_of_numpy_is_left_out():
    bits = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        assert NUMPY not in [each.name for each in states_of(AROUND, {})]
    finally:
        np.random.set_bit_generator(bits)


class Kept(DataLoader):
    """A loader with a state of its own."""

    def load_state_dict(self, state: Mapping) -> None: ...


def test_a_loader_of_torch_begins_its_order_anew_and_one_with_a_state_may_go_on():
    said = "1 batch of an epoch was trained, but the loader begins its order anew"
    assert begins_anew([DataLoader([1, 2])], 1) == begins_anew([DataLoader([1, 2], shuffle=True)], 1) == said
    assert begins_anew([DataLoader([1, 2])], 0) == begins_anew([Kept([1, 2])], 1) == begins_anew([], 1) == ""
    assert begins_anew([DataLoader([1, 2], sampler=[1, 0])], 1) == begins_anew([[1, 2]], 1) == ""
