"""Draws feature maps as one image for the Images tab: a row for each sample, a column for each channel."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import Summary

from lightning_hooks.errors import RuleError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

BORDER: Final = 255  # white: most of a feature map is often at its minimum, which is drawn black
NONFINITE: Final = (255, 0, 0)


def feature_map_grid(maps: Tensor, *, max_samples: int = 8, max_channels: int = 16, padding: int = 1) -> NDArray[np.uint8]:
    """The feature maps of a batch as one grid of grey tiles: rows are samples, columns are channels.

    Every channel is scaled by itself: the minimum over the shown samples is black, the maximum is white. Tiles of one column
    can therefore be compared, tiles of different columns cannot. A constant channel is mid-grey. NaN and infinite values are
    red and are ignored for the range. The lines between the tiles are white.

    Args:
        maps: [N, C, H, W], or [N, C, L] as maps of height 1; any real dtype, any device; only the shown part is copied.
        max_samples: the most rows; the first samples of the batch are shown; 8 by default.
        max_channels: the most columns; the first channels are shown; 16 by default.
        padding: width of the lines between tiles and around them, in pixels; 1 by default.

    Returns:
        uint8 [rows · (H + padding) + padding, columns · (W + padding) + padding, 3].

    Raises:
        RuleError: the tensor has another number of dimensions, no elements, or complex numbers.

    Example:
        >>> import torch
        >>> feature_map_grid(torch.tensor([[[[0.0, 1.0, 2.0]]]]), padding=0)[..., 0]
        array([[  0, 128, 255]], dtype=uint8)
    """
    if maps.dim() not in (3, 4) or maps.numel() == 0 or maps.is_complex():
        found = f"{list(maps.shape)} of {maps.dtype}"
        raise RuleError(f"feature_map_grid: maps must be real numbers [N, C, H, W] or [N, C, L] with elements, got {found}")
    shown = maps.detach()[:max_samples, :max_channels].cpu().double().numpy()
    tiles = _grey(shown if shown.ndim == 4 else shown[:, :, None, :])
    rows, columns, height, width, _ = tiles.shape
    shape = (rows * (height + padding) + padding, columns * (width + padding) + padding, 3)
    grid = np.full(shape, BORDER, dtype=np.uint8)
    for row in range(rows):
        for column in range(columns):
            top, left = row * (height + padding) + padding, column * (width + padding) + padding
            grid[top : top + height, left : left + width] = tiles[row, column]
    return grid


def _grey(maps: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Maps [N, C, H, W] as colours [N, C, H, W, 3], each channel scaled by itself."""
    finite = np.isfinite(maps)
    axes = (0, 2, 3)
    low = np.min(maps, axis=axes, keepdims=True, where=finite, initial=np.inf)
    high = np.max(maps, axis=axes, keepdims=True, where=finite, initial=-np.inf)
    is_flat = ~(low < high)  # whether a map is constant or has no finite value
    low, high = np.where(is_flat, 0.0, low), np.where(is_flat, 1.0, high)
    # Halve the numbers before subtracting them, because the difference of two large float64 numbers can overflow.
    share = (np.where(finite, maps, low) / 2 - low / 2) / (high / 2 - low / 2)
    grey = np.rint(255 * np.where(is_flat, 0.5, share)).astype(np.uint8)
    return np.where(finite[..., None], grey[..., None], np.array(NONFINITE, dtype=np.uint8))


def image_summary(tag: str, image: NDArray[np.uint8]) -> Any:
    """An image as a summary for the Images tab.

    Args:
        tag: the tag of the image.
        image: uint8 [H, W, 3].

    Returns:
        A `Summary` with one value.

    Raises:
        UnsupportedError: Pillow is not installed.

    Example:
        >>> value = image_summary("maps/conv1", np.zeros((4, 6, 3), dtype=np.uint8)).value[0]
        >>> value.tag, value.image.height, value.image.width, value.image.colorspace
        ('maps/conv1', 4, 6, 3)
    """
    try:
        # Pillow may be missing: only newer versions of TensorBoard depend on it.
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(
            "an image in TensorBoard needs Pillow: pip install pillow, or 'lightning-hooks[capture]'"
        ) from error

    height, width, colours = image.shape
    encoded = io.BytesIO()
    Image.fromarray(image).save(encoded, format="PNG")
    summary = Summary()
    # Write the same message as torch's `add_image`: TensorBoard and its EventAccumulator read it without a plugin.
    picture = Summary.Image(height=height, width=width, colorspace=colours, encoded_image_string=encoded.getvalue())
    summary.value.add(tag=tag, image=picture)
    return summary
