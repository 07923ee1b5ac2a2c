import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import AddDecayedWeights, Centralize, Context, KeepNonnegative, OrthoGrad, Transform


def on(transform: Transform, grad: Tensor, param: Tensor | None = None) -> Tensor:
    return transform([grad], Context(params=[param], names=["net.weight"]))[0]


def test_centralized_slices_have_mean_zero() -> None:
    value = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0)) + 5
    result = on(Centralize(), value)
    assert result.mean((1, 2)).abs().max() < 1e-6
    assert torch.allclose(result, value - value.mean((1, 2), keepdim=True))


@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (3, 0)])
def test_nothing_to_centralize(shape: tuple[int, ...]) -> None:
    value = torch.ones(shape)
    assert torch.equal(on(Centralize(), value), value)


def test_centralize_half_is_rounded_once() -> None:
    value = torch.full((1, 4096), 1.0).half()
    value[0, 0] = 40000.0
    # In float16 the sum for the mean would overflow.
    assert on(Centralize(), value)[0, 1].item() == pytest.approx(1 - (40000 + 4095) / 4096, rel=1e-3)


def test_centralize_sparse_rows_are_those_of_the_dense_form() -> None:
    rows = torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]]), torch.randn(3, 4), (3, 4), check_invariants=True)
    assert torch.allclose(on(Centralize(), rows).to_dense(), on(Centralize(), rows.to_dense()))
    with pytest.raises(TransformError) as error:
        on(Centralize(), torch.eye(2).to_sparse())
    assert str(error.value) == ("Centralize would fill 'net.weight', which is sparse in 2 dimensions: exclude it from the rule")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
def test_orthograd_is_orthogonal_with_the_old_norm(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, grad = (torch.randn(6, 5, generator=generator, dtype=dtype) for _ in range(2))
    result = on(OrthoGrad(), grad, weight)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    w, g, h = (value.to(wide).flatten() for value in (weight, grad, result))
    slack = 1e-2 if dtype is torch.bfloat16 else 1e-6
    assert (torch.vdot(w, h).abs() / (w.norm() * h.norm())).item() < slack
    assert (h.norm() / g.norm()).item() == pytest.approx(1, rel=slack)


def test_orthograd_is_the_formula_of_the_authors() -> None:
    generator = torch.Generator().manual_seed(2)
    weight, grad = (torch.randn(40, generator=generator, dtype=torch.float64) for _ in range(2))
    h = grad - (weight @ grad) / (weight @ weight + 1e-30) * weight
    assert torch.allclose(on(OrthoGrad(), grad, weight), h * grad.norm() / (h.norm() + 1e-30), rtol=1e-12, atol=0)


def test_orthograd_does_not_scale_rounding_up() -> None:
    weight = torch.randn(50, generator=torch.Generator().manual_seed(3))
    assert on(OrthoGrad(), 0.3 * weight, weight).tolist() == [0.0] * 50
    assert on(OrthoGrad(), torch.tensor([0.7]), torch.tensor([0.1])).tolist() == [0.0]


def test_orthograd_of_zero_weights_keeps_the_gradient() -> None:
    grad = torch.tensor([3.0, -4.0])
    assert torch.allclose(on(OrthoGrad(), grad, torch.zeros(2)), grad)
    assert on(OrthoGrad(), torch.tensor([0.7]), torch.zeros(1)).item() == pytest.approx(0.7)
    assert on(OrthoGrad(), torch.zeros(2), torch.ones(2)).tolist() == [0.0, 0.0]


def test_orthograd_spreads_a_nan() -> None:
    assert on(OrthoGrad(), torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0])).isnan().all()
    assert on(OrthoGrad(), torch.tensor([math.nan]), torch.zeros(1)).isnan().all()


def test_decay_is_that_of_sgd() -> None:
    start = torch.tensor([2.0, -3.0])
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    theirs.grad = torch.tensor([0.5, 0.5])
    ours.grad = on(AddDecayedWeights(0.1), theirs.grad, ours)
    SGD([ours], lr=0.3).step()
    SGD([theirs], lr=0.3, weight_decay=0.1).step()
    assert torch.equal(ours, theirs) and not torch.equal(ours, start)


@pytest.mark.parametrize(("grad", "param"), [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)])
@pytest.mark.parametrize("owned", [False, True])
def test_decay_of_halves_is_rounded_once(grad: torch.dtype, param: torch.dtype, owned: bool) -> None:
    weight = torch.tensor([100.0]).to(param)
    value = torch.tensor([1.0]).to(grad)
    (result,) = AddDecayedWeights(0.013)([value], Context(params=[weight], owned=owned))
    assert result.dtype is grad and result.item() == torch.tensor(2.3).to(grad).item()


def test_nonnegative_under_sgd() -> None:
    weight = torch.tensor([0.0, 0.0, 0.05, 2.0]).requires_grad_()
    optimizer = SGD([weight], lr=0.1)
    for _ in range(5):
        weight.grad = on(KeepNonnegative(), torch.tensor([1.0, -1.0, 1.0, 1.0]), weight)
        optimizer.step()
    # The third parameter falls below 0 once, by less than lr * g; the fourth is still above 0.
    assert weight.tolist() == pytest.approx([0.0, 0.5, -0.05, 1.5])


def test_nonnegative_keeps_a_nan_and_reads_sparse_rows() -> None:
    assert on(KeepNonnegative(), torch.tensor([math.nan, math.inf]), torch.zeros(2)).nan_to_num(nan=7).tolist() == [7.0, 0.0]
    rows = torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]]), torch.ones(3, 1), (3, 1), check_invariants=True)
    assert on(KeepNonnegative(), rows, torch.tensor([[1.0], [0.0], [-1.0]])).to_dense().tolist() == [[1], [0], [0]]


@pytest.mark.parametrize("transform", [OrthoGrad(), AddDecayedWeights(0.1), KeepNonnegative()], ids=repr)
def test_needs_the_parameter(transform: Transform) -> None:
    name = type(transform).__name__
    with pytest.raises(TransformError) as error:
        on(transform, torch.ones(2))
    assert str(error.value) == f"{name} needs the parameter behind 'net.weight', which has none: use it in a rule on params"
    with pytest.raises(TransformError) as error:
        on(transform, torch.ones(2), torch.ones(3))
    assert str(error.value) == (
        f"{name} needs a gradient of the shape of its parameter; 'net.weight' has a gradient of shape (2,) and a parameter "
        "of shape (3,)"
    )


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (OrthoGrad(), "without its component along the weights it is dense"),
        (AddDecayedWeights(0.1), "with the parameter added it is dense"),
    ],
)
def test_sparse_is_refused(transform: Transform, why: str) -> None:
    with pytest.raises(TransformError) as error:
        on(transform, torch.eye(2).to_sparse(), torch.eye(2))
    assert str(error.value) == (
        f"{type(transform).__name__} cannot take the sparse gradient of 'net.weight': {why}; use sparse=False in the "
        "embedding, or exclude it from the rule"
    )


def test_complex_has_no_order() -> None:
    with pytest.raises(TransformError, match=r"KeepNonnegative cannot order the complex elements of 'net.weight' \(torch"):
        on(KeepNonnegative(), torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: OrthoGrad(eps=-1.0), "OrthoGrad.eps must be a finite number of at least 0, got -1.0"),
        (lambda: AddDecayedWeights(-0.1), "AddDecayedWeights.weight_decay must be a finite number of at least 0, got -0.1"),
    ],
)
def test_refused(make_it: Callable[[], Any], message: str) -> None:
    with pytest.raises(RuleError) as error:
        make_it()
    assert str(error.value) == message
