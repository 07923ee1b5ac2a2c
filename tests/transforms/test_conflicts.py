import builtins
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms, instrument
from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.transforms import ClipByValue, Scale
from lightning_hooks.transforms.conflicts import aggregate_losses

aggregation = pytest.importorskip("torchjd.aggregation")


def model_and_losses() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    out = model(torch.randn(5, 3))
    return model, [out[:, 0].square().mean(), (out[:, 1] - 1).abs().mean(), (out[:, 0] + out[:, 1]).mean()]


def jacobian(model: nn.Module, losses: list[Tensor]) -> Tensor:
    rows = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
    return torch.stack([torch.cat([grad.flatten() for grad in row]) for row in rows])


def flat_grad(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("name", ["PCGrad", "AlignedMTL", "MGDA", "Mean", "ConFIG"])
@pytest.mark.parametrize("given", ["name", "instance"])
@pytest.mark.parametrize("chunk", [1, None])
def test_the_gradient_is_what_the_aggregator_gives(name: str, given: str, chunk: int | None) -> None:
    model, losses = model_and_losses()
    rows = jacobian(model, losses)
    # PCGrad takes the losses in a random order.
    torch.manual_seed(1)
    expected = getattr(aggregation, name)()(rows)
    torch.manual_seed(1)
    chosen = name if given == "name" else getattr(aggregation, name)()
    weights = aggregate_losses(losses, params=model.parameters(), aggregator=chosen, parallel_chunk_size=chunk)
    assert torch.allclose(flat_grad(model), expected, rtol=1e-5, atol=1e-7)
    if name == "ConFIG":
        assert weights is None
    else:
        assert weights is not None and torch.allclose(weights @ rows, expected, rtol=1e-5, atol=1e-7)


def test_sum_is_backward_and_adds_to_what_is_there() -> None:
    model, losses = model_and_losses()
    aggregate_losses(losses, aggregator="Sum", retain_graph=True)
    torch.autograd.backward(torch.stack(losses).sum())
    ours = flat_grad(model) / 2
    model.zero_grad()
    _, losses = model_and_losses()
    model, losses = model_and_losses()
    torch.autograd.backward(torch.stack(losses).sum())
    assert torch.allclose(ours, flat_grad(model), rtol=1e-5, atol=1e-7)
    assert not any(hasattr(parameter, "jac") for parameter in model.parameters())


def test_only_the_parameters_asked_for_get_gradients() -> None:
    model, losses = model_and_losses()
    first, *rest = model.parameters()
    aggregate_losses(losses, params=[first])
    assert first.grad is not None and all(parameter.grad is None for parameter in rest)


def test_leaves_include_a_loss_that_is_a_leaf() -> None:
    value = torch.tensor(3.0, requires_grad=True)
    aggregate_losses([value, value * 2], aggregator="Sum")
    assert value.grad is not None and value.grad.item() == 3.0


def test_transforms_act_on_the_combined_gradient() -> None:
    model, losses = model_and_losses()
    torch.manual_seed(1)
    expected = aggregation.PCGrad()(jacobian(model, losses)).clamp(-0.01, 0.01) * 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    with instrument(
        model, [GradientTransforms([Apply([ClipByValue(-0.01, max=0.01), Scale(0.5)], params="*")])], optimizer=optimizer
    ):
        losses = model_and_losses_of(model)
        torch.manual_seed(1)
        aggregate_losses(losses, params=model.parameters(), aggregator="PCGrad")
        optimizer.step()
    after = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.allclose(before - after, expected, rtol=1e-4, atol=1e-6)


def test_backward_hooks_see_one_pass_for_each_loss() -> None:
    model, hook_calls = model_and_losses()[0], []
    with instrument(model, [GradientTransforms([Apply(Scale(0.0), modules="2")])]):
        model[2].register_full_backward_hook(lambda *given: hook_calls.append(1))  # type: ignore[index]
        aggregate_losses(model_and_losses_of(model), params=model.parameters(), aggregator="Sum")
    assert len(hook_calls) == 3 and flat_grad(model).abs().max() == 0


def model_and_losses_of(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(0)
    nn.Linear(3, 4), nn.Linear(4, 2)  # draws what model_and_losses drew before its input
    out = model(torch.randn(5, 3))
    return [out[:, 0].square().mean(), (out[:, 1] - 1).abs().mean(), (out[:, 0] + out[:, 1]).mean()]


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        (
            "PCgrad",
            r"unknown aggregator 'PCgrad' \(did you mean 'PCGrad' or .*\); by name there are AlignedMTL, ConFIG, DualProj,",
        ),
        ("Krum", r"aggregator 'Krum' needs n_byzantine: give an instance, torchjd.aggregation.Krum\(n_byzantine=…\)"),
        (
            "GradVac",
            r"aggregator 'GradVac' keeps a state from step to step: give an instance, torchjd.aggregation.GradVac\(\), made",
        ),
        ("Aggregator", r"unknown aggregator 'Aggregator'"),
        (3, r"aggregator must be a name or an instance of torchjd.aggregation.Aggregator, got 3"),
    ],
)
def test_aggregator_refused(aggregator: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        aggregate_losses(model_and_losses()[1], aggregator=aggregator)


def test_losses_and_params_refused() -> None:
    loss = torch.ones(1, requires_grad=True).sum()
    cases: list[tuple[Any, Any, str]] = [
        ([], None, "losses must be a list of at least one scalar, got none"),
        (torch.ones(3), None, r"losses must be a list of at least one scalar, got a tensor of shape \(3,\)"),
        ([loss, torch.ones(2)], None, r"losses\[1\] must be a scalar tensor, got shape \(2,\)"),
        ([loss, 1.0], None, r"losses\[1\] must be a scalar tensor, got 1.0"),
        ([torch.tensor(1.0)], None, r"losses\[0\] has no graph: it depends on nothing that requires a gradient"),
        ([loss], [], "params is empty; give the parameters that share the losses, or omit it"),
        ([loss], [loss], r"params\[0\] must be a leaf that requires a gradient; its shape is \(\)"),
    ]
    for losses, params, message in cases:
        with pytest.raises(RuleError, match=message):
            aggregate_losses(losses, params=params)


def test_more_than_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UnsupportedError, match="aggregate_losses takes gradients around DDP, which would not average them"):
        aggregate_losses(model_and_losses()[1])


def test_a_process_group_that_is_left_is_no_reason_to_refuse_if_this_process_trains_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, losses = model_and_losses()
    aggregate_losses(losses, aggregator="Sum")
    expected = flat_grad(model)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    model, losses = model_and_losses()
    with pytest.raises(UnsupportedError, match=r"process group is left from an earlier run, give alone=True$"):
        aggregate_losses(losses, aggregator="Sum")
    aggregate_losses(losses, aggregator="Sum", alone=True)
    assert torch.equal(flat_grad(model), expected)


def test_without_torchjd(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fake(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("torchjd"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(UnsupportedError) as error:
        aggregate_losses([])
    assert str(error.value) == "aggregate_losses needs TorchJD, which is not installed: pip install 'lightning-hooks[torchjd]'"


def test_an_aggregator_that_needs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> None:
        raise ImportError("Install them with: pip install 'torchjd[…]'")

    monkeypatch.setattr(aggregation.UPGrad, "__init__", fail)
    with pytest.raises(UnsupportedError, match=r"aggregator 'UPGrad' needs more than TorchJD itself: Install them with: pip"):
        aggregate_losses(model_and_losses()[1], aggregator="UPGrad")


def test_torchjd_is_not_loaded_before_it_is_used() -> None:
    code = (
        "import sys, lightning_hooks.transforms.conflicts; print([m for m in ('torchjd', 'optax', 'jax') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
