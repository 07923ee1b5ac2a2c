"""A fallback for the tensors that a table does not write directly."""

from lightning_hooks.stats.kernels import FallbackWriter


class KeepsAll(FallbackWriter):
    """Keeps the rows and the tensors of all calls."""

    def __init__(self):
        self.direct = True
        self.came = []

    def __call__(self, row, tensor):
        self.came.append((row, tensor))
