"""Histograms of scaled elements."""

import torch

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
        assert torch.equal(shift(counts, octaves), wanted), octaves
        assert torch.equal(shift(counts[1], octaves), wanted[1]), octaves
    assert torch.equal(counts, kept)
