"""What kind of tensor one is."""

import pytest
import torch

from lightning_hooks.stats.tensor_kinds import inside_transform


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_transform_is_seen_on_tensors_from_outside_wherever_torch_makes_new_ones(device):
    outside, seen = torch.ones(2), []

    def look(x):
        seen.append(inside_transform(outside))
        return x.sum()

    with torch.device(device):
        torch.func.grad(look)(outside)
        assert seen == [True] and not inside_transform(outside)
