"""Training steps that differentiate more than their loss: only the gradient of the loss is measured and changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from lightning_hooks import (
    ActivationCapture,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    StatsMonitor,
    Watch,
    instrument,
    load_capture,
)
from lightning_hooks.hooks import HookSwitch
from lightning_hooks.hooks.autograd import names
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Net, data, trainer_of
from tests.conformance._tools import same_weights

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
MODULES = [Watch(modules=["*first", "*last"], tensors=["input_grad", "output_grad"], stats="norm")]
HALVES = [Apply(Scale(0.5), modules=["first", "last"])]


class Potential(nn.Module):
    """An energy of two linear layers, and the forces, which are its gradient."""

    def __init__(self, way: str = "in the forward") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 4)
        self.last = nn.Linear(4, 1)
        self.way = way
        self.forces: Tensor | None = None

    def energy(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return self.last(torch.tanh(hidden)), hidden

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            energy, _ = self.energy(x)
            (grad,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        self.forces = -grad.detach()
        return energy, -grad

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.way == "checkpointed":
            energy, forces = checkpoint(self, x, use_reentrant=False)
        elif self.way == "as a penalty":
            x = x.detach().requires_grad_()
            energy, _ = self.energy(x)
            (grad,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
            forces, self.forces = -grad, -grad.detach()
        else:
            energy, forces = self(x)
        return energy.square().mean() + (forces - y).square().mean()


def by_hand(net: Potential, x: Tensor, y: Tensor, share: float = 1.0) -> dict[str, float]:
    """The norms of the loss's gradients, as autograd gives them without any hook."""
    x = x.detach().requires_grad_()
    energy, hidden = net.energy(x)
    (grad,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    loss = share * (energy.square().mean() + (-grad - y).square().mean())
    at_energy, at_hidden = torch.autograd.grad(loss, [energy, hidden])
    # What the first layer itself passes on: a linear layer's backward does not read its input.
    return {
        "output_grad_norm/last": at_energy.norm().item(),
        "output_grad_norm/first": at_hidden.norm().item(),
        "input_grad_norm/first": (at_hidden @ net.first.weight).norm().item(),
        "input_grad_norm/last": (at_energy @ net.last.weight).norm().item(),
    }


def halved(net: Potential, x: Tensor, y: Tensor) -> list[Tensor]:
    """The gradients of the parameters where the gradient of each layer's output is halved in the backward of the loss only."""
    x = x.detach().requires_grad_()
    energy, hidden = net.energy(x)
    (grad,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    for tensor in (energy, hidden):
        tensor.register_hook(lambda grad: grad * 0.5)
    return list(torch.autograd.grad(energy.square().mean() + (-grad - y).square().mean(), list(net.parameters())))


def own_norm(x: Tensor) -> Tensor:
    return x.norm()


WAYS = ["in the forward", "as a penalty", "checkpointed"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stats", ["norm", own_norm], ids=["kernel", "function"])
def test_a_plain_loop_counts_the_backward_of_the_loss_alone(way: str, stats: Any) -> None:
    def fitted(*watch: Watch) -> tuple[Potential, list[dict[str, float]], list[dict[str, float]]]:
        net, expected, found = Potential(way), [], []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with instrument(net, StatsMonitor(watch), optimizer=optimizer) if watch else nullcontext() as watched:
            for _ in range(3):
                expected.append(by_hand(copied(net), X, Y))
                optimizer.zero_grad()
                net.loss(X, Y).backward()
                optimizer.step()
                found.append({} if watched is None else watched.latest)
        return net, expected, found

    rule = Watch(modules=["first", "last"], tensors=["input_grad", "output_grad"], stats=[stats])
    plain, _, _ = fitted()
    net, expected, found = fitted(rule)
    same_weights(plain, net)
    if callable(stats):
        expected = [{tag.replace("_norm/", "_own_norm/"): value for tag, value in step.items()} for step in expected]
    for numbers, want in zip(found, expected, strict=True):
        assert {tag: numbers[tag] for tag in want} == pytest.approx(want, rel=1e-5)


def copied(net: Potential) -> Potential:
    other = Potential(net.way)
    other.load_state_dict(net.state_dict())
    return other


@pytest.mark.parametrize("way", WAYS)
def test_a_rule_leaves_the_forces_alone_and_changes_the_gradient_of_the_loss(way: str) -> None:
    plain, net = Potential(way), Potential(way)
    plain.loss(X, Y)
    with instrument(net, [GradientTransforms(HALVES)]):
        net.loss(X, Y).backward()
    assert plain.forces is not None and net.forces is not None and torch.equal(plain.forces, net.forces)
    expected = halved(copied(net), X, Y)
    for parameter, grad in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


@pytest.mark.parametrize("tensor", ["input_grad", "output_grad"])
def test_a_rule_on_either_gradient_leaves_the_forces_alone(tensor: str) -> None:
    plain, net = Potential(), Potential()
    plain.loss(X, Y).backward()
    with instrument(net, [GradientTransforms([Apply(Scale(0.5), modules=["first", "last"], tensor=tensor)])]):
        net.loss(X, Y).backward()
    assert plain.forces is not None and net.forces is not None and torch.equal(plain.forces, net.forces)
    assert not torch.equal(plain.first.weight.grad, net.first.weight.grad)


class Fit(Net):
    """A fit of the potential: automatic optimization, or `.backward()` as Lightning or torch has it."""

    def __init__(self, way: str, calls: str) -> None:
        super().__init__(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        self.body = Potential(way)
        self.calls = calls
        self.automatic_optimization = calls == "automatic"
        self.expected: list[dict[str, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        x, y = batch[0], torch.cat([batch[1], batch[1]], dim=1)
        self.expected.append(by_hand(copied(self.body), x, y))
        loss = self.body.loss(x, y)
        if self.automatic_optimization:
            return loss
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss) if self.calls == "manual_backward" else loss.backward()
        optimizer.step()
        return None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("calls", ["automatic", "manual_backward", "backward"])
def test_a_fit_counts_the_backward_of_the_loss_alone(tmp_path: Path, way: str, calls: str) -> None:
    def run(*callbacks: Any) -> Fit:
        torch.manual_seed(0)
        net = Fit(way, calls)
        trainer_of(tmp_path, *callbacks).fit(net, data(3))
        return net

    monitor = StatsMonitor(MODULES, max_scalars=10**6)
    plain, net = run(), run(monitor)
    same_weights(plain, net)
    want = {tag.replace("/", "/body."): value for tag, value in net.expected[-1].items()}
    assert {tag: monitor.latest[tag] for tag in want} == pytest.approx(want, rel=1e-5)
    rules = [
        Apply(Scale(1.0), modules="body.*"),
        Apply(Scale(1.0), modules="body.*", tensor="input_grad"),
        Apply(Scale(1.0), params="*", when="backward"),
    ]
    same_weights(plain, run(GradientTransforms(rules)))


def test_an_accumulated_step_adds_up_the_backwards_of_its_losses(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, monitor = Fit("in the forward", "automatic"), StatsMonitor(MODULES, max_scalars=10**6)
    batches: list[dict[str, float]] = []

    def expected(x: Tensor, y: Tensor) -> None:
        batches.append(by_hand(copied(net.body), x, y, share=0.5))

    step = net.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        expected(batch[0], torch.cat([batch[1], batch[1]], dim=1))
        return step(batch, batch_idx)

    net.training_step = training_step  # type: ignore[method-assign]
    trainer_of(tmp_path, monitor, accumulate_grad_batches=2).fit(net, data(2))
    for tag in batches[0]:
        together = sum(batch[tag] ** 2 for batch in batches) ** 0.5
        assert monitor.latest[tag.replace("/", "/body.")] == pytest.approx(together, rel=1e-5)


def test_a_capture_takes_the_gradient_of_the_loss(tmp_path: Path) -> None:
    net = Fit("in the forward", "automatic")
    capture = ActivationCapture("body.last", tensor="output_grad", every_n_steps=1, folder=tmp_path / "captured")
    trainer_of(tmp_path, capture).fit(net, data(2))
    captured = load_capture(tmp_path / "captured")["body.last"]
    want = [numbers["output_grad_norm/last"] for numbers in net.expected]
    assert [captured[i].norm().item() for i in range(len(captured))] == pytest.approx(want, rel=1e-5)


class Searched(Fit):
    """Differentiates by the input and by parameters before the loss, without `create_graph`, in every way there is."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        x = batch[0].detach().requires_grad_()
        self.body.energy(x)[0].sum().backward()
        self.zero_grad()
        torch.autograd.grad(self.body.energy(x)[0].sum(), list(self.body.parameters()))
        return super().training_step(batch, batch_idx)


def test_with_automatic_optimization_nothing_counts_before_lightning_announces_the_backward(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, monitor = Searched("in the forward", "automatic"), StatsMonitor(MODULES, max_scalars=10**6)
    trainer_of(tmp_path, monitor).fit(net, data(2))
    want = {tag.replace("/", "/body."): value for tag, value in net.expected[-1].items()}
    assert {tag: monitor.latest[tag] for tag in want} == pytest.approx(want, rel=1e-5)


class Closure(Fit):
    """LBFGS runs the training step several times in a batch."""

    def __init__(self) -> None:
        super().__init__("in the forward", "automatic")
        self.make = lambda parameters: torch.optim.LBFGS(parameters, lr=0.01, max_iter=3)


def test_each_closure_of_lbfgs_counts_its_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, monitor = Closure(), StatsMonitor(MODULES, max_scalars=10**6)
    trainer_of(tmp_path, monitor).fit(net, data(1))
    assert len(net.expected) == 3
    for tag in net.expected[0]:
        together = sum(closure[tag] ** 2 for closure in net.expected) ** 0.5
        assert monitor.latest[tag.replace("/", "/body.")] == pytest.approx(together, rel=1e-5)


def test_micro_batches_are_backwards_of_the_loss() -> None:
    net = Potential()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for inner in (False, True):
        with instrument(
            net, [StatsMonitor([Watch(params="last.weight", stats=["micro_cosine"])])], optimizer=optimizer
        ) as watched:
            for x in X.split(2):
                loss = net.energy(x)[0].square().sum()
                if inner:
                    torch.autograd.grad(net.energy(x)[0].sum(), list(net.parameters()), create_graph=True)
                loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            optimizer.step()
            optimizer.zero_grad()
            found.append(watched.latest["grad_micro_cosine/last.weight"])
    assert found[0] == found[1]


Way = Callable[[Potential], Any]
COUNTED: dict[str, Way] = {
    "backward": lambda net: net.energy(X)[0].sum().backward(),
    "backward of some parameters": lambda net: net.energy(X)[0].sum().backward(inputs=list(net.last.parameters())),
    "grad of the parameters": lambda net: torch.autograd.grad(net.energy(X)[0].sum(), list(net.parameters())),
    "backward with create_graph": lambda net: net.energy(X)[0].sum().backward(create_graph=True),
}
INNER: dict[str, Way] = {
    "grad of the input": lambda net: torch.autograd.grad(net.energy(x := X.clone().requires_grad_())[0].sum(), x),
    "grad of the parameters with create_graph": lambda net: torch.autograd.grad(
        net.energy(X)[0].sum(), list(net.parameters()), create_graph=True
    ),
    "jacobian": lambda net: torch.autograd.functional.jacobian(lambda x: net.energy(x)[0].sum(), X),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("name", [*COUNTED, *INNER])
def test_what_counts_in_a_plain_loop(name: str) -> None:
    net = Potential()
    grads: list[str] = []
    hooks = [Hook(lambda grad: grads.append("seen"), modules="last", kind="output_grad")]
    with instrument(
        net, [StatsMonitor([Watch(modules="last", tensors="output_grad", stats="norm")]), CustomHooks(hooks)]
    ) as watched:
        {**COUNTED, **INNER}[name](net)
        watched.step()
        found = watched.latest
    found.pop("run/nonfinite", None)
    want = {"output_grad_norm/last": 5**0.5} if name in COUNTED else {}
    if name.startswith("backward"):  # which has a loss; `torch.autograd.grad` may differentiate anything
        want["run/loss"] = net.energy(X)[0].sum().item()
    assert found == pytest.approx(want)
    assert grads == ["seen"]  # a hook of the user's runs in every backward


def test_the_outer_loss_of_meta_learning_counts() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))

    def inner_and_outer() -> tuple[Tensor, Tensor]:
        weights = dict(net.named_parameters())
        inner = functional_call(net, weights, (X,))
        grads = torch.autograd.grad(inner.square().sum(), list(weights.values()), create_graph=True)
        fast = {name: weight - 0.1 * grad for (name, weight), grad in zip(weights.items(), grads, strict=True)}
        return inner, functional_call(net, fast, (X,))

    inner, outer = inner_and_outer()
    want = torch.cat(torch.autograd.grad(outer.square().sum(), [inner, outer])).norm().item()
    with instrument(net, [StatsMonitor([Watch(modules="2", tensors="output_grad", stats="norm")])]) as watched:
        inner_and_outer()[1].square().sum().backward()
        watched.step()
        assert watched.latest["output_grad_norm/2"] == pytest.approx(want, rel=1e-5)


def test_a_hook_of_the_users_sees_every_backward_in_a_fit(tmp_path: Path) -> None:
    seen: list[float] = []
    hook = Hook(lambda grad: seen.append(grad.norm().item()), modules="body.last", kind="output_grad")
    net = Fit("in the forward", "automatic")
    trainer_of(tmp_path, CustomHooks([hook]), StatsMonitor(MODULES)).fit(net, data(2))
    assert len(seen) == 4


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**2


def test_input_grad_is_what_flows_through_the_operations_of_the_module() -> None:
    """The square saves its input, so the graph of the inner gradient reaches that input without the square's own node."""
    torch.manual_seed(0)
    first, square = nn.Linear(6, 4), Square()
    net = nn.Sequential(first, square)

    def loss() -> tuple[Tensor, Tensor, Tensor]:
        x = X.clone().requires_grad_()
        hidden = first(x)
        out = square(hidden)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.sum() + grad.square().sum(), hidden, out

    value, hidden, out = loss()
    at_hidden, at_out = torch.autograd.grad(value, [hidden, out])
    with instrument(net, [StatsMonitor([Watch(modules="*", tensors=["input_grad", "output_grad"], stats="norm")])]) as watched:
        loss()[0].backward()
        watched.step()
        found = watched.latest
    assert found["output_grad_norm/0"] == pytest.approx(at_hidden.norm().item(), rel=1e-5)
    assert found["output_grad_norm/1"] == pytest.approx(at_out.norm().item(), rel=1e-5)
    assert found["input_grad_norm/1"] == pytest.approx((2 * hidden * at_out).norm().item(), rel=1e-5)


def test_the_fallback_of_the_private_names_goes_by_create_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    HookSwitch()  # tries the private names
    monkeypatch.setattr(names, "accumulates", None)
    net = Potential()
    with instrument(net, [StatsMonitor([Watch(modules=["first", "last"], tensors="output_grad", stats="norm")])]) as watched:
        net.loss(X, Y).backward()
        watched.step()
        found = watched.latest
    want = by_hand(net, X, Y)
    assert {tag: found[tag] for tag in want if tag in found} == pytest.approx(
        {tag: want[tag] for tag in want if tag.startswith("output_grad")}, rel=1e-5
    )


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("what", ["layers", "model"])
def test_compiled_modules(what: str) -> None:
    """With the backend `eager`: the others cannot differentiate a gradient."""
    torch.compiler.reset()
    net = Potential("as a penalty" if what == "layers" else "in the forward")
    for module in (net.first, net.last) if what == "layers" else (net,):
        module.compile(backend="eager")
    rules = [Watch(modules=["first", "last"], tensors=["input_grad", "output_grad"], stats="norm")]
    with instrument(net, [StatsMonitor(rules)]) as watched:
        for _ in range(2):
            net.loss(X, Y).backward()
            watched.step()
            found = watched.latest
    want = by_hand(copied(net), X, Y)
    assert {tag: found[tag] for tag in want} == pytest.approx(want, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("what", ["all of it", "not the first layer"])
def test_hooks_get_no_graphs_of_their_own_where_a_compiled_model_differentiates(what: str) -> None:
    """Dynamo compiles each function of Python that the backward pass of an inner gradient calls."""
    torch.compiler.reset()
    net = Potential()
    if what == "not the first layer":
        net.first.forward = torch.compiler.disable(net.first.forward)  # type: ignore[method-assign]
    net.compile(backend="eager")
    clear_compilation_metrics()
    with instrument(net, [StatsMonitor(MODULES)]) as watched:
        net.loss(X, Y).backward()
        watched.step()
        assert watched.latest
    files = {str(metrics.co_filename) for metrics in get_compilation_metrics()}
    assert any(file.endswith("test_inner_gradients.py") for file in files)
    assert not {file for file in files if "/lightning_hooks/" in file}
