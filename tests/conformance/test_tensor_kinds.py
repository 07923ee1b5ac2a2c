"""Sparse, complex, double, integer and empty: each has a defined answer, or one warning."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.masked
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_hooks import ActivationCapture, ActivationTransforms, Apply, GradientTransforms, StatsMonitor, Watch
from lightning_hooks.transforms import ClipByGlobalNorm, Context, Scale, Transform
from tests.callbacks.models import trainer_of
from tests.conformance._tools import Book, everything, loader, randn, three_runs


class Model(LightningModule):
    optimizer: Any = torch.optim.SGD

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), lr=0.1)


# -- sparse ----------------------------------------------------------------------------------------------------------------


class Sparse(Model):
    """An embedding with sparse gradients; one index occurs twice, most rows do not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 4, sparse=True)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.embedding(batch).square().sum()


class SparseAndDense(Sparse):
    """With manual optimization, since SparseAdam takes sparse gradients only."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.head = nn.Linear(4, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:  # type: ignore[override]
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(self.head(self.embedding(batch)).square().mean())
        first.step()
        second.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SparseAdam(self.embedding.parameters()), torch.optim.AdamW(self.head.parameters())]


def indices() -> Any:
    return loader(*[torch.tensor([[1, 2, 2], [0, 5, 1 + i]]) for i in range(4)])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sparse_gradients_count_the_zeros_they_do_not_store(tmp_path: Path, accumulate: int) -> None:
    runs = three_runs(tmp_path, Sparse, indices, accumulate_grad_batches=accumulate)
    assert runs.book.values("grad_zero_fraction/embedding.weight")[0] >= 15 / 20


def test_sparse_gradients_in_manual_optimization_beside_dense_ones(tmp_path: Path) -> None:
    three_runs(tmp_path, SparseAndDense, indices)


@pytest.mark.parametrize("stage", ["step", "backward"])
def test_a_rule_changes_sparse_gradients(tmp_path: Path, stage: str) -> None:
    def run(rate: float, *callbacks: Any) -> Sparse:
        torch.manual_seed(0)
        model = Sparse()
        model.optimizer = lambda parameters, lr: torch.optim.SGD(parameters, lr=rate)
        trainer_of(tmp_path, StatsMonitor(), *callbacks).fit(model, indices())
        return model

    halved = run(0.1, GradientTransforms([Apply(Scale(0.5), params="*", when=stage)]))
    # Not the same bits: a rule adds up what is stored twice before the optimizer would.
    torch.testing.assert_close(halved.embedding.weight, run(0.05).embedding.weight, rtol=1e-6, atol=1e-7)


def test_sparse_and_dense_gradients_clipped_together(tmp_path: Path) -> None:
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    rules = GradientTransforms([Apply(ClipByGlobalNorm(0.01), params="*")])
    book = Book(monitor)
    trainer_of(tmp_path, rules, monitor, book).fit(Sparse(), indices())
    assert all(value <= 0.01 * (1 + 1e-5) for value in book.values("grad_norm/embedding.weight"))


# -- complex ---------------------------------------------------------------------------------------------------------------


class Complex(Model):
    """A complex weight and complex activations: a number counts as its real and its imaginary part."""

    def __init__(self, dtype: torch.dtype = torch.complex64) -> None:
        super().__init__()
        self.mix = Mix(dtype)
        self.out = nn.Linear(3, 1, dtype=torch.float64 if dtype is torch.complex128 else torch.float32)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.out(self.mix(batch.to(self.mix.weight.dtype)).abs()).square().mean()


class Mix(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_count_as_two(tmp_path: Path, dtype: torch.dtype, optimizer: Any) -> None:
    def make() -> Complex:
        model = Complex(dtype)
        model.optimizer = optimizer
        return model

    runs = three_runs(tmp_path, make, lambda: loader(*randn(4, 5, 3)))
    assert runs.book.counts("grad")["mix.weight"] == 18


# -- double ----------------------------------------------------------------------------------------------------------------


class Double(Model):
    """Numbers that float32 does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False, dtype=torch.float64)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return (self.layer(batch.double() * 1e-60) * 1e60).square().mean()


def test_double_precision_is_measured_as_such(tmp_path: Path) -> None:
    runs = three_runs(
        tmp_path, Double, lambda: loader(*randn(4, 5, 3)), tensors=["param", "grad", "final_grad", "update", "output"]
    )
    assert 0 < runs.book.rows[0]["input_norm/layer"] < 1e-55


# -- integers --------------------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.abs().long(), x > 0


class Integers(Model):
    """A module that returns whole numbers and truth values only."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.embedding = Tokens(), nn.Embedding(10, 4)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        tokens, positive = self.tokens(batch)
        return (self.embedding(tokens) * positive[..., None]).square().sum()


def test_whole_numbers_have_no_row_and_no_warning(tmp_path: Path) -> None:
    runs = three_runs(tmp_path, Integers, lambda: loader(*randn(3, 5, 2)))
    assert runs.book.steps_of("input_norm/tokens") == [0, 1, 2]
    assert not runs.book.steps_of("output_norm/tokens") and not runs.book.steps_of("input_norm/embedding")


# -- empty -----------------------------------------------------------------------------------------------------------------


class Empty(Model):
    """A batch may be empty, and so may a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.none = nn.Linear(3, 2), nn.Parameter(torch.empty(0, 3))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).square().sum() + self.none.sum()


def batches() -> Any:
    full = randn(4, 5, 3)
    return loader(full[0], full[1][:0], full[2][:0], full[3])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_is_empty_is_not_measured(tmp_path: Path, accumulate: int) -> None:
    """An empty batch has no rows for activations; a window with one that is not empty has those of that one."""
    runs = three_runs(tmp_path, Empty, batches, accumulate_grad_batches=accumulate)
    assert runs.book.steps_of("output_norm/layer") == ([0, 3] if accumulate == 1 else [0, 1])
    assert runs.book.steps_of("grad_norm/layer.weight") == list(range(4 // accumulate))
    assert not runs.book.steps_of("param_norm/none")


# -- nested ----------------------------------------------------------------------------------------------------------------


def nest_of(parts: list[Tensor], layout: torch.layout) -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch calls the strided layout a prototype
        return torch.nested.as_nested_tensor(parts, layout=layout)


class Ragged(Model):
    """Sequences of different lengths as one nested tensor; without a layout, their elements as one dense tensor."""

    def __init__(self, layout: torch.layout | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.relu, self.layout = nn.Linear(3, 2), nn.ReLU(), layout

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        x = batch if self.layout is None else nest_of([batch[:1], batch[1:]], self.layout)
        out = self.relu(self.layer(x))
        return (out if self.layout is None else out.values()).square().sum()


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_of_a_nested_tensor_the_elements_of_its_parts_are_measured(tmp_path: Path, layout: torch.layout) -> None:
    def run(layout: torch.layout | None) -> tuple[list[Tensor], dict[str, float]]:
        monitor, model = StatsMonitor(everything(), max_scalars=10**6, logdir=tmp_path / str(layout)), Ragged(layout)
        trainer_of(tmp_path, monitor).fit(model, loader(*randn(3, 5, 3)))
        return [parameter.detach() for parameter in model.parameters()], monitor.latest

    (weights, nested), (same, dense) = run(layout), run(None)
    torch.testing.assert_close(weights, same)
    of_modules = {tag for tag in dense if tag.endswith(("/layer", "/relu"))}
    assert {"output_grad_norm/layer", "input_norm/relu", "output_histogram/relu"} & of_modules and nested.keys() == dense.keys()
    for tag in of_modules:
        assert nested[tag] == pytest.approx(dense[tag], rel=1e-6, abs=1e-12, nan_ok=True), tag


# -- nothing to read -------------------------------------------------------------------------------------------------------


class NoElements(Model):
    """A module whose output has no memory: no elements that could be read."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.meta = nn.Linear(3, 2), Meta()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        out = self.layer(batch)
        self.meta(out.detach())
        return out.square().sum()


class Meta(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to("meta")


def test_a_tensor_without_readable_elements_is_named_once(tmp_path: Path) -> None:
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer_of(tmp_path, monitor).fit(NoElements(), loader(*randn(3, 5, 3)))
    messages = [str(w.message) for w in seen if "is not measured" in str(w.message)]
    assert len(messages) == 1 and "output of meta" in messages[0]
    assert "output_norm/layer" in monitor.latest and "output_norm/meta" not in monitor.latest


# -- subclasses with gaps --------------------------------------------------------------------------------------------------


class Refusing(Tensor):
    """Refuses every function."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"no {getattr(func, '__name__', func)}")


class Wrapped(Tensor):
    """Has no memory, and refuses every operation but a few."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"no {func}")


class Quiet(Tensor):
    """A subclass that does what torch does."""


MAKES: dict[str, Any] = {
    "MaskedTensor": lambda x: torch.masked.masked_tensor(x.detach(), x.detach() > 0),
    "Refusing": lambda x: x.as_subclass(Refusing),
    "Wrapped": lambda x: Wrapped(x.detach()),
}


class Becomes(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


class Back(nn.Module):
    def forward(self, x: Any) -> Tensor:
        if isinstance(x, Wrapped):
            return x.inner
        if isinstance(x, Refusing):
            with torch._C.DisableTorchFunctionSubclass():
                return x.as_subclass(Tensor)
        return x.to_tensor(0.0) if type(x).__name__ == "MaskedTensor" else x.as_subclass(Tensor)


class Odd(Model):
    """A module in the middle whose output is a tensor of another type."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.odd, self.back = (
            nn.Linear(3, 2),
            Becomes({**MAKES, "Quiet": lambda x: x.as_subclass(Quiet)}[kind]),
            Back(),
        )
        self.kind = kind

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        out = self.layer(batch)
        back = self.back(self.odd(out))
        return (back if back.requires_grad else out).square().sum()


def fit_odd(tmp_path: Path, kind: str, *callbacks: Any) -> tuple[Odd, list[str]]:
    torch.manual_seed(0)
    model = Odd(kind)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer_of(tmp_path, *callbacks).fit(model, loader(*randn(3, 5, 3)))
    return model, [str(w.message) for w in seen if "lightning_hooks" in str(w.filename) or " is not " in str(w.message)]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", MAKES)
def test_a_subclass_that_cannot_be_read_is_named_and_training_goes_on(tmp_path: Path, kind: str, several: bool) -> None:
    plain, _ = fit_odd(tmp_path, kind)
    rules = [Watch(modules="*", tensors=["input", "output", "input_grad", "output_grad"], stats=["norm", "mean", "histogram"])]
    monitor = StatsMonitor(rules)
    others = [StatsMonitor(rules, prefix="other/")] if several else []
    model, messages = fit_odd(tmp_path, kind, monitor, *others)
    torch.testing.assert_close(model.layer.weight, plain.layer.weight, rtol=0, atol=0)
    about = [m for m in messages if "is not measured" in m]
    assert any(m.startswith("output of odd is not measured") and kind in m for m in about), messages
    assert len(about) == len(set(about))
    assert "output_norm/layer" in monitor.latest and "output_norm/odd" not in monitor.latest


def test_a_subclass_that_can_be_read_is_measured(tmp_path: Path) -> None:
    monitor = StatsMonitor([Watch(modules="*", tensors=["output", "output_grad"], stats=["norm", "histogram"])])
    _, messages = fit_odd(tmp_path, "Quiet", monitor)
    assert not [m for m in messages if "is not measured" in m]
    for tensor in ("output_norm", "output_grad_norm"):
        assert monitor.latest[f"{tensor}/odd"] == pytest.approx(monitor.latest[f"{tensor}/layer"])


@pytest.mark.parametrize("kind", MAKES)
def test_a_capture_names_a_subclass_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    capture = ActivationCapture("odd", every_n_steps=1, reduce="norm", folder=tmp_path / "captures")
    _, messages = fit_odd(tmp_path, kind, capture)
    (message,) = [m for m in messages if "is not captured" in m]
    assert message.startswith("output of odd is not captured") and kind in message


def test_the_report_of_a_transform_names_a_subclass_that_cannot_be_read(tmp_path: Path) -> None:
    rules = ActivationTransforms([Apply(Same(), modules="odd")])
    _, messages = fit_odd(tmp_path, "MaskedTensor", StatsMonitor([Watch(params="*")]), rules)
    (message,) = [m for m in messages if "does not report" in m]
    assert message.startswith("apply[0].transform: Same does not report on the output of odd") and "MaskedTensor" in message


def test_the_report_of_a_transform_names_a_tensor_without_readable_elements(tmp_path: Path) -> None:
    rules = ActivationTransforms([Apply(Scale(1.0), modules="meta")])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer_of(tmp_path, StatsMonitor([Watch(params="*")]), rules).fit(NoElements(), loader(*randn(3, 5, 3)))
    (message,) = [str(w.message) for w in seen if "does not report" in str(w.message)]
    assert message.startswith("apply[0].transform: Scale does not report on the output of meta: a meta tensor")


class Same(Transform):
    """Changes nothing."""

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        return tensors


# -- no gradient at all ----------------------------------------------------------------------------------------------------


class NoLoss(Model):
    """`training_step` returns None for some batches: no backward, and gradients that were set to None."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        out = self.layer(batch).square().sum()
        return None if batch_idx == 1 else out


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None")
def test_a_batch_without_a_loss(tmp_path: Path) -> None:
    """The optimizer is called all the same: plain SGD leaves everything where it is."""
    runs = three_runs(tmp_path, NoLoss, lambda: loader(*randn(3, 5, 3)))
    assert runs.book.steps_of("grad_norm/layer.weight") == [0, 2]
    assert runs.book.values("update_norm/layer.weight")[1] == 0.0
    assert not any(math.isnan(value) for rows in runs.book.rows.values() for value in rows.values())
