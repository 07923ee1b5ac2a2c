"""Transforms of functions over a watched model: they give what they give without us, and what they hide is not measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    HookError,
    StatsMonitor,
    UnsupportedError,
    Watch,
    instrument,
)
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Net, data, plain_sgd, trainer_of
from tests.conformance._tools import same_weights

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def of_parameters(net: nn.Module) -> Any:
    return grad(lambda p: functional_call(net, p, (X,)).sum())(dict(net.named_parameters()))


def per_sample(net: nn.Module) -> Any:
    one = grad(lambda p, x: functional_call(net, p, (x,)).sum())
    return vmap(one, in_dims=(None, 0))(dict(net.named_parameters()), X)


def batched(net: nn.Module) -> Any:
    return torch.autograd.grad(net(X), list(net.parameters()), torch.eye(5).reshape(5, 5, 1), is_grads_batched=True)


FORWARD: dict[str, Callable[[Any], Any]] = {
    "grad": lambda net: grad(lambda x: net(x).sum())(X),
    "grad of parameters": of_parameters,
    "vmap": lambda net: vmap(net)(X),
    "per sample": per_sample,
    "jvp": lambda net: jvp(net, (X,), (torch.ones_like(X),)),
    "jacrev": lambda net: jacrev(net)(X),
    "hessian": lambda net: hessian(lambda x: net(x).sum())(X),
}
BACKWARD: dict[str, Callable[[Any], Any]] = {
    "functional.jacobian": lambda net: torch.autograd.functional.jacobian(net, X, vectorize=True),
    "is_grads_batched": batched,
}
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch itself uses it for `jvp`
HIDDEN = "inside a transform of torch.func"


@pytest.mark.parametrize("several", [False, True], ids=["alone", "beside another monitor"])
@pytest.mark.parametrize("name", [*FORWARD, *BACKWARD])
def test_it_gives_the_same_and_is_not_measured(name: str, several: bool) -> None:
    run = {**FORWARD, **BACKWARD}[name]
    want = run(model())
    stats: list[Any] = ["norm", "histogram"] + ([lambda x: x.abs().max()] if several else [])
    rules = [Watch(modules="*", tensors=["input", "output", "input_grad", "output_grad"], stats=stats), Watch(params="*")]

    def watched(extra: bool) -> tuple[dict[str, float], list[str], Any]:
        net, got = model(), None
        with warnings.catch_warnings(record=True) as seen, instrument(net, [StatsMonitor(rules)]) as watch:
            warnings.simplefilter("always")
            net(X).sum().backward()
            if extra:
                got = run(net)
            watch.step()
            return dict(watch.latest), [str(w.message) for w in seen if w.category is UserWarning], got

    plain, nothing, _ = watched(False)
    numbers, messages, got = watched(True)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert not nothing and len(messages) == 1 and HIDDEN in messages[0], messages
    assert " of 0 is" in messages[0] or " of 1 is" in messages[0] or " of 2 is" in messages[0]
    if name in FORWARD and name not in ("grad of parameters", "per sample"):  # in those the input itself is not transformed
        assert {k: v for k, v in numbers.items() if "output_grad" in k} == {
            k: v for k, v in plain.items() if "output_grad" in k
        }
    assert numbers.keys() == plain.keys()


class Penalized(Net):
    """Adds the squared gradient of its output by its input to the loss, as a transform of torch.func gives it."""

    def __init__(self) -> None:
        super().__init__(plain_sgd, dropout=0.0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        penalty = grad(lambda x: self(x).sum())(x).square().mean()
        return nn.functional.mse_loss(self(x), y) + penalty


def fitted(tmp_path: Path, *callbacks: Any) -> Penalized:
    torch.manual_seed(0)
    net = Penalized()
    trainer_of(tmp_path, *callbacks).fit(net, data(3))
    return net


def test_a_fit_goes_on_and_one_warning_says_what_is_not_measured(tmp_path: Path) -> None:
    plain = fitted(tmp_path)
    monitor = StatsMonitor([Watch(modules="body.*"), Watch(params="*")])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        same_weights(plain, fitted(tmp_path, monitor))
    messages = [str(w.message) for w in seen if HIDDEN in str(w.message)]
    assert len(messages) == 1 and "output of body.0 is not measured" in messages[0]
    assert "output_norm/body.0" in monitor.latest


@pytest.mark.parametrize("tensor", ["output", "input"])
def test_an_activation_transform_is_refused(tmp_path: Path, tensor: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"apply\[0\].*Scale cannot change the {tensor} of body.1.*{HIDDEN}"):
        fitted(tmp_path, ActivationTransforms([Apply(Scale(0.5), modules="body.1", tensor=tensor)]))


def test_a_gradient_transform_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=rf"apply\[0\].*Scale cannot change the output_grad of body.1.*{HIDDEN}"):
        fitted(tmp_path, GradientTransforms([Apply(Scale(0.5), modules="body.1")]))


def test_a_gradient_transform_is_refused_in_a_batched_backward() -> None:
    net = model()
    with instrument(net, [GradientTransforms([Apply(Scale(0.5), modules="2")])]):
        with pytest.raises(UnsupportedError, match=rf"apply\[0\].*of 2.*{HIDDEN}"):
            batched(net)


def test_a_capture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"ActivationCapture: the output of body.0.*{HIDDEN}"):
        fitted(tmp_path, ActivationCapture("body.0", every_n_steps=1))


def test_a_hook_of_the_users_may_look_but_changes_only_where_that_is_meant(tmp_path: Path) -> None:
    shapes: list[Any] = []
    fitted(tmp_path, CustomHooks([Hook(lambda m, a, o: shapes.append(o.shape), modules="body.0", kind="forward")]))
    assert len(shapes) == 6
    double = Hook(lambda m, a, o: o * 2, modules="body.0", kind="forward")
    with pytest.raises(HookError, match=rf"hooks\[0\].*at body.0 returned something.*{HIDDEN}.*checked=False"):
        fitted(tmp_path, CustomHooks([double]))
    meant = Hook(lambda m, a, o: o * 2, modules="body.0", kind="forward", checked=False)
    fitted(tmp_path, CustomHooks([meant]))
