"""`instrument`: the statistics of a plain loop, compared with numbers computed by hand."""

import contextlib
import copy
import gc
import itertools
import pickle
import subprocess
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from lightning_hooks import (
    ActivationTransforms,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    HooksLeftError,
    InPlaceError,
    RuleError,
    StatsMonitor,
    StepConsumer,
    UnsupportedError,
    Watch,
    assert_no_hooks,
    instrument,
    paused,
)
from lightning_hooks.transforms import ClipByGlobalNorm, Function, Scale
from tests import forked

EVERY_TENSOR = ("input", "output", "input_grad", "output_grad")


def norms(model, names, loss, tensors=EVERY_TENSOR, **options):
    """Run one step without an optimizer, and return its statistics by tag."""
    with instrument(model, [StatsMonitor([Watch(modules=names, tensors=tensors, stats="norm", **options)])]) as watched:
        loss(model).backward()
        watched.step()
    assert_no_hooks(model)
    return watched.latest


class Attention(nn.Module):
    """Reads its input three times, as attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1) @ self.v(x)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x):
        h = self.first(x)
        return h + self.inner(h)


@pytest.mark.parametrize("inner", [nn.Linear(4, 4), Attention(), nn.Sequential(nn.LayerNorm(4), nn.GELU())], ids=repr)
def test_input_grad_is_the_modules_own_contribution(inner):
    torch.manual_seed(0)
    model, x = Residual(inner), torch.randn(3, 4)
    found = norms(model, "inner", lambda m: m(x).square().sum())
    h = model.first(x).detach()
    own, other = h.clone().requires_grad_(), h.clone().requires_grad_()
    (other + inner(own)).square().sum().backward()
    assert found["input_grad_norm/inner"] == pytest.approx(own.grad.norm().item(), rel=1e-6)
    assert own.grad.norm() != (own.grad + other.grad).norm()


def test_input_grad_where_threads_call_one_module():
    """The second call begins in the first one, and ends after it."""
    begun = {name: threading.Event() for name in ("first", "second")}
    first_is_over = threading.Event()

    class Meet(nn.Module):
        def forward(self, x, name):
            begun[name].set()
            assert begun["second"].wait(20)
            assert name == "first" or first_is_over.wait(20)
            return 3.0 * x

    def call(name):
        result = model[0](inputs[name], name)
        first_is_over.set()
        (result * inputs[name].detach()).sum().backward()

    model = nn.Sequential(Meet())
    inputs = {"first": torch.ones(2, requires_grad=True), "second": torch.full((2,), 10.0, requires_grad=True)}
    with instrument(model, [StatsMonitor([Watch(modules="0", tensors="input_grad", stats=["norm"])])]) as watched:
        threads = [threading.Thread(target=call, args=(name,)) for name in inputs]
        threads[0].start()
        assert begun["first"].wait(20)
        threads[1].start()
        for thread in threads:
            thread.join()
        watched.step()
    expected = torch.cat([x.grad for x in inputs.values()]).norm().item()
    assert watched.latest["input_grad_norm/0"] == pytest.approx(expected)


def test_calls_that_a_checkpoint_breaks_off_are_forgotten_when_the_step_ends():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    begun = lambda: [hook.hooks.begun for module in model for hook in module._forward_pre_hooks.values()]  # noqa: E731
    with instrument(model, [StatsMonitor([Watch(modules="*", tensors="input_grad", stats="norm")])]) as watched:
        held = []
        for _ in range(3):
            checkpoint(model, torch.randn(3, 4, requires_grad=True), use_reentrant=False).sum().backward()
            held.append(sum(len(calls) for each in begun() for calls in each.values()))
            watched.step()
            assert begun() == [{}] * 4
    assert all(held)  # The recomputation stops inside the last module that it needs.


def test_output_grad_is_the_total_over_all_consumers():
    model, x = Residual(nn.Linear(4, 4)), torch.randn(3, 4)
    found = norms(model, "first", lambda m: m(x).square().sum())
    h = model.first(x).detach().requires_grad_()
    (h + model.inner(h)).square().sum().backward()
    assert found["output_grad_norm/first"] == pytest.approx(h.grad.norm().item(), rel=1e-6)


def test_a_module_called_several_times_merges_into_one_row():
    layer = nn.Linear(4, 4)
    model, x = nn.Sequential(layer, nn.Tanh(), layer), torch.randn(3, 4)
    found = norms(model, "0", lambda m: m(x).sum())
    first = layer(x)
    second = layer(torch.tanh(first))
    assert found["output_norm/0"] == pytest.approx(torch.cat([first, second]).norm().item(), rel=1e-6)


@pytest.mark.parametrize("inplace", [False, True])
def test_work_in_place_after_a_module_changes_nothing(inplace):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=inplace), nn.Linear(4, 1)), torch.randn(5, 4)
    found = norms(model, "*", lambda m: m(x).sum())
    pre = model[0](x).detach().requires_grad_()
    model[2](torch.relu(pre)).sum().backward()
    assert found["output_norm/0"] == pytest.approx(pre.norm().item(), rel=1e-6)
    assert found["input_norm/1"] == found["output_norm/0"]
    assert found["output_grad_norm/0"] == pytest.approx(pre.grad.norm().item(), rel=1e-6)
    assert found["input_grad_norm/1"] == pytest.approx(pre.grad.norm().item(), rel=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_activations_and_gradients_count_once(reentrant):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model, x = Net(), torch.randn(3, 4, requires_grad=True)
    rules = [Watch(modules="block.*", tensors=["output", "output_grad"], stats=["norm"])]
    with instrument(model, [StatsMonitor(rules)]) as watched:
        model(x).sum().backward()
        watched.step()
    found = watched.latest
    a = model.block[0](x).detach().requires_grad_()
    model.block[2](torch.tanh(a)).sum().backward()
    assert found["output_norm/block.0"] == pytest.approx(a.norm().item(), rel=1e-6)
    assert found["output_grad_norm/block.0"] == pytest.approx(a.grad.norm().item(), rel=1e-6)


def test_nested_results_parts_keywords_and_integers():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.heads = Heads()

        def forward(self, ids):
            return self.heads(hidden=self.embed(ids))

    class Heads(nn.Module):
        def forward(self, *, hidden):
            return {"logits": 2 * hidden, "rest": [hidden + 1, torch.arange(3), None]}

    model, ids = Net(), torch.tensor([1, 2])
    tensors = ("input", "input.hidden", "output", "output.logits", "output.rest[0]", "output.nothing")
    with pytest.warns(
        UserWarning, match="^watch: 'output.nothing' was not found at embed .nor at heads., which has one tensor: "
    ):
        found = norms(model, "*", lambda m: m(ids)["logits"].sum(), tensors=tensors)
    hidden = model.embed(ids)
    assert "input_norm/embed" not in found  # integers
    assert "output.nothing_norm/heads" not in found
    assert found["input_norm/heads"] == found["input.hidden_norm/heads"] == pytest.approx(hidden.norm().item())
    assert found["output.logits_norm/heads"] == pytest.approx(2 * hidden.norm().item())
    assert found["output.rest[0]_norm/heads"] == pytest.approx((hidden + 1).norm().item())
    assert found["output_norm/heads"] == pytest.approx(torch.cat([2 * hidden, hidden + 1]).norm().item())


def test_a_tensor_that_is_given_or_returned_several_times_counts_once():
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.MultiheadAttention(4, 2, batch_first=True)
            self.last = Pair()

        def forward(self, x):
            mixed, _ = self.heads(x, x, x, need_weights=False)
            return self.last(mixed)[0]

    class Pair(nn.Module):
        def forward(self, x):
            y = 2 * x
            return y, {"again": y, "more": y + 1}

    model, x = Attend(), torch.randn(2, 3, 4, requires_grad=True)
    for tensors in (EVERY_TENSOR, ["output"]):  # A module of which only the output is read has a plain hook.
        found = norms(model, ["heads", "last"], lambda m: m(x).sum(), tensors)
        mixed = model.heads(x, x, x, need_weights=False)[0]
        assert found["output_norm/last"] == pytest.approx(torch.cat([2 * mixed, 2 * mixed + 1]).norm().item(), rel=1e-6)
        if "input" in tensors:
            assert found["input_norm/heads"] == pytest.approx(x.norm().item(), rel=1e-6)
            assert found["input_grad_norm/heads"] == pytest.approx(torch.autograd.grad(mixed.sum() * 2, x)[0].norm().item())


def test_a_parameter_handed_through_collects_no_hooks():
    class Hands(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.inner = Inner()

        def forward(self):
            return self.inner(self.weight).sum()

    class Inner(nn.Module):
        def forward(self, x):
            return x

    model = Hands()
    with instrument(model, [StatsMonitor([Watch(modules="inner", tensors="output_grad", stats="norm")])]) as watched:
        for _ in range(4):
            model().backward()
            assert len(model.weight._backward_hooks) == 1
            watched.step()
            assert watched.latest["output_grad_norm/inner"] == pytest.approx(3**0.5)
    assert not model.weight._backward_hooks


def test_a_gradient_of_none_is_passed_over():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    model = nn.Sequential(nn.Linear(2, 2))
    found = norms(model, "0", lambda m: Nothing.apply(m(torch.ones(1, 2))).sum() + m[0].bias.sum(), ("output_grad",))
    assert "output_grad_norm/0" not in found


def test_it_is_entered_once():
    """The consumers are closed with the loop, so the steps of a second loop would be lost."""
    model = nn.Sequential(nn.Linear(2, 2))
    watched = instrument(model, [StatsMonitor([Watch(modules="0", tensors="output")])])
    with watched:
        model(torch.ones(1, 2))
        watched.step()
        with pytest.raises(RuleError, match="^instrument: it can be entered once"):
            watched.__enter__()
        model(torch.ones(1, 2))
        watched.step()
    assert watched.view.step == 1
    with pytest.raises(RuleError, match="^instrument: it can be entered once"), watched:
        pass
    assert_no_hooks(model)


def test_a_validation_inside_paused_is_no_part_of_the_next_step():
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rules = [Watch(modules="0", tensors="output", stats="norm")]
    with instrument(
        model,
        [StatsMonitor(rules), ActivationTransforms([Apply(Scale(2.0), modules="0", tensor="output")])],
        optimizer=optimizer,
    ) as watched:
        for x in torch.randn(2, 3, 2):
            model(x).sum().backward()
            optimizer.step()
            assert watched.latest["output_norm/0"] == pytest.approx(nn.functional.linear(x, *model.parameters()).norm().item())
            with paused(model), torch.no_grad():
                assert torch.equal(model(100 * x), nn.functional.linear(100 * x, *model.parameters()))


@pytest.mark.parametrize("unscaled", [True, False])
def test_gradients_that_a_fused_optimizer_gets_scaled_are_refused(unscaled):
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    rules = [Watch(params="*", tensors=["grad", "update"], stats="norm")]
    with instrument(
        model, [StatsMonitor(rules), GradientTransforms([Apply(ClipByGlobalNorm(1.0), params="*")])], optimizer=optimizer
    ) as watched:
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        if not unscaled:
            with pytest.raises(UnsupportedError, match="^instrument: the gradients are still multiplied .* scaler.unscale_"):
                scaler.step(optimizer)
            return
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
    assert watched.latest["grad_norm/0.weight"] == pytest.approx(2.0)
    assert watched.latest["update_norm/0.weight"] == pytest.approx(2.0 / 6.0**0.5)


def train(model, steps, *callbacks, accumulate=1):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loop():
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(accumulate):
                model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()

    if not callbacks:
        loop()
        return None
    with instrument(model, callbacks, optimizer=optimizer) as watched:
        loop()
    return watched


@pytest.mark.parametrize("accumulate", [1, 3])
def test_weights_are_bit_identical_with_everything_watched(accumulate):
    plain = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.LayerNorm(16), Attention16())
    other = copy.deepcopy(plain)
    everything = StatsMonitor(
        [
            Watch(modules=["*", "!*.out_proj"], tensors=EVERY_TENSOR, stats=["norm", "histogram", "p50"]),
            Watch(params="*", tensors=["param", "grad", "final_grad", "update"], stats=["ratio", "histogram", "std"]),
        ]
    )
    train(plain, 20, accumulate=accumulate)
    train(other, 20, everything, accumulate=accumulate)
    for a, b in zip(plain.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


class Attention16(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)

    def forward(self, x):
        x = x.unsqueeze(0)
        return self.attn(x, x, x)[0]


def test_the_tensors_of_a_parameter():
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before, x = model.weight.detach().clone(), torch.randn(4, 3)
    rules = [
        Watch(params="weight", tensors=["param", "grad", "final_grad", "update"], stats=["norm"]),
        Watch(params="weight", tensors="update", stats="ratio"),
    ]
    clips = GradientTransforms([Apply(ClipByGlobalNorm(max_norm=0.1), params="*")])
    with instrument(model, [StatsMonitor(rules), clips], optimizer=optimizer) as watched:
        for half in x.split(2):
            model(half).sum().backward()
        optimizer.step()
    found, grad = watched.latest, x.sum(0)
    clipped = grad * (0.1 / (grad.norm() + 1e-6)).clamp(max=1)
    assert found["param_norm/weight"] == pytest.approx(before.norm().item())
    assert found["grad_norm/weight"] == pytest.approx(grad.norm().item())
    assert found["final_grad_norm/weight"] == pytest.approx(clipped.norm().item())
    assert found["update_norm/weight"] == pytest.approx(0.5 * clipped.norm().item(), rel=1e-5)
    assert found["update_ratio/weight"] == pytest.approx(found["update_norm/weight"] / found["param_norm/weight"])
    assert found["transform_norm_before/0_ClipByGlobalNorm"] == pytest.approx(grad.norm().item())
    assert found["transform_norm_after/0_ClipByGlobalNorm"] == pytest.approx(0.1, rel=1e-4)
    assert found["transform_cosine/0_ClipByGlobalNorm"] == pytest.approx(1.0)
    assert found["transform_acted/0_ClipByGlobalNorm"] == 1.0


@pytest.mark.parametrize("tensor", ["output_grad", "input_grad"])
def test_the_gradient_through_a_module_is_changed_and_seen(tensor):
    torch.manual_seed(0)
    model, x = Residual(nn.Linear(4, 4)), torch.randn(3, 4)
    rule = Apply(Scale(factor=3.0), modules="inner", tensor=tensor)
    with instrument(
        model, [StatsMonitor([Watch(modules="inner", tensors=tensor, stats="norm")]), GradientTransforms([rule])]
    ) as watched:
        model(x).sum().backward()
        watched.step()
    h = model.first(x).detach()
    through = torch.ones(3, 4) @ model.inner.weight.detach()
    expected = torch.ones_like(h) + 3 * through
    torch.testing.assert_close(model.first.weight.grad, expected.T @ x)
    seen = torch.ones(3, 4) if tensor == "output_grad" else through
    assert watched.latest[f"{tensor}_norm/inner"] == pytest.approx(seen.norm().item())  # the watch comes first
    assert watched.latest["transform_norm_after/0_Scale"] == pytest.approx(3 * seen.norm().item())


def spoil(grad):
    return grad.mul_(2)


def test_a_gradient_changed_in_place_in_backward_raises():
    model = nn.Linear(2, 1)
    rule = Apply(Function(call=spoil), params="weight", when="backward")
    with (
        pytest.raises(InPlaceError, match=r"^apply\[0\].transform \(Function\) changed the gradient of weight in place"),
        instrument(model, [GradientTransforms([rule])]),
    ):
        model(torch.ones(1, 2)).sum().backward()
    assert_no_hooks(model)


def test_an_optimizer_that_steps_again_before_the_others_ends_the_step():
    seen = {}

    class Seen(StepConsumer):
        def consume(self, view):
            updates = view.stat("update", "norm")
            seen[view.step] = [name for name, there in zip(updates.names, updates.measured, strict=True) if there]

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    often, seldom = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model)
    watch = [Watch(params="*.weight", tensors="update", stats="norm")]
    with instrument(model, [StatsMonitor(watch, consumers=[Seen()])], optimizer=[often, seldom]):
        for number in range(4):
            model(torch.ones(1, 2)).sum().backward()
            often.step()
            if number % 2:
                seldom.step()
    assert seen == {0: ["0.weight"], 1: ["0.weight", "1.weight"], 2: ["0.weight"], 3: ["0.weight", "1.weight"]}


def test_refusals():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuleError, match=r"^watch\[0\].tensors: 'update' is only seen with an optimizer"):
        instrument(model, [StatsMonitor([Watch(params="*", tensors="update")])])
    with pytest.raises(RuleError, match=r"^apply\[0\].when: 'step' needs an optimizer"):
        instrument(model, [GradientTransforms([Apply(Scale(2.0), params="*")])])
    with pytest.raises(RuleError, match=r"^hooks\[0\].kind: 'optimizer_step_post' needs an optimizer"):
        instrument(model, [CustomHooks([Hook(print, kind="optimizer_step_post")])])
    with pytest.raises(RuleError, match=r"^apply\[0\].stages: instrument knows one stage, 'train'; got \['validate'\]"):
        instrument(
            nn.Sequential(model), [ActivationTransforms([Apply(Scale(2.0), modules="0", tensor="output", stages=["validate"])])]
        )
    with pytest.raises(RuleError, match=r"^apply\[0\]: ClipByGlobalNorm needs all gradients at once"):
        instrument(model, [GradientTransforms([Apply(ClipByGlobalNorm(max_norm=1.0), params="*", when="backward")])])
    with instrument(model, [StatsMonitor([Watch(params="*")])], optimizer=optimizer) as watched:
        with pytest.raises(RuleError, match=r"^step\(\) is for loops without an optimizer"):
            watched.step()
        with pytest.raises(UnsupportedError, match="the optimizer got a closure"):
            optimizer.step(lambda: model(torch.ones(1, 2)).sum())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("callback", "place"),
    [
        (StatsMonitor([Watch(params="*", tensors="grad")]), r"watch\[0\]"),
        (GradientTransforms([Apply(ClipByGlobalNorm(1.0), params="*")]), r"apply\[0\]"),
        (CustomHooks([Hook(print, params="*", kind="post_accumulate_grad")]), r"hooks\[0\]"),
    ],
    ids=["watch", "apply", "hooks"],
)
def test_parameters_that_fsdp_has_flattened_are_refused(sharded, callback, place):
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    with pytest.raises(
        UnsupportedError, match=rf"^{place}\.params: '\S+' is part of a FullyShardedDataParallel .*; use fully_shard"
    ):
        instrument(sharded, [callback], optimizer=optimizer)
    rules = [Watch(modules="*.0", tensors=["output", "output_grad"], stats="norm"), Watch(params="head.*", tensors="grad")]
    with instrument(sharded, [StatsMonitor(rules)], optimizer=optimizer) as watched:
        sharded(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert watched.latest.keys() > {"output_norm/body.0", "output_grad_norm/body.0", "grad_norm/head.weight"}
    assert_no_hooks(sharded)


@pytest.fixture
def sharded():
    """A model whose first half is under FSDP1, in a group of one process."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # FSDP1 warns that a group of one process does not shard.
            body = FullyShardedDataParallel(nn.Sequential(nn.Linear(3, 2)), device_id=torch.device("cpu"))
        yield nn.Sequential(OrderedDict(body=body, head=nn.Linear(2, 1)))
    finally:
        torch.distributed.destroy_process_group()


def test_a_compiled_step_of_the_optimizer_is_watched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    rules = [Watch(params="*", tensors=["grad", "final_grad", "update"], stats="norm")]
    seen = []
    for compiled in (False, True):
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        with instrument(
            twin,
            [
                StatsMonitor(rules, consumers=[steps := _Steps()]),
                GradientTransforms([Apply(ClipByGlobalNorm(0.5), params="*")]),
            ],
            optimizer=optimizer,
        ):
            for _ in range(3):
                optimizer.zero_grad()
                twin(torch.ones(2, 3)).sum().backward()
                step()
        seen.append(
            [[view.step, view.summaries["run/grad_norm"], *view.stat("update", "norm").values.tolist()] for view in steps.views]
        )
        seen.append([parameter.flatten().tolist() for parameter in twin.parameters()])
    assert len(seen[0]) == 3
    # The compiled steps of torch 2.10 and 2.11 round otherwise than the eager one.
    error = 1e-6 if torch.__version__.startswith(("2.10.", "2.11.")) else 0.0
    for plain, compiled in zip(itertools.chain(*seen[:2]), itertools.chain(*seen[2:]), strict=True):
        assert plain == pytest.approx(compiled, rel=error, abs=0.0)


@pytest.mark.parametrize(("begins", "said"), [("", 1), (".start()", 0)])
def test_a_script_that_ends_without_beginning_a_block_is_told(begins, said):
    script = f"from torch import nn; from lightning_hooks import instrument; watched = instrument(nn.Linear(1, 1)){begins}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.count("UserWarning: instrument: a block was never entered, and nothing was watched; ") == said


def test_what_is_no_model_and_no_optimizer_is_refused():
    model = nn.Linear(1, 1)
    for wrong in (5, [5], model, model.parameters(), [torch.optim.SGD(model.parameters()), None]):
        with pytest.raises(RuleError, match="^optimizer must be a torch optimizer, or a list of them, got "):
            instrument(model, [StatsMonitor()], optimizer=wrong)
    with pytest.raises(RuleError, match=r"^model must be a torch.nn.Module, got \[\]$"):
        instrument([], [StatsMonitor()])


def test_several_optimizers_each_at_its_own_step():
    model = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    a, b = (torch.optim.SGD(model[name].parameters(), lr=lr) for name, lr in (("a", 0.1), ("b", 0.2)))
    with instrument(model, [StatsMonitor([Watch(params="*", tensors="update", stats="mean")])], optimizer=[a, b]) as watched:
        for _ in range(2):
            (model["a"](torch.ones(1, 1)) + model["b"](torch.ones(1, 1))).sum().backward()
            a.step()
            a.zero_grad()
            b.step()
            b.zero_grad()
            assert watched.latest["update_mean/a.weight"] == pytest.approx(-0.1)
            assert watched.latest["update_mean/b.weight"] == pytest.approx(-0.2)


def test_nothing_is_left_after_an_exception_a_pause_and_a_lost_instrument():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(ZeroDivisionError), instrument(model, [StatsMonitor([Watch(modules="*")])]):
        model(torch.ones(1, 2))
        raise ZeroDivisionError
    assert_no_hooks(model)
    with instrument(model, [StatsMonitor([Watch(modules="*")])]):
        with pytest.raises(HooksLeftError, match="hooks of lightning_hooks are left on module 0, module 1"):
            assert_no_hooks(model)
        with paused(model):
            assert_no_hooks(model)
        with pytest.raises(HooksLeftError):
            assert_no_hooks(model)
    lost = instrument(model, [StatsMonitor([Watch(modules="*")])])
    lost.__enter__()
    del lost
    gc.collect()
    assert_no_hooks(model)


@pytest.mark.parametrize("tensors", [["output"], ["input", "output_grad"]], ids=["plain", "general"])
def test_a_lost_instrument_leaves_nothing_on_parts_that_outlive_their_model(tensors):
    backbone = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(backbone, nn.Linear(2, 1))
    lost = instrument(model, [StatsMonitor([Watch(modules="*", tensors=tensors)])])
    lost.__enter__()
    known = weakref.ref(model)
    del lost, model
    gc.collect()
    assert known() is None
    assert_no_hooks(backbone)


def test_an_interruption_while_hooks_are_taken_off_leaves_none_of_the_others(monkeypatch):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    watched = instrument(model, [StatsMonitor([Watch(modules="*", tensors=["output"]), Watch(modules="1", tensors="input")])])
    watched.__enter__()
    taken = []

    def interrupted(self):
        taken.append(self)
        if len(taken) == 1:
            raise KeyboardInterrupt
        return remove(self)

    remove = RemovableHandle.remove
    monkeypatch.setattr(RemovableHandle, "remove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watched.__exit__(None, None, None)
    assert not model[1]._forward_pre_hooks
    del watched
    gc.collect()
    assert_no_hooks(model)


def test_copies_of_a_watched_module_work_and_measure_nothing():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with instrument(model, [StatsMonitor([Watch(modules="*", tensors=EVERY_TENSOR, stats="norm")])]) as watched:
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for other in copies:
            assert_no_hooks(other)
            other(torch.ones(1, 2)).sum().backward()
        model(torch.zeros(1, 2)).sum().backward()
        watched.step()
    assert watched.latest["input_norm/0"] == 0.0


@pytest.mark.parametrize("stat", ["abs_mean", "underflow_fraction"])
@pytest.mark.parametrize("group_by", [None, ["*"]], ids=["each", "merged"])
def test_what_costs_extra_is_measured_wherever_a_rule_asks_for_it(stat, group_by):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    rules = [
        Watch(modules="*", tensors="output", stats="std"),
        Watch(params="*", tensors=["param", "grad"], stats=stat, group_by=group_by),
    ]
    with instrument(model, [StatsMonitor(rules)]) as watched:
        model(torch.randn(3, 4)).sum().backward()
        watched.step()
    values = {tag: value for tag, value in watched.latest.items() if stat in tag}
    gradients = [p.grad.double().abs() for p in model.parameters()]
    assert len(values) == (2 if group_by else 4)
    assert all(value == value for value in values.values())
    if stat == "abs_mean" and group_by:
        assert values["grad_abs_mean/*"] == pytest.approx(torch.cat([g.flatten() for g in gradients]).mean().item())


def test_in_a_plain_loop_hooks_are_away_in_steps_that_nobody_watches():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [Watch(modules="*", tensors=["output", "input_grad"], every_n_steps=2), Watch(params="*", every_n_steps=2)]
    with instrument(model, [StatsMonitor(rules)], optimizer=optimizer):
        for _ in range(3):
            assert_no_hooks(model)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    assert_no_hooks(model)


def test_a_copy_of_a_watched_module_is_read_where_the_package_is_missing(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with instrument(model, [StatsMonitor([Watch(modules="*", tensors=EVERY_TENSOR, stats="norm")])]):
        torch.save(model, tmp_path / "model.pt")
    code = "import sys; sys.modules['lightning_hooks'] = None; import torch; "
    code += "torch.load(sys.argv[1], weights_only=False)(torch.ones(1, 2)).sum().backward()"
    done = forked.run(["-c", code, str(tmp_path / "model.pt")])
    assert done.returncode == 0, done.stderr


class _Notes(StepConsumer):
    def __init__(self) -> None:
        self.closed_with: list[BaseException | None] = []

    def consume(self, view) -> None:
        pass

    def close(self, error: BaseException | None) -> None:
        self.closed_with.append(error)


class _NoFile(_Notes):
    def start(self, rows, run) -> None:
        raise OSError("no such file")


def test_where_a_consumer_cannot_start_those_that_have_are_closed():
    started, model = _Notes(), nn.Sequential(nn.Linear(1, 1))
    with (
        pytest.raises(OSError, match="no such file") as raised,
        instrument(model, [StatsMonitor(consumers=[started, failing := _NoFile()])]),
    ):
        pass
    assert started.closed_with == [raised.value]
    assert failing.closed_with == []
    assert_no_hooks(model)


class _Steps(_Notes):
    """Keeps the views, and raises at some steps."""

    def __init__(self, *fails: int) -> None:
        super().__init__()
        self.views, self.fails = [], fails

    def consume(self, view) -> None:
        self.views.append(view)
        if view.step in self.fails:
            raise OSError("full")


def test_a_loop_that_goes_on_after_a_consumer_failed_goes_on_with_the_next_step():
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rules, failed = [Watch(params="*", tensors="grad", stats="norm")], 0
    with instrument(model, [StatsMonitor(rules, consumers=[steps := _Steps(1)])], optimizer=optimizer):
        for i in range(4):
            optimizer.zero_grad()
            (model(torch.ones(1)) * float(i + 1)).sum().backward()
            try:
                optimizer.step()
            except OSError:
                failed += 1
    assert failed == 1
    norms = [(view.step, view.stat("grad", "norm").values.tolist()) for view in steps.views]
    assert norms == [(i, [i + 1.0]) for i in range(4)]
    assert_no_hooks(model)


def assigned(model):
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


def replaced_by_hand(model):
    model[0].weight, model[1].bias = nn.Parameter(model[0].weight.detach().clone()), nn.Parameter(torch.ones(1))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("replace", [assigned, replaced_by_hand])
def test_parameters_that_the_loop_replaces_keep_their_rows_and_rules(replace, several):
    """Rules act from the step at which the optimizer holds the new parameters, and rules in backward from the next step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    parts = list(model) if several else [model]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9) for part in parts]
    rules = [Watch(params="*", tensors=["param", "grad", "final_grad", "update"], stats="norm")]
    applies = [Apply(Scale(0.5), params="*.weight"), Apply(Scale(0.5), params="*.bias", when="backward")]
    expected = []
    with instrument(
        model, [StatsMonitor(rules, consumers=[steps := _Steps()]), GradientTransforms(applies)], optimizer=optimizers
    ):
        for step in range(4):
            if step == 2:
                replace(model)
                for part, optimizer in zip(parts, optimizers, strict=True):
                    optimizer.param_groups[0]["params"] = list(part.parameters())
            output = model(torch.randn(5, 3)).square().mean()
            grads = torch.autograd.grad(output, list(model.parameters()), retain_graph=True)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            for optimizer in optimizers:
                optimizer.zero_grad()
            output.backward()
            for optimizer in optimizers:
                optimizer.step()
            for name, parameter, old, grad in zip(
                dict(model.named_parameters()), model.parameters(), before, grads, strict=True
            ):
                halved = 0.5 if name.endswith("weight") else 1.0
                expected += [(step, "param", name, old.norm()), (step, "update", name, (parameter.detach() - old).norm())]
                expected += [(step, "final_grad", name, grad.norm() * halved)]
    assert [view.step for view in steps.views] == [0, 1, 2, 3]
    for step, tensor, name, value in expected:
        series = steps.views[step].stat(tensor, "norm")
        assert series.values[series.names.index(name)] == pytest.approx(value.item(), rel=1e-5), (step, tensor, name)
    assert_no_hooks(model)


def swapped(module):
    """Another module with the parameters and the hooks of the given one, as quantization creates."""
    new = nn.Linear(module.in_features, module.out_features)
    new.weight, new.bias = module.weight, module.bias
    for hook in module._forward_hooks.values():
        new.register_forward_hook(hook)
    return new


def test_modules_that_are_swapped_in_a_pause_are_watched_at_once_and_once():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    with instrument(
        model, [StatsMonitor([Watch(modules="*", tensors="output", stats="norm")], consumers=[steps := _Steps()])]
    ) as watched:
        for step in range(3):
            if step == 1:
                with paused(model):
                    model[0] = swapped(model[0])
            model(torch.ones(5, 3)).sum().backward()
            watched.step()
    assert [view.stat("output", "count").values.tolist() for view in steps.views] == [[10.0, 5.0]] * 3
    assert_no_hooks(model)


def test_the_step_after_one_that_ended_in_a_pause_is_watched():
    model = nn.Sequential(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [Watch(modules="0", tensors="output", stats="norm"), Watch(params="*", tensors=["grad", "update"], stats="norm")]
    with instrument(model, [StatsMonitor(rules, consumers=[steps := _Steps()])], optimizer=optimizer) as watched:
        for step in range(4):
            pause = paused(model) if step == 1 else contextlib.nullcontext()
            with pause:
                optimizer.zero_grad()
                model(torch.ones(5, 3)).sum().backward()
                optimizer.step()
        assert watched.view.step == 3
    counts = {
        view.step: [view.stat(tensor, "count").values.sum() for tensor in ("output", "grad", "update")] for view in steps.views
    }
    assert counts == {0: [5.0, 4.0, 4.0], 1: [0.0, 0.0, 0.0], 2: [5.0, 4.0, 4.0], 3: [5.0, 4.0, 4.0]}
    assert_no_hooks(model)


def largest(tensor):
    return tensor.max()


def numbers_of(device):
    """The statistics of two steps on the CPU, while torch creates new tensors on another device."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["count"] = 3
    rules = [
        Watch(modules="*", tensors=["output", "output_grad"], stats=["norm", "p50", largest]),
        Watch(params="*", tensors="grad", stats=["norm", "cosine", "noise_scale"], group_by={"all": "*"}),
        Watch(params="*", tensors=["update", "state.momentum_buffer", "state.count"], stats=["norm", "histogram"]),
    ]
    applies = [Apply([ClipByGlobalNorm(0.1), Scale(0.5)], params="*"), Apply(Scale(0.5), modules="0")]
    with (
        torch.device(device),
        instrument(model, [StatsMonitor(rules), GradientTransforms(applies)], optimizer=optimizer) as watched,
    ):
        for _ in range(2):
            optimizer.zero_grad()
            model(batch).square().mean().backward(torch.ones((), device="cpu"))
            optimizer.step()
        return watched.latest


def test_where_torch_makes_new_tensors_by_default_changes_no_number():
    numbers = numbers_of("cpu")
    assert numbers["state.count_norm/0.bias"] == 3.0 and "transform_cosine/0_ClipByGlobalNorm" in numbers
    assert numbers_of("meta") == numbers


class _Augmented(Mapping[str, torch.Tensor]):
    """Computes an item whenever it is read, with random numbers."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.x + torch.rand_like(self.x)

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


class _Augments(nn.Module):
    def forward(self, x: torch.Tensor) -> _Augmented:
        return _Augmented(x)


class _Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, items: _Augmented) -> torch.Tensor:
        result: torch.Tensor = self.linear(items["x"])
        return result


def test_a_mapping_that_computes_its_items_gives_the_weights_of_an_unwatched_run() -> None:
    def trained(*watch: Watch) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(_Augments(), _Reads())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with instrument(model, StatsMonitor(watch), optimizer=optimizer) if watch else contextlib.nullcontext():
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
        return model[1].linear.weight.detach()

    tensors = ["input", "output", "input_grad", "output_grad"]
    assert torch.equal(trained(Watch(modules="*", tensors=tensors)), trained())
    with pytest.warns(
        UserWarning, match="output.x' was not found at 0, which has a _Augmented, a mapping that may compute its"
    ):
        named = trained(Watch(modules="0", tensors=["output.x"]))
    assert torch.equal(named, trained())


def test_the_optimizer_of_another_model_is_refused():
    model, other = nn.Sequential(nn.Linear(2, 1)), nn.Linear(2, 1)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    foreign = torch.optim.AdamW(other.parameters(), lr=0.1)
    message = "AdamW holds none of the 2 parameters of Sequential; give the optimizer of this model"
    with pytest.raises(RuleError, match=f"^optimizer: {message}"):
        instrument(model, [StatsMonitor([Watch(params="*")])], optimizer=foreign)
    with pytest.raises(RuleError, match=rf"^optimizer\[1\]: {message}"):
        instrument(model, [StatsMonitor([Watch(params="*")])], optimizer=[own, foreign])
    assert_no_hooks(model)


def test_an_optimizer_may_hold_more_than_the_model_and_be_of_a_wrapper():
    model, loss = nn.Sequential(nn.Linear(2, 1)), nn.Linear(1, 1)
    shared = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    for watched in (model, nn.ModuleList([model, loss]), nn.DataParallel(model), torch.compile(model)):
        instrument(watched, [StatsMonitor([Watch(params="*")])], optimizer=shared)
    # A module without parameters is accepted: it may be used in a functional call.
    instrument(nn.Sequential(nn.ReLU()), [StatsMonitor([Watch(modules="*")])], optimizer=shared)
    late = torch.optim.SGD([{"params": []}], lr=0.1)
    instrument(model, [StatsMonitor([Watch(params="*")])], optimizer=late)


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_after_the_block_the_object_has_the_last_step_and_holds_neither_model_nor_optimizer(with_optimizer, fails):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if with_optimizer else None
    rules = [Watch(modules="*", tensors=["output", "output_grad"]), Watch(params="*", tensors=["param", "grad"])]
    transforms = [Apply(Scale(0.5), params="*", when="backward")]
    hooks = [Hook(lambda module, args, output: None, kind="forward", modules="0")]
    with contextlib.suppress(ZeroDivisionError):
        with instrument(
            model, [StatsMonitor(rules), GradientTransforms(transforms), CustomHooks(hooks)], optimizer=optimizer
        ) as watched:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step() if optimizer is not None else watched.step()
            _ = 1 / (not fails)
    assert watched.model is model and watched.optimizers == []
    known = [weakref.ref(each) for each in (model, model[0].weight, *([optimizer] if optimizer is not None else []))]
    del model, optimizer
    gc.collect()
    assert [each() for each in known] == [None] * len(known)
    assert watched.view.step == 0 and "grad_norm/0.weight" in watched.latest
    with pytest.raises(RuleError, match="the model is gone; after the with block the object does not keep it alive"):
        _ = watched.model
    with pytest.raises(RuleError, match="step.. was called after the with block"):
        watched.step()


class _Acts(StepConsumer):
    """Does something with the run at a step."""

    def __init__(self, at, does) -> None:
        self.at, self.does = at, does

    def start(self, rows, run) -> None:
        self.run = run

    def consume(self, view) -> None:
        if view.step == self.at:
            self.does(self.run)


def _loop(consumer, steps=4, **options):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.25)
    done = 0
    with instrument(
        model, [StatsMonitor([Watch(params="*", tensors="grad")], consumers=[consumer])], optimizer=optimizer, **options
    ) as watched:
        for _ in range(steps):
            if watched.stopped:
                break
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            done += 1
    return done, watched.stopped


def test_a_loop_sees_that_a_consumer_asked_to_stop():
    def stop(run):
        run.stop("too large")
        run.stop("another reason")

    assert _loop(_Acts(1, stop)) == (2, "too large")
    assert _loop(_Acts(9, stop)) == (4, None)


def test_a_consumer_cannot_save_what_only_the_loop_knows():
    with pytest.raises(
        UnsupportedError, match="save_checkpoint: instrument does not know what the loop would save as 'a.ckpt'"
    ):
        _loop(_Acts(0, lambda run: run.save_checkpoint("a")))
    with pytest.raises(RuleError, match="save_checkpoint: name must be the name of a file"):
        _loop(_Acts(0, lambda run: run.save_checkpoint("a/b")))


def test_a_consumer_gets_the_folder_that_the_user_gave(tmp_path):
    for folder, wanted in ((None, None), (tmp_path, tmp_path), (str(tmp_path), tmp_path)):
        _loop(acts := _Acts(0, print), folder=folder)
        assert acts.run.folder == wanted
    with pytest.raises(RuleError, match="folder must be a folder of this machine, got 's3://runs'"):
        _loop(_Acts(0, print), folder="s3://runs")


def test_the_facts_of_a_loop_are_those_of_its_optimizer():
    found = []
    _loop(_Acts(0, lambda run: found.append(run.facts)))
    (facts,) = found
    ((kind, (group,)),) = [(each.type, each.groups) for each in facts.optimizers]
    assert kind == "SGD" and (group.lr, group.weight_decay, group.params) == (0.5, 0.25, ("weight", "bias"))
    assert (facts.precision, facts.accumulate, facts.rank, facts.ranks, facts.loss_scale) == (None, None, 0, 1, None)


def test_it_can_be_started_and_closed_by_calls():
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watched = instrument(model, [StatsMonitor([Watch(modules="0", tensors="output")])], optimizer=optimizer).start()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(RuleError, match="it can be entered once"):
        watched.start()
    watched.close()
    watched.close()
    assert watched.view.step == 0 and "output_mean/0" in watched.latest
    assert_no_hooks(model)


STARTED = """
import torch
from lightning_hooks import HealthMonitor, StatsMonitor, instrument
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
instrument(model, [StatsMonitor(), HealthMonitor()], optimizer=optimizer, logdir="runs").start()
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_what_nobody_holds_or_closes_is_closed_at_the_end_of_the_process(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STARTED)
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "No problem found in 3 steps; the loss went from " in ended.stderr
    assert "`check` looks further. Page: lightning-hooks view runs/run_0" in ended.stderr
