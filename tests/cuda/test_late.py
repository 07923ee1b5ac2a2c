"""Gradients and outputs that are measured late have the bits of those that are measured in their hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import StatsMonitor, Watch, instrument
from tests.stats.kernels import stand_in

pytestmark = pytest.mark.cuda
RULE = Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=["mean", "std", "max", "nonfinite"])


@pytest.fixture(autouse=True)
def launches_from_cpp() -> None:
    missing = stand_in.missing()
    if missing is not None and "compiler" not in missing:
        pytest.skip(missing)


class Overwrites(torch.autograd.Function):
    """Writes the gradient of its input into the memory of that of its output, as some kernels do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        gradient.data.mul_(-3)
        return gradient


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(size), nn.Linear(size, 4 * size).bfloat16(), nn.ReLU(inplace=True)
        self.down, self.last = nn.Linear(4 * size, size).bfloat16(), Last()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.last(self.down(self.act(self.up(self.norm(x).bfloat16()))).float())
        return out


class Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Overwrites.apply(x)  # type: ignore[no-untyped-call]
        return out


def train(device: str, around: Callable[[], AbstractContextManager[None]], steps: int = 8) -> tuple[list[Any], list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(64) for _ in range(3)), nn.Linear(64, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [torch.randn(33, 64).to(device) for _ in range(2 * steps)]
    views = []
    with instrument(model, [StatsMonitor([RULE])], optimizer=optimizer) as watched:
        for step in range(steps):
            with around():
                optimizer.zero_grad()
                for batch in batches[2 * step : 2 * step + 2]:
                    model(batch).square().sum().backward()
                optimizer.step()
            views.append(dict(watched.latest))
    return views, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("outputs", [False, True])
def test_late_measurements_have_the_bits_of_those_in_hooks(
    device: str, outputs: bool, monkeypatch: pytest.MonkeyPatch, without_waiting: Callable[[], AbstractContextManager[None]]
) -> None:
    from lightning_hooks.stats.kernels import driver
    from lightning_hooks.stats.kernels.queued_rows import QueuedRows

    held: list[int] = []
    flush = QueuedRows.flush

    def noting(rows: QueuedRows) -> None:
        held.append(rows.queue.late())
        flush(rows)

    monkeypatch.setattr(QueuedRows, "flush", noting)
    found = []
    for late in (False, True):
        monkeypatch.setattr(driver, "gradients_are_late", late)
        monkeypatch.setattr(driver, "outputs_are_late", late and outputs)
        held.clear()
        found.append(train(device, without_waiting))
        assert any(held[-5:]) == late, held
    assert found[0][0] == found[1][0] and all(map(torch.equal, found[0][1], found[1][1]))


def test_a_backward_on_another_stream_is_merged_after_what_waits(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_hooks.stats.kernels import driver

    if device == "cpu":
        pytest.skip("there are no streams")
    found = []
    for late in (False, True):
        monkeypatch.setattr(driver, "gradients_are_late", late)
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).cuda()
        x, views, stream = torch.randn(4096, 512, device="cuda"), [], torch.cuda.Stream()
        with instrument(model, [StatsMonitor([RULE])]) as watched:
            for _ in range(6):
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(20_000_000)
                    model(x).square().sum().backward()
                torch.cuda.current_stream().wait_stream(stream)
                watched.step()
                model.zero_grad()
                views.append(dict(watched.latest))
        found.append(views)
    assert found[0] == found[1]
