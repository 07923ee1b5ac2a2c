"""An accumulator of your own: the largest singular value of what a layer returned in a step.

python examples/singular_value.py
"""

import numpy as np
import torch
from torch import nn

from lightning_hooks import Accumulator, Column, StatsMonitor, Watch, instrument


class LargestSingularValue(Accumulator):
    """The largest singular value of the matrix [samples, features] of all outputs of a step.

    The Gram matrix XᵀX is kept. It adds up over calls, micro-batches and ranks, so the result is that of all samples together.

    Args:
        features: the size of the last dimension.
        iterations: of the power method.
    """

    def __init__(self, features, iterations=50):
        self.name, self.statistics = f"gram_{features}", ("largest_singular_value",)
        self.columns = [Column(f"{i}_{j}", merge="sum", power=2) for i in range(features) for j in range(features)]
        self.features, self.iterations = features, iterations

    def measure(self, measurement, row):
        """The Gram matrix of one tensor."""
        samples = measurement.tensor.reshape(-1, self.features).double()
        return (samples.T @ samples).flatten()

    def compute(self, stat, states):
        """The square root of the largest eigenvalue of each Gram matrix, by the power method."""
        gram = states[self.name].reshape(-1, self.features, self.features)
        vector = np.ones((len(gram), self.features, 1))
        for _ in range(self.iterations):
            vector = gram @ vector
            size = np.linalg.norm(vector, axis=1, keepdims=True)
            vector /= np.where(size > 0, size, 1.0)
        return np.sqrt(np.linalg.norm(gram @ vector, axis=1)[:, 0])


def main() -> None:
    """Watch one layer of a small network, and compare with torch."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(8, 5), nn.Tanh()), torch.randn(32, 8)
    rule = Watch(modules="1", tensors="output", stats=["norm", LargestSingularValue(features=5)])
    with instrument(model, [StatsMonitor([rule])]) as watched:
        output = model(batch)
        watched.step()
    print(f"largest singular value {watched.latest['output_largest_singular_value/1']:.6f}")
    print(f"torch says             {torch.linalg.matrix_norm(output.double(), 2).item():.6f}")


if __name__ == "__main__":
    main()
