"""`instrument` in a plain PyTorch loop, without Lightning.

Run it with `python examples/plain_pytorch.py`.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch, instrument
from lightning_hooks.transforms import ClipByGlobalNorm


def main(epochs: int = 5) -> dict[str, float]:
    """Train a small classifier and return the statistics of the last step."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    monitor = StatsMonitor(
        [
            Watch(modules="*", tensors=["output"], stats=["mean", "std", "zero_fraction"]),
            Watch(params="*.weight", tensors=["grad", "update"], stats=["norm"]),
        ]
    )
    clip = GradientTransforms([Apply(ClipByGlobalNorm(max_norm=1.0), params="*")])

    numbers: dict[str, float] = {}
    with instrument(model, [monitor, clip], optimizer=optimizer):
        for epoch in range(epochs):
            for batch, labels in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(batch), labels)
                loss.backward()
                optimizer.step()  # ends the step, of which `latest` has the statistics
            numbers = monitor.latest
            print(f"epoch {epoch}: loss {loss.item():.3f}")
            for tag in ("output_zero_fraction/1", "output_std/2", "grad_norm/0.weight", "update_norm/0.weight"):
                print(f"    {tag:<24} {numbers[tag]:.4g}")
    return numbers


if __name__ == "__main__":
    main()
