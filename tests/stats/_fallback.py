"""What a table is given for tensors that it does not write directly."""

from lightning_hooks.stats.kernels import FallbackWriter


class KeepsAll(FallbackWriter):
    """Keeps the rows and tensors that it is called with."""

    def __init__(self):
        self.direct = True
        self.came = []

    def __call__(self, row, tensor):
        self.came.append((row, tensor))
