from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.tensorboard.images import feature_map_grid, image_summary

MAPS = torch.tensor(
    [[[[0.0, 1.0], [2.0, 3.0]], [[5.0, 5.0], [5.0, 5.0]]], [[[4.0, 5.0], [6.0, 10.0]], [[5.0, 5.0], [5.0, 5.0]]]]
)


def test_rows_are_samples_columns_are_channels_each_stretched_by_itself() -> None:
    grid = feature_map_grid(MAPS)
    assert grid.dtype == np.uint8
    assert (grid == grid[..., :1]).all()
    white = 255
    assert grid[..., 0].tolist() == [
        [white] * 7,
        [white, 0, 26, white, 128, 128, white],
        [white, 51, 76, white, 128, 128, white],
        [white] * 7,
        [white, 102, 128, white, 128, 128, white],
        [white, 153, 255, white, 128, 128, white],
        [white] * 7,
    ]


def test_only_the_first_samples_and_channels_are_shown_and_count_for_the_range() -> None:
    grid = feature_map_grid(MAPS, max_samples=1, max_channels=1, padding=0)
    assert grid[..., 0].tolist() == [[0, 85], [170, 255]]


def test_nonfinite_values_are_red_and_leave_the_range_alone() -> None:
    nan, inf = float("nan"), float("inf")
    grid = feature_map_grid(torch.tensor([[[0.0, nan, inf, -inf, 2.0]], [[nan] * 5]]), padding=0)
    red = [255, 0, 0]
    assert grid.tolist() == [[[0, 0, 0], red, red, red, [255, 255, 255]], [red] * 5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8])
def test_any_real_dtype(dtype: torch.dtype) -> None:
    np.testing.assert_array_equal(feature_map_grid(MAPS.to(dtype)), feature_map_grid(MAPS))


def test_numbers_at_the_ends_of_float64() -> None:
    maps = torch.tensor([[[-1.7e308, 0.0, 1.7e308]]], dtype=torch.float64)
    assert feature_map_grid(maps, padding=0)[0, :, 0].tolist() == [0, 128, 255]


def test_a_map_that_requires_grad_is_only_looked_at() -> None:
    maps = MAPS.clone().requires_grad_()
    before = maps.detach().clone()
    feature_map_grid(maps * 1)
    assert torch.equal(maps, before)


def test_what_is_no_feature_map() -> None:
    for maps in (torch.ones(3, 3), torch.ones(0, 1, 2, 2), torch.ones(1, 1, 2, 2, dtype=torch.complex64)):
        message = f"maps must be real numbers [N, C, H, W] or [N, C, L] with elements, got {list(maps.shape)} of {maps.dtype}"
        with pytest.raises(RuleError, match=re.escape(message)):
            feature_map_grid(maps)


def test_tensorboard_reads_the_image_back(tmp_path: Path) -> None:
    grid = feature_map_grid(MAPS)
    with SummaryWriter(str(tmp_path)) as writer:
        writer._get_file_writer().add_summary(image_summary("maps/conv1", grid), 7)
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    events.Reload()
    assert events.Tags()["images"] == ["maps/conv1"]
    (event,) = events.Images("maps/conv1")
    assert (event.step, event.height, event.width) == (7, 7, 7)
    pixels = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    np.testing.assert_array_equal(pixels, grid)


def test_without_pillow_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match="needs Pillow: pip install pillow"):
        image_summary("a", np.zeros((2, 2, 3), dtype=np.uint8))
