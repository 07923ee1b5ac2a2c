"""Rows of inner gradients: of an energy that a training step differentiates for forces, of a gradient penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from lightning_hooks import ActivationCapture, Apply, RuleError, StatsMonitor, Watch, instrument, load_capture
from lightning_hooks.transforms import Scale
from tests.callbacks.models import data, trainer_of
from tests.conformance._tools import same_weights
from tests.conformance.test_inner_gradients import WAYS, Fit, Potential, X, Y, by_hand, copied, own_norm


def inner_by_hand(net: Potential, x: Tensor) -> dict[str, float]:
    """The norms of the inner gradients: those of the energy."""
    energy, hidden = net.energy(x.detach().requires_grad_())
    at_energy, at_hidden = torch.autograd.grad(energy.sum(), [energy, hidden])
    return {
        "inner_output_grad_norm/last": at_energy.norm().item(),
        "inner_output_grad_norm/first": at_hidden.norm().item(),
        "inner_input_grad_norm/first": (at_hidden @ net.first.weight).norm().item(),
        "inner_input_grad_norm/last": (at_energy @ net.last.weight).norm().item(),
    }


BOTH = ["input_grad", "output_grad", "inner_input_grad", "inner_output_grad"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tensors", [BOTH, BOTH[2:]], ids=["beside those of the loss", "alone"])
def test_a_rule_may_watch_the_inner_gradient(way: str, tensors: list[str]) -> None:
    net = Potential(way)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rules = [Watch(modules=["first", "last"], tensors=tensors, stats="norm")]
    with instrument(net, [StatsMonitor(rules)], optimizer=optimizer) as watched:
        for _ in range(2):
            want = {**by_hand(copied(net), X, Y), **inner_by_hand(copied(net), X)}
            optimizer.zero_grad()
            net.loss(X, Y).backward()
            optimizer.step()
            found = watched.latest
            want = {tag: value for tag, value in want.items() if tag.split("_norm/")[0] in tensors}
            assert {tag: value for tag, value in found.items() if "grad_norm/" in tag} == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("calls", ["automatic", "manual_backward", "backward"])
def test_a_fit_with_rows_of_both(tmp_path: Path, way: str, calls: str) -> None:
    torch.manual_seed(0)
    net = Fit(way, calls)
    inner: list[dict[str, float]] = []
    step = net.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        inner.append(inner_by_hand(copied(net.body), batch[0]))
        return step(batch, batch_idx)

    net.training_step = training_step  # type: ignore[method-assign]
    monitor = StatsMonitor([Watch(modules=["*first", "*last"], tensors=BOTH, stats="norm")], max_scalars=10**6)
    trainer_of(tmp_path, monitor).fit(net, data(3))
    want = {tag.replace("/", "/body."): value for tag, value in {**net.expected[-1], **inner[-1]}.items()}
    assert {tag: monitor.latest[tag] for tag in want} == pytest.approx(want, rel=1e-5)
    torch.manual_seed(0)
    plain = Fit(way, calls)
    trainer_of(tmp_path).fit(plain, data(3))
    same_weights(plain, net)


def test_a_loss_scale_does_not_divide_the_inner_gradient(tmp_path: Path) -> None:
    def found(**options: Any) -> dict[str, float]:
        torch.manual_seed(0)
        monitor = StatsMonitor([Watch(modules=["*first", "*last"], tensors=BOTH, stats=["norm", own_norm])])
        trainer_of(tmp_path, monitor, **options).fit(Fit("in the forward", "automatic"), data(2))
        return {tag: value for tag, value in monitor.latest.items() if "grad_" in tag}

    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))
    assert found(plugins=[scaled]) == pytest.approx(found(), rel=0.02)


def test_a_capture_of_the_inner_gradient(tmp_path: Path) -> None:
    net = Fit("in the forward", "automatic")
    capture = ActivationCapture("body.last", tensor="inner_output_grad", every_n_steps=1, folder=tmp_path / "captured")
    trainer_of(tmp_path, capture).fit(net, data(2))
    captured = load_capture(tmp_path / "captured")["body.last"]
    assert [each.unique().tolist() for each in captured] == [[1.0], [1.0]]


def test_the_inner_gradient_cannot_be_changed() -> None:
    with pytest.raises(RuleError, match=r"tensor='inner_output_grad' can be watched and captured, not changed.*'output_grad'"):
        Apply(Scale(0.5), modules="*", tensor="inner_output_grad")
