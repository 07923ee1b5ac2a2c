import pytest
import torch

from lightning_hooks.checks.names import Names
from lightning_hooks.checks.probes.noise import Noise
from lightning_hooks.checks.recorder import Recorder


@pytest.mark.parametrize(
    ("change", "is_noise"),
    [
        (lambda x, scale: x + torch.randn_like(x), True),
        (lambda x, scale: x + 0.1 * torch.randn(x.shape) / 2, True),
        (lambda x, scale: x - torch.rand_like(x), True),
        (lambda x, scale: x + scale * torch.randn_like(x), False),
        (lambda x, scale: torch.randn_like(x) * 2 + 1, False),
        (lambda x, scale: x + 1, False),
    ],
)
def test_noise_is_what_is_added_with_a_size_that_nothing_learns(change, is_noise):
    noise, scale = Noise(), torch.ones(3, requires_grad=True)
    with Recorder(Names(torch.nn.Identity()), (), float("inf"), [noise]):
        change(torch.ones(3), scale)
    assert noise.was_added is is_noise
