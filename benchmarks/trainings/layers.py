"""Finds the layers of a model by their classes, for tricks and faults that change one."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

WEIGHTED: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.RNN, nn.LSTM, nn.GRU)
DENSE: Final = (nn.Linear, nn.Conv1d, nn.Conv2d)


def layers_of(module: nn.Module, kinds: tuple[type[nn.Module], ...] = WEIGHTED) -> list[tuple[str, nn.Module]]:
    """The layers of these classes, with their names, in the order of their definition.

    Example:
        >>> layers_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
        [('0', Linear(in_features=2, out_features=2, bias=True)), ('2', Linear(in_features=2, out_features=1, bias=True))]
    """
    return [(name, each) for name, each in module.named_modules() if isinstance(each, kinds)]


def hidden_layers(module: nn.Module, kinds: tuple[type[nn.Module], ...] = WEIGHTED) -> list[tuple[str, nn.Module]]:
    """All such layers but the last one of the model, which gives its outputs."""
    last = layers_of(module)[-1][1]
    return [(name, each) for name, each in layers_of(module, kinds) if each is not last]


def weights_of(layer: nn.Module) -> list[nn.Parameter]:
    """The weights of a layer, without its biases."""
    return [parameter for parameter in layer.parameters(recurse=False) if parameter.dim() > 1]


def first_float(batch: object) -> Tensor | None:
    """The first input of a batch, if its elements are numbers and not categories."""
    first = batch[0] if isinstance(batch, (list, tuple)) else batch
    return first if isinstance(first, Tensor) and first.is_floating_point() else None
