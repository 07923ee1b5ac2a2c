"""Along which dimension of a module's output the units lie."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from torch import nn

_SPATIAL: Final = re.compile(r"[123]d")
# Classes by name, so that those of other packages are recognised: RMSNorm of transformers, LayerNorm2d of torchvision and timm.
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
# Both accept tensors without a batch dimension, whose units are then along the first dimension.
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
    """The dimension of the units of a module's output, from its class alone; None for a class that has none of its own.

    Activations, dropout, containers and classes of other packages have none: see `axes_in_order`.

    Args:
        module: or its class.
        ndim: of the tensor.
    """
    kind = module if isinstance(module, type) else type(module)
    name = kind.__name__
    if ndim == 0:
        return None
    if issubclass(kind, _MAYBE_WITHOUT_BATCH):
        return _before_spatial(kind, ndim)
    # The LayerNorm of ConvNeXt serves both orders, and says which one.
    first = getattr(module, "data_format", None) == "channels_first"
    if first or issubclass(kind, _SECOND) or _SECOND_BY_NAME.search(name):
        return 1 if ndim > 1 else None
    if issubclass(kind, _LAST) or _LAST_BY_NAME.search(name):
        return ndim - 1
    return None


def _before_spatial(kind: type[nn.Module], ndim: int) -> int | None:
    """The dimension in front of the spatial ones, whose number is in the name of the class or of one of its bases."""
    for each in kind.__mro__:
        found = _SPATIAL.search(each.__name__)
        if found and each.__module__.startswith("torch."):
            spatial = int(found.group()[0])
            return ndim - 1 - spatial if ndim in (spatial + 1, spatial + 2) else None
    return 1 if ndim > 1 else None


def axis_of(module: type[nn.Module] | nn.Module, ndim: int) -> int | None:
    """The dimension of the units of a module's output, where nothing is known of the modules around it.

    The channels of convolutions, poolings, batch, instance and group normalisation: dimension 1, or 0 without a batch. The last
    dimension of Linear, Embedding, LayerNorm and RMSNorm. Of all other modules dimension 1 if the tensor has four or five, as
    images and volumes do, and the last dimension otherwise. None for a tensor without dimensions.

    Args:
        module: or its class.
        ndim: of the tensor.

    Example:
        >>> axis_of(nn.Conv2d, 4), axis_of(nn.Linear(2, 3), 3), axis_of(nn.ReLU, 2)
        (1, 2, 1)
    """
    found = known_axis(module, ndim)
    if found is not None or ndim == 0:
        return found
    return 1 if ndim in (4, 5) else ndim - 1


def axes_in_order(outputs: Iterable[tuple[type[nn.Module] | nn.Module, tuple[int, ...]]]) -> list[int | None]:
    """The dimensions of the units of the outputs of many modules.

    A module whose class tells nothing (an activation, dropout, a block) takes the dimension of the last module with an output
    of the same shape whose class does, since it mostly works element by element on that output or adds to it; if none ran
    before, that of the next one; if there is none either, that of `axis_of`. This is right for ResNets, Llama, Mixtral and
    GPT-2. It is wrong where two dimensions happen to be equal in size and a module without an axis of its own swaps them: then
    the user names the dimension.

    Args:
        outputs: the modules, or their classes, in the order in which they end, with the shapes of their outputs.

    Example:
        >>> axes_in_order([(nn.Conv2d, (2, 8, 4, 4)), (nn.ReLU, (2, 8, 4, 4)), (nn.Flatten, (2, 128)), (nn.Linear, (2, 10))])
        [1, 1, 1, 1]
    """
    several = [(module, tuple(shape), known_axis(module, len(shape))) for module, shape in outputs]
    before = _from_neighbours((shape, axis) for _, shape, axis in several)
    after = reversed(list(_from_neighbours((shape, axis) for _, shape, axis in reversed(several))))
    axes: list[int | None] = []
    for (module, shape, known), previous, following in zip(several, before, after, strict=True):
        found = next((axis for axis in (known, previous, following) if axis is not None), None)
        axes.append(axis_of(module, len(shape)) if found is None else found)
    return axes


def _from_neighbours(known: Iterable[tuple[tuple[int, ...], int | None]]) -> list[int | None]:
    """For each output the last known dimension of an equal shape up to there."""
    by_shape: dict[tuple[int, ...], int] = {}
    axes: list[int | None] = []
    for shape, axis in known:
        if axis is not None:
            by_shape[shape] = axis
        axes.append(by_shape.get(shape))
    return axes
