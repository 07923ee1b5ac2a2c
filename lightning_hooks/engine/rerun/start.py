"""The state in which a training was found, from which steps run as often as wanted."""

from __future__ import annotations

from torch import Tensor

from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.snapshot.snapshot import Snapshot


class StartingPoint:
    """A snapshot of a training and of the generators of random numbers.

    Args:
        training: its model, its optimizers and what they hold are kept, bit for bit.

    Attributes:
        unrestorable: the names of objects that a step may use, and that could be neither restored nor lent.
    """

    def __init__(self, training: Training) -> None:
        self._generators = Generators()
        self._snapshot = Snapshot([training.model, *training.optimizers, *training.holders])
        self.unrestorable = self._snapshot.unrestorable

    def rewind(self) -> None:
        """Restore everything for another step. Copies stand in the places of iterators and the like until `end`."""
        self.end()
        self._snapshot.lend()

    def clear_gradients(self) -> None:
        """Take the gradients off all tensors; `rewind` and `end` put them back."""
        self._snapshot.clear_gradients()

    def end(self) -> None:
        """Restore everything, and put each object back into its place."""
        try:
            self._snapshot.restore()
        finally:
            self._generators.restore()

    def numbers_of(self, tensor: Tensor) -> Tensor | None:
        """The numbers that a tensor had; None if the tensor was not part of the training."""
        return self._snapshot.numbers_of(tensor)
