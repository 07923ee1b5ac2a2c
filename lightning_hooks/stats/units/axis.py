"""The dimension of a module's output along which its units lie."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from torch import nn

_SPATIAL: Final = re.compile(r"[123]d")
# Patterns for the names of classes, which also find classes of other packages: RMSNorm of transformers, LayerNorm2d of
# torchvision and timm.
_LAST_BY_NAME: Final = re.compile(r"(layer|rms)norm", re.IGNORECASE)
_SECOND_BY_NAME: Final = re.compile(r"(layer|rms)norm\w*[23]d|(frozen|sync)?batchnorm", re.IGNORECASE)
_LAST: Final = (
    nn.Linear,
    nn.Bilinear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
    nn.RNNBase,
)
# These classes accept tensors without a batch dimension. The units of such a tensor lie along its first dimension.
_MAYBE_WITHOUT_BATCH: Final = (
    nn.modules.conv._ConvNd,
    nn.modules.instancenorm._InstanceNorm,
    *(getattr(nn, f"{kind}Pool{n}d") for kind in ("Max", "Avg", "AdaptiveMax", "AdaptiveAvg") for n in (1, 2, 3)),
    *(getattr(nn, f"LPPool{n}d") for n in (1, 2, 3)),
    *(getattr(nn, f"MaxUnpool{n}d") for n in (1, 2, 3)),
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)
_SECOND: Final = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LocalResponseNorm, nn.Upsample)


def known_axis(module: type[nn.Module] | nn.Module, ndim: int) -> int | None:
    """The dimension of the units of a module's output, if the class of the module determines it.

    The classes of activation functions, dropout and containers and most classes of other packages determine none; see
    `axes_in_order`.

    Args:
        module: the module or its class.
        ndim: the number of dimensions of the output.

    Returns:
        The dimension, not negative; None if the class determines none.

    Example:
        >>> known_axis(nn.Conv2d, 4), known_axis(nn.Linear, 3), known_axis(nn.ReLU, 2)
        (1, 2, None)
    """
    kind = module if isinstance(module, type) else type(module)
    name = kind.__name__
    if ndim == 0:
        return None
    if issubclass(kind, _MAYBE_WITHOUT_BATCH):
        return _before_spatial(kind, ndim)
    # The LayerNorm of ConvNeXt serves both orders of dimensions, and names the order in `data_format`.
    first = getattr(module, "data_format", None) == "channels_first"
    if first or issubclass(kind, _SECOND) or _SECOND_BY_NAME.search(name):
        return 1 if ndim > 1 else None
    if issubclass(kind, _LAST) or _LAST_BY_NAME.search(name):
        return ndim - 1
    return None


def _before_spatial(kind: type[nn.Module], ndim: int) -> int | None:
    """The dimension before the spatial dimensions. The name of the class or of a base, such as Conv2d, tells their number."""
    for each in kind.__mro__:
        match = _SPATIAL.search(each.__name__)
        if match and each.__module__.startswith("torch."):
            spatial = int(match.group()[0])
            return ndim - 1 - spatial if ndim in (spatial + 1, spatial + 2) else None
    return 1 if ndim > 1 else None


def axis_of(module: type[nn.Module] | nn.Module, ndim: int) -> int | None:
    """The dimension of the units of a module's output, without knowledge of the modules around it.

    Convolutions, poolings, and batch, instance and group normalisation have channels along dimension 1, or 0 without a batch.
    Linear, Embedding, LayerNorm and RMSNorm have features along the last dimension. For all other modules, the dimension is 1
    if the output has four or five dimensions, like images and volumes, and the last one otherwise.

    Args:
        module: the module or its class.
        ndim: the number of dimensions of the output.

    Returns:
        The dimension, not negative; None if the output has no dimensions.

    Example:
        >>> axis_of(nn.Conv2d, 4), axis_of(nn.Linear(2, 3), 3), axis_of(nn.ReLU, 2)
        (1, 2, 1)
    """
    axis = known_axis(module, ndim)
    if axis is not None or ndim == 0:
        return axis
    return 1 if ndim in (4, 5) else ndim - 1


def axes_in_order(outputs: Iterable[tuple[type[nn.Module] | nn.Module, tuple[int, ...]]]) -> list[int | None]:
    """The dimensions of the units of the outputs of many modules.

    If the class of a module determines no dimension (an activation function, dropout, a block), the module takes the dimension
    of the last module before it whose class does and whose output has the same shape: most such modules work element by element
    on that output, or add to it. If there is none, the module takes the dimension of the next such module after it, and
    otherwise that of `axis_of`. The result is right for ResNets, Llama, Mixtral and GPT-2. It is wrong if two dimensions have
    equal sizes and a module of which the class determines no dimension swaps them. Then the user has to name the dimension.

    Args:
        outputs: the modules or their classes, in the order in which their calls end, each with the shape of its output.

    Returns:
        The dimension of each output; None for an output without dimensions.

    Example:
        >>> axes_in_order([(nn.Conv2d, (2, 8, 4, 4)), (nn.ReLU, (2, 8, 4, 4)), (nn.Flatten, (2, 128)), (nn.Linear, (2, 10))])
        [1, 1, 1, 1]
    """
    modules = [(module, tuple(shape), known_axis(module, len(shape))) for module, shape in outputs]
    before = _from_neighbours((shape, axis) for _, shape, axis in modules)
    after = reversed(list(_from_neighbours((shape, axis) for _, shape, axis in reversed(modules))))
    axes: list[int | None] = []
    for (module, shape, of_class), previous, following in zip(modules, before, after, strict=True):
        axis = next((each for each in (of_class, previous, following) if each is not None), None)
        axes.append(axis_of(module, len(shape)) if axis is None else axis)
    return axes


def _from_neighbours(outputs: Iterable[tuple[tuple[int, ...], int | None]]) -> list[int | None]:
    """For each output the last dimension that is known of an output of the same shape, up to and including this output."""
    by_shape: dict[tuple[int, ...], int] = {}
    axes: list[int | None] = []
    for shape, axis in outputs:
        if axis is not None:
            by_shape[shape] = axis
        axes.append(by_shape.get(shape))
    return axes
