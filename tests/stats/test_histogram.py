"""Histograms of scaled elements."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks.stats.histogram import BUCKETS, histogram, shift


def test_shifting_counts_what_the_scaled_elements_would_give():
    torch.manual_seed(0)
    # Every power of two from the smallest normal float32 on, some several times, of both signs.
    rows = [torch.exp2(torch.randint(-126, 128, (600,)).double()) * torch.randn(600).sign() for _ in range(3)]
    counts = torch.stack([histogram(row) for row in rows])
    counts[0, BUCKETS // 2] += 5.0  # zeros
    kept = counts.clone()
    for octaves in range(-300, 301):
        wanted = torch.stack([histogram(row * 2.0**octaves) for row in rows])
        wanted[0, BUCKETS // 2] += 5.0
        assert torch.equal(shift(counts, 2.0**octaves), wanted), octaves
        assert torch.equal(shift(counts[1], torch.tensor([2.0**octaves], dtype=torch.float64)), wanted[1]), octaves
    assert torch.equal(counts, kept)


def test_a_large_tensor_is_counted_in_parts_so_that_it_needs_little_memory(monkeypatch):
    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made.extend(each for each in (result if isinstance(result, tuple) else [result]) if isinstance(each, torch.Tensor))
            return result

    tensor = torch.cat([torch.randn(4_000), torch.tensor([0.0, torch.inf, torch.nan])])
    whole = histogram(tensor)
    monkeypatch.setattr("lightning_hooks.stats.histogram._CHUNK", 1000)
    with Made():
        parts = histogram(tensor)
    assert torch.equal(parts, whole) and whole.sum() == 4_001
    own = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in made}
    own.pop(tensor.untyped_storage().data_ptr(), None)
    assert 0 < max(own.values()) <= 1000 * 8
