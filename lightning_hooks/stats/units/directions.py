"""The units of a bidirectional recurrent layer: in its output both directions are one dimension, in a state they are two."""

from __future__ import annotations

from torch import Tensor, nn


def is_bidirectional(module: nn.Module) -> bool:
    """Whether a module is a recurrent layer of torch that reads sequences in both directions.

    Example:
        >>> is_bidirectional(nn.GRU(2, 3, bidirectional=True)), is_bidirectional(nn.GRU(2, 3)), is_bidirectional(nn.ReLU())
        (True, False, False)
    """
    return isinstance(module, nn.RNNBase) and module.bidirectional


def directions_joined(state: Tensor, units: int) -> Tensor | None:
    """A state [layers * 2, …, units / 2] with the units of both directions in the order of the output: [layers, …, units].

    Args:
        state: a tensor of a bidirectional layer.
        units: the number of units of the output of the layer.

    Returns:
        None if the tensor has another shape, as the output itself.

    Example:
        >>> import torch
        >>> directions_joined(torch.arange(8.0).view(2, 2, 2), 4)
        tensor([[[0., 1., 4., 5.],
                 [2., 3., 6., 7.]]])
    """
    if state.ndim < 2 or state.shape[0] % 2 or 2 * state.shape[-1] != units:
        return None
    joined: Tensor = state.unflatten(0, (-1, 2)).movedim(1, -2).flatten(-2)
    return joined
