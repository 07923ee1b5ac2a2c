"""What autograd makes of a graph: in-place work, views, expanded gradients, tensors handed through, nests and None."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms, StatsMonitor
from lightning_hooks.hooks import OurHook
from lightning_hooks.transforms import Context, Scale, Transform
from tests.callbacks.models import Net, data, plain_sgd, trainer_of
from tests.conformance._tools import Book, Spy, everything, floating, same_weights, three_runs, truth

FORWARD = ("output", "output_grad", "param", "grad", "final_grad", "update")


class Base(Net):
    def __init__(self) -> None:
        super().__init__(plain_sgd, dropout=0.0)


class InPlace(Base):
    """Work in place on what a linear layer, a convolution and a sum returned."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 6), nn.LeakyReLU(0.1, inplace=True))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x) * 2.0
        h += 1.0
        h.mul_(0.5)
        return self.head(h)


class Plain(InPlace):
    """The same without work in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body[1], self.body[3] = nn.ReLU(), nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.body(x) * 2.0 + 1.0) * 0.5)


class Reshape(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], 2, 3)


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class Views(Base):
    """A module returns a view of its input, another a slice of that; the rest of it is used too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.view, self.first, self.head = nn.Linear(6, 6), Reshape(), First(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.view(self.stem(x))
        return self.head(self.first(parts) + parts[:, 1].relu())


class Chunks(Base):
    """Views of one tensor, made by one operation: autograd forbids to change them in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.split, self.head = nn.Linear(6, 6), Split(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.split(self.stem(x))
        return self.head(a * b.sigmoid())


class Split(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.chunk(2, dim=1)


class Summed(Base):
    """The loss is a sum, so the gradients of the outputs are one number, expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.body(batch[0]).sum() / 10


class Parts(NamedTuple):
    first: Tensor
    others: list[Tensor | None]


@dataclass
class Out:
    logits: Tensor
    parts: dict[str, Any]
    loss: Tensor | None = None


class Nest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, extra: Any = None) -> Out:
        a, b = self.a(x), self.b(x)
        return Out(a * b, {"pair": Parts(a, [b, None]), "number": 3, "flag": torch.tensor([True, False])})


class Nested(Base):
    """Outputs in dataclasses, named tuples, dictionaries and lists, with None and integers among them."""

    def __init__(self) -> None:
        super().__init__()
        self.nest = nn.ModuleList([Nest()])
        self.returns_none = NoTensor()

    def forward(self, x: Tensor) -> Tensor:
        out = self.nest[0](x, mask=None, extra={"x": [1, "a"]})
        assert self.returns_none(out.logits) is None
        assert isinstance(out, Out) and isinstance(out.parts["pair"], Parts)
        return out.logits + out.parts["pair"].others[0]


class NoTensor(nn.Module):
    def forward(self, x: Tensor) -> None:
        return None


def test_work_in_place(tmp_path: Path) -> None:
    """The numbers are those of the model that does the same out of place; the hooks change nothing and nothing raises."""

    def run(*callbacks: Callback) -> InPlace:
        torch.manual_seed(0)
        model = InPlace()
        torch.manual_seed(1)
        trainer_of(tmp_path, *callbacks).fit(model, data(4))
        return model

    out_of_place = three_runs(tmp_path, Plain, lambda: data(4), tensors=FORWARD).book
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    rules = [Apply(Spy(), params="*"), Apply(Spy(), params="*", when="backward"), Apply(Spy(), modules="*")]
    bare = run()
    same_weights(bare, run(StatsMonitor(everything(), max_scalars=10**6)))
    same_weights(bare, run(monitor, GradientTransforms(rules), book))
    for step, rows in out_of_place.rows.items():
        for tag, value in rows.items():
            if tag.startswith(("input_grad_norm", "output_norm", "grad_norm", "update_norm")):
                assert book.rows[step][tag] == pytest.approx(value, rel=1e-5), tag


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step. body.")
@pytest.mark.parametrize("make", [Views, Chunks])
def test_views(tmp_path: Path, make: Any) -> None:
    """Several modules read one tensor, so the gradient of an input is no total; the engine's tests have it."""
    three_runs(tmp_path, make, lambda: data(4), tensors=FORWARD)


def test_expanded_gradients(tmp_path: Path) -> None:
    three_runs(tmp_path, Summed, lambda: data(4))


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step. body.")
def test_nested_outputs(tmp_path: Path) -> None:
    class Bare(Nested):
        pass

    def run(*callbacks: Any) -> Nested:
        torch.manual_seed(0)
        model = Bare()
        trainer_of(tmp_path, *callbacks).fit(model, data(3))
        return model

    kept: list[Out] = []
    grads: list[list[Tensor]] = []
    plain = run()
    monitor, spy = StatsMonitor(everything(), max_scalars=10**6), Spy()
    book = Book(monitor)

    class Keep(Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            def keep(module: Any, args: Any, out: Out) -> None:
                kept.append(out)
                grads.append([])
                for t in (out.logits, out.parts["pair"].first, out.parts["pair"].others[0]):
                    assert t is not None
                    t.register_hook(lambda g, to=grads[-1]: to.append(g.clone()))

            pl_module.nest[0].register_forward_hook(keep)

    rules = [Apply(Spy(), params="*"), Apply(Spy(), params="*", when="backward"), Apply(spy, modules="*")]
    same_weights(plain, run(Keep(), monitor, GradientTransforms(rules), book))
    for step, (out, flowed) in enumerate(zip(kept, grads, strict=True)):
        parts = [out.logits, out.parts["pair"].first, out.parts["pair"].others[0]]
        assert book.rows[step]["output_norm/nest.0"] == pytest.approx(truth([(t, 1.0) for t in parts]).stats["norm"], rel=1e-6)
        expected = truth([(t, 1.0) for t in flowed]).stats["norm"]
        assert book.rows[step]["output_grad_norm/nest.0"] == pytest.approx(expected, rel=1e-6)
        assert f"{len(spy.seen[step]['nest.0'])}" == "3"
    assert not book.steps_of("output_norm/returns_none") and book.steps_of("input_norm/returns_none") == [0, 1, 2]


class Handed(nn.Module):
    """Returns its own parameter, or its input, or both."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.prompt


class HandsThrough(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(6))
        self.handed, self.same, self.head = Handed(), nn.Identity(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, prompt = self.handed(x.requires_grad_(True))
        return self.head(self.same(x) * self.same(prompt))


class CountOnTensors(Callback):
    """How many hooks of ours the long-lived tensors carry after each batch."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        tensors = [*pl_module.parameters(), *getattr(pl_module, "inputs", [])]
        hooks = [hook for t in tensors for hook in (t._backward_hooks or {}).values()]
        self.counts.append(sum(isinstance(hook, OurHook) for hook in hooks))


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step. body.")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_outputs_that_are_inputs_or_parameters(tmp_path: Path, accumulate: int) -> None:
    """One batch, used again and again: its tensor lives as long as the parameters, and no hook piles up on either."""
    (batch,) = list(data(1))
    count = CountOnTensors()

    class Long(HandsThrough):
        inputs = [batch[0]]

        def training_step(self, _: Any, batch_idx: int) -> Tensor:
            return nn.functional.mse_loss(self(batch[0]), batch[1])

    def make() -> Long:
        batch[0].requires_grad_(False)
        batch[0].grad = None
        return Long()

    def run(*callbacks: Any) -> Any:
        torch.manual_seed(0)
        model = make()
        trainer_of(tmp_path, *callbacks, accumulate_grad_batches=accumulate).fit(model, data(9))
        return model

    plain = run()
    spy, monitor = Spy(), StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    rules = [Apply(Spy(), params="*"), Apply(Spy(), params="*", when="backward"), Apply(spy, modules="*")]
    same_weights(plain, run(monitor, GradientTransforms(rules), book, count))
    assert len(set(count.counts[accumulate - 1 :: accumulate])) == 1 and max(count.counts) <= min(count.counts) + 8
    for named in spy.seen.values():  # x and prompt in each call, of each micro-batch
        assert len(named["same"]) == len(named["handed"]) == 2 * accumulate
    assert not (batch[0]._backward_hooks or {})
    assert len(book.steps_of("output_grad_norm/same")) == 9 // accumulate


class Detached(Base):
    """Outputs that nobody uses, that are detached, or computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.cut, self.quiet, self.head = (nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.unused(x)
        with torch.no_grad():
            quiet = self.quiet(x)
        with torch.inference_mode():
            self.quiet(x)
        return self.head(self.cut(x).detach() + quiet)


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step. body.")
def test_outputs_without_a_gradient_have_no_row_of_one(tmp_path: Path) -> None:
    runs = three_runs(tmp_path, Detached, lambda: data(3))
    assert runs.book.steps_of("output_norm/unused") == [0, 1, 2]
    assert not runs.book.steps_of("output_grad_norm/cut") and not runs.book.steps_of("grad_norm/cut.weight")


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad, None


class HalfNone(Base):
    """A consumer whose backward returns None."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(NoGradient.apply(self.a(x), self.b(x)))


@pytest.mark.filterwarnings("ignore:matched modules were not called in the first step. body.")
def test_gradients_of_none_are_passed_over(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> Any:
        torch.manual_seed(0)
        model = HalfNone()
        trainer_of(tmp_path, *callbacks).fit(model, data(3))
        return model

    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    rules = [Apply(Scale(1.0), params="*", when="backward"), Apply(Scale(1.0), modules="*"), Apply(Scale(1.0), params="*")]
    same_weights(run(), run(monitor, GradientTransforms(rules), book))
    assert book.steps_of("output_grad_norm/a") == [0, 1, 2] and not book.steps_of("output_grad_norm/b")
    assert not book.steps_of("grad_norm/b.weight")


class Penalty(Base):
    """A gradient penalty: backward through a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0].requires_grad_(True)
        out = self.body(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return nn.functional.mse_loss(out, batch[1]) + grad.square().mean()


def test_a_gradient_penalty_goes_through_the_rules(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> Any:
        torch.manual_seed(0)
        model = Penalty()
        trainer_of(tmp_path, *callbacks).fit(model, data(3))
        return model

    monitor = StatsMonitor(everything(), max_scalars=10**6)
    same_weights(run(), run(monitor))
    assert monitor.latest["grad_norm/body.0.weight"] > 0
    rules = [Apply(Scale(1.0), modules="*"), Apply(Scale(1.0), params="*", when="backward"), Apply(Scale(1.0), params="*")]
    same_weights(run(), run(StatsMonitor(everything(), max_scalars=10**6), GradientTransforms(rules)))


class Keeps(Transform):
    """Keeps what it is given as it is."""

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        context.state["last"] = [tensor * 2 for tensor in tensors]
        return list(tensors)


def test_what_a_rule_keeps_from_a_double_backward_holds_no_graph(tmp_path: Path) -> None:
    rules = GradientTransforms([Apply(Keeps(), modules="body.0")])
    kept: list[Tensor] = []

    class Keep(Callback):
        def on_train_end(self, *args: Any) -> None:
            assert rules.participant is not None
            kept.extend(floating([link.context.state for link in rules.participant.transforms]))

    trainer_of(tmp_path, rules, Keep()).fit(Penalty(), data(3))
    assert kept and not any(tensor.requires_grad for tensor in kept)
