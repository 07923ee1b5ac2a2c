"""Small steps in plain torch with one fault each, and what an autopsy is to say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

INF = float("inf")


class Case(NamedTuple):
    """A step: the model, the step itself, and its surroundings."""

    model: nn.Module
    step: Callable[[], Tensor | None]
    batch: Any = None
    update: Callable[[], object] | None = None
    optimizers: tuple[torch.optim.Optimizer, ...] = ()


class Expected(NamedTuple):
    """What is to be said of a case; an operation of None means that there is none."""

    verdict: str
    operation: str | None
    module: str
    direction: str
    line: str = ""
    call: int = 0


class Net(nn.Module):
    """Two layers with a function between them; `bad` and `loss` decide where it goes wrong."""

    def __init__(self, bad: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(4, 4), Function(bad), nn.Linear(4, 2)
        self.loss = loss or (lambda output: output.square().mean())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class Function(nn.Module):
    """A module that calls one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def of_net(
    bad: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor] | None = None, batch: Tensor | None = None
) -> Case:
    model = Net(bad, loss)
    data = torch.ones(3, 4) if batch is None else batch

    def step() -> Tensor:
        found = model.loss(model(data))
        found.backward()
        return found

    return Case(model, step, data)


def identity(x: Tensor) -> Tensor:
    return x


def log_of_zero(x: Tensor) -> Tensor:
    return (x * 0).log()


def zero_times_infinity(x: Tensor) -> Tensor:
    mask = torch.tensor([0.0, 1.0, 1.0, 1.0])
    return x + mask * -INF


def square_root_of_zero(x: Tensor) -> Tensor:
    return (x * 0).sqrt()


def norm_of_zero(x: Tensor) -> Tensor:
    return x + (x * 0).square().sum(1, keepdim=True).sqrt()


def softmax_of_a_masked_row(x: Tensor) -> Tensor:
    hidden = torch.zeros(3, 4, dtype=torch.bool)
    hidden[1] = True
    scores = x.masked_fill(hidden, -INF)
    return scores.softmax(1)


def half_matmul(x: Tensor) -> Tensor:
    large = (x.abs() + 300).half()
    return (large @ large.T @ large).float()


def half_exp(x: Tensor) -> Tensor:
    return (x.abs() + 12).half().exp().float()


def half_sum(x: Tensor) -> Tensor:
    return x + torch.full((4, 100), 1000.0).half().sum().float()


def zero_variance(x: Tensor) -> Tensor:
    same = x * 0
    return (same - same.mean()) / same.std()


def where_trap(x: Tensor) -> Tensor:
    small = x * 0
    return torch.where(small > 0, 1 / small, x)


def where_trap_of_exp(x: Tensor) -> Tensor:
    large = x * 0 + 1000
    return torch.where(large < 0, large.exp(), x)


def acos_at_one(x: Tensor) -> Tensor:
    return torch.acos(x * 0 + 1)


def pow_of_negative(x: Tensor) -> Tensor:
    return (x * 0 - 1) ** 0.5


def written_into_a_view(x: Tensor) -> Tensor:
    copy = x.clone()
    copy[1:].mul_(0).div_(0)
    return copy


def written_with_out(x: Tensor) -> Tensor:
    with torch.no_grad():
        zeros = torch.zeros(4)
        result = torch.empty(4)
        torch.div(zeros, zeros, out=result)
    return x + result


def read_of_uninitialised(x: Tensor) -> Tensor:
    memory = torch.empty(4)
    # An address without an operator: the memory holds what was there before.
    memory.numpy()[:] = float("nan")
    return x + memory


def dropped_before_use(x: Tensor) -> Tensor:
    bad = torch.full((4,), INF) - torch.full((4,), INF)
    bad.zero_()
    return (x + bad) / 0


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 0 / 0


def bad_backward(x: Tensor) -> Tensor:
    return BadBackward.apply(x)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(square_root_of_zero, x, use_reentrant=False)


def checkpointed_again(x: Tensor) -> Tensor:
    return checkpoint(square_root_of_zero, x, use_reentrant=True)


def hooked(x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: gradient / 0)
    return x


def penalised(x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad((x * 0).sqrt().sum(), x, create_graph=True)
    return x + slope


def mapped(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: row / 0)(x)


def attention(x: Tensor) -> Tensor:
    query = x[None].repeat(2, 1, 1)
    return functional.scaled_dot_product_attention(query, query, query / 0)[0]


def log_in_loss(output: Tensor) -> Tensor:
    return (output * 0).log().mean()


def ignored_labels(output: Tensor) -> Tensor:
    return functional.cross_entropy(output, torch.full((3,), -100))


def infinite_target(output: Tensor) -> Tensor:
    return functional.cross_entropy(output.masked_fill(torch.tensor([True, False]), -INF), torch.zeros(3, dtype=torch.long))


def batch_with(value: float) -> Case:
    data = torch.ones(3, 4)
    data[1, 2] = value
    return of_net(identity, batch=data)


def weight_of_nan() -> Case:
    case = of_net(identity)
    with torch.no_grad():
        case.model.last.weight[1, 0] = float("nan")
    return case


def buffer_of_nan() -> Case:
    case = of_net(identity)
    case.model.middle.register_buffer("scale", torch.tensor([1.0, float("nan"), 1.0, 1.0]))
    case.model.middle.function = lambda x: x * case.model.middle.scale
    return case


class Thrice(nn.Module):
    """A module that is called three times, and gives bad numbers at the third."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Function(lambda x: 1 / (x - 1))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(self.block(x * self.scale)))


def called_thrice() -> Case:
    model = Thrice()
    # 1 / (x − 1): 3 gives 0.5, then −2 … 1.5 gives 2, then 1, then the division by 0.
    data = torch.tensor([1.5])
    return Case(model, lambda: backward(model(data).sum()), data)


def gate_of_network() -> Case:
    model = nn.ModuleDict({"rnn": nn.RNN(1, 1, nonlinearity="relu"), "head": nn.Linear(1, 1)})
    with torch.no_grad():
        for weight in model["rnn"].parameters():
            weight.fill_(5.0)
    data = torch.ones(70, 1, 1)
    return Case(model, lambda: backward(model["head"](model["rnn"](data)[0]).mean()), data)


def batch_norm_of_infinity() -> Case:
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight.fill_(3e38)
    data = torch.full((2, 1, 3), 3e38)
    return Case(model, lambda: backward(model(data).sum()), data)


def convolution_backward() -> Case:
    """The loss is 0, and the gradient of the weight is 6e38."""
    model = nn.Sequential(nn.Conv1d(1, 2, 1, bias=False))
    data = torch.full((2, 1, 3), 1e30)

    def step() -> Tensor:
        output = model(data) * 1e8
        return backward((output - output.detach()).sum())

    return Case(model, step, data)


def normalised_bad_batch() -> Case:
    """Running statistics that an earlier forward pass of the bad batch has spoiled do not hide the batch."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    data = torch.ones(3, 4)
    data[1, 2] = float("nan")
    model(data)
    return Case(model, lambda: backward(model(data).square().mean()), data)


def spoiled_statistics() -> Case:
    """In evaluation mode running statistics are read."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval())
    model[1].running_mean.fill_(float("nan"))
    return Case(model, lambda: backward(model(torch.ones(3, 4)).square().mean()))


def sparse_gradient() -> Case:
    model = nn.ModuleDict({"words": nn.Embedding(5, 4, sparse=True), "root": Function(square_root_of_zero)})
    words = torch.tensor([1, 2])
    return Case(model, lambda: backward(model["root"](model["words"](words)).sum()))


def compiled_module() -> Case:
    case = of_net(square_root_of_zero)
    case.model.compile(backend="eager")
    return case


def second_micro_batch() -> Case:
    model = Net(lambda x: (x - 1).log() if x.shape[0] == 2 else x)
    model.first.weight.data.zero_(), model.first.bias.data.fill_(1.0)

    def step() -> None:
        for samples in (3, 2):
            model.loss(model(torch.ones(samples, 4))).backward()

    return Case(model, step)


def optimizer_case(change: Callable[[torch.optim.Optimizer], None], foreach: bool = False, fused: bool = False) -> Case:
    case = of_net(identity)
    optimizer = torch.optim.Adam(case.model.parameters(), lr=0.1, foreach=foreach, fused=fused)
    case.step(), optimizer.step(), optimizer.zero_grad()
    change(optimizer)
    return case._replace(update=optimizer.step, optimizers=(optimizer,))


def negative_variance(optimizer: torch.optim.Optimizer) -> None:
    # The moments of one parameter, `last.weight`; the others stay as they are.
    parameter = optimizer.param_groups[0]["params"][2]
    optimizer.state[parameter]["exp_avg_sq"].fill_(-1.0)


def infinite_rate(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = INF


def bad_state(optimizer: torch.optim.Optimizer) -> None:
    parameter = optimizer.param_groups[0]["params"][2]
    optimizer.state[parameter]["exp_avg"].fill_(float("nan"))


class Descent(torch.optim.Optimizer):
    """An optimizer of the user's own that divides by zero."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                param -= param.grad / (param.grad - param.grad)


def own_optimizer() -> Case:
    case = of_net(identity)
    optimizer = Descent(case.model.last.parameters())
    return case._replace(update=optimizer.step, optimizers=(optimizer,))


def manual_step() -> Case:
    """A step that updates by itself, and forgets the gradients before anybody looks."""
    model = Net(identity)
    optimizer = torch.optim.SGD(model.parameters(), lr=INF)

    def step() -> None:
        model.loss(model(torch.ones(3, 4))).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


def read_as_number() -> Case:
    def scaled(x: Tensor) -> Tensor:
        size = (x.detach() * 0).log().sum().item()
        return x * size

    return of_net(scaled)


def backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss


FAULTS: dict[str, tuple[Callable[[], Case], Expected]] = {
    "log_0": (lambda: of_net(log_of_zero), Expected("forward", "aten.log", "middle", "forward", "return (x * 0).log()")),
    "0_inf": (
        lambda: of_net(zero_times_infinity),
        Expected("forward", "aten.mul", "middle", "forward", "return x + mask * -INF"),
    ),
    "sqrt_0": (
        lambda: of_net(square_root_of_zero),
        Expected("backward", "aten.div", "middle", "backward", "return (x * 0).sqrt()"),
    ),
    "norm_0": (lambda: of_net(norm_of_zero), Expected("backward", "aten.div", "middle", "backward")),
    "masked_row": (
        lambda: of_net(softmax_of_a_masked_row),
        Expected("forward", "aten._softmax", "middle", "forward", "return scores.softmax(1)"),
    ),
    "half_matmul": (lambda: of_net(half_matmul), Expected("forward", "aten.mm", "middle", "forward")),
    "half_exp": (lambda: of_net(half_exp), Expected("forward", "aten.exp", "middle", "forward")),
    "half_sum": (lambda: of_net(half_sum), Expected("forward", "aten.sum", "middle", "forward")),
    "zero_variance": (lambda: of_net(zero_variance), Expected("forward", "aten.div", "middle", "forward")),
    "where": (
        lambda: of_net(where_trap),
        Expected("backward", "aten.mul", "middle", "backward", "return torch.where(small > 0, 1 / small, x)"),
    ),
    "where_exp": (lambda: of_net(where_trap_of_exp), Expected("backward", "aten.mul", "middle", "backward")),
    "acos_1": (lambda: of_net(acos_at_one), Expected("backward", "aten.rsqrt", "middle", "backward")),
    "pow_negative": (lambda: of_net(pow_of_negative), Expected("forward", "aten.pow", "middle", "forward")),
    "view": (
        lambda: of_net(written_into_a_view),
        Expected("forward", "aten.div_", "middle", "forward", "copy[1:].mul_(0).div_(0)"),
    ),
    "out": (lambda: of_net(written_with_out), Expected("forward", "aten.div", "middle", "forward")),
    "uninitialised": (lambda: of_net(read_of_uninitialised), Expected("forward", "aten.add", "middle", "forward")),
    "overwritten": (
        lambda: of_net(dropped_before_use),
        Expected("forward", "aten.div", "middle", "forward", "return (x + bad) / 0"),
    ),
    "own_backward": (
        lambda: of_net(bad_backward),
        Expected("backward", "aten.div", "middle", "backward", "return gradient * 0 / 0"),
    ),
    "checkpoint": (
        lambda: of_net(checkpointed),
        Expected("backward", "aten.div", "middle", "backward", "return (x * 0).sqrt()"),
    ),
    "checkpoint_reentrant": (
        lambda: of_net(checkpointed_again),
        Expected("backward", "aten.div", "middle", "backward", "return (x * 0).sqrt()"),
    ),
    "tensor_hook": (
        lambda: of_net(hooked),
        Expected("backward", "aten.div", "first", "backward", "x.register_hook(lambda gradient: gradient / 0)"),
    ),
    "penalty": (lambda: of_net(penalised), Expected("forward", "aten.div", "middle", "backward")),
    "vmap": (lambda: of_net(mapped), Expected("forward", "aten.div", "middle", "forward")),
    "sparse": (sparse_gradient, Expected("backward", "aten.div", "root", "backward")),
    "compiled": (compiled_module, Expected("backward", "aten.div", "middle", "backward", "return (x * 0).sqrt()")),
    "attention": (lambda: of_net(attention), Expected("forward", "aten.div", "middle", "forward")),
    "loss": (
        lambda: of_net(identity, log_in_loss),
        Expected("forward", "aten.log", "", "forward", "return (output * 0).log().mean()"),
    ),
    "ignored_labels": (
        lambda: of_net(identity, ignored_labels),
        Expected("forward", "aten.nll_loss_forward", "", "forward"),
    ),
    "masked_target": (lambda: of_net(identity, infinite_target), Expected("forward", "aten.masked_fill", "", "forward")),
    "batch_nan": (lambda: batch_with(float("nan")), Expected("batch", None, "", "forward")),
    "batch_inf": (lambda: batch_with(INF), Expected("batch", None, "", "forward")),
    "weight_nan": (weight_of_nan, Expected("weights", None, "last.weight", "forward")),
    "buffer_nan": (buffer_of_nan, Expected("weights", None, "middle.scale", "forward")),
    "normalised_batch": (normalised_bad_batch, Expected("batch", None, "", "forward")),
    "spoiled_statistics": (spoiled_statistics, Expected("weights", None, "1.running_mean", "forward")),
    "third_call": (
        called_thrice,
        Expected("forward", "aten.reciprocal", "block", "forward", "self.block = Function(lambda x: 1 / (x - 1))", call=2),
    ),
    "rnn": (gate_of_network, Expected("forward", "aten.addmm", "rnn", "forward")),
    "convolution": (batch_norm_of_infinity, Expected("forward", "aten.convolution", "0", "forward")),
    "convolution_grad": (convolution_backward, Expected("backward", "aten.convolution_backward", "0", "backward")),
    "second_micro_batch": (second_micro_batch, Expected("forward", "aten.log", "middle", "forward", call=1)),
    "negative_variance": (
        lambda: optimizer_case(negative_variance),
        Expected("update", "aten.sqrt", "last.weight", "update"),
    ),
    "negative_variance_foreach": (
        lambda: optimizer_case(negative_variance, foreach=True),
        Expected("update", "aten._foreach_sqrt", "last.weight", "update"),
    ),
    "negative_variance_fused": (
        lambda: optimizer_case(negative_variance, fused=True),
        Expected("update", "aten._fused_adam_", "last.weight", "update"),
    ),
    "infinite_rate": (lambda: optimizer_case(infinite_rate), Expected("update", "aten.addcdiv_", "first.weight", "update")),
    "bad_state": (lambda: optimizer_case(bad_state), Expected("update", None, "last.weight", "update")),
    "own_optimizer": (
        own_optimizer,
        Expected("update", "aten.div", "last.weight", "update", "param -= param.grad / (param.grad - param.grad)"),
    ),
    "manual_step": (manual_step, Expected("update", "aten.add_", "first.weight", "update")),
    "item": (read_as_number, Expected("forward", "aten.log", "middle", "forward")),
}


def masked_attention(x: Tensor) -> Tensor:
    hidden = torch.full((3, 3), -INF).triu(1)
    return (x @ x.T + hidden).softmax(1) @ x


def infinite_auxiliary(x: Tensor) -> Tensor:
    _ = (x * 0).log()
    return x


def healthy_batch() -> Case:
    """Missing values that the model does not read, and a mask of zeros and −Inf that it adds."""
    model = Net(identity)
    data = {"x": torch.ones(3, 4), "unused": torch.tensor([float("nan")]), "mask": torch.tensor([0.0, -INF])}

    def step() -> Tensor:
        return backward((model(data["x"]) + data["mask"]).softmax(1).square().mean())

    return Case(model, step, data)


HEALTHY: dict[str, Callable[[], Case]] = {
    "plain": lambda: of_net(identity),
    "masked_attention": lambda: of_net(masked_attention),
    "auxiliary": lambda: of_net(infinite_auxiliary),
    "batch": healthy_batch,
    "optimizer": lambda: optimizer_case(lambda optimizer: None),
    "optimizer_foreach": lambda: optimizer_case(lambda optimizer: None, foreach=True),
}
