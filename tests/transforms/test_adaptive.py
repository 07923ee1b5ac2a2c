import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import AdaptiveClip, ClipByBlockRMS, Context, PerModuleClip, Transform

STRING: Any = "1e-3"


def test_units_of_a_matrix_are_its_rows() -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]])
    grad = torch.tensor([[6.0, 8.0], [6.0, 8.0], [0.06, 0.08]])
    (result,) = AdaptiveClip(clipping=0.1)([grad], Context(params=[weight]))
    # Row 0 is scaled to a tenth of the weight norm 5, row 1 to a tenth of eps. Row 2 is below a tenth of the weight norm 50.
    assert result.norm(dim=1)[:2].tolist() == pytest.approx([0.5, 1e-4], rel=1e-6)
    assert torch.equal(result[2], grad[2])


def test_a_unit_at_zero_can_leave_it() -> None:
    weight = torch.zeros(4, 3)
    for _ in range(3):
        (step,) = AdaptiveClip()([torch.ones(4, 3)], Context(params=[weight]))
        weight = weight - step
    assert weight.norm(dim=1).tolist() == pytest.approx([3e-5] * 4, rel=1e-5)


def test_units_of_transposed_convolutions() -> None:
    layer = nn.ConvTranspose1d(2, 3, 1, bias=False)
    grad = torch.full((2, 3, 1), 100.0)
    (result,) = AdaptiveClip(clipping=1.0, unit_dim=1)([grad], Context(params=[layer.weight]))
    assert result.norm(dim=(0, 2)).tolist() == pytest.approx(layer.weight.norm(dim=(0, 2)).tolist(), rel=1e-5)


@pytest.mark.parametrize("shape", [(3,), (), (1, 3), (3, 1), (1, 3, 1)])
def test_one_long_dimension_is_one_unit(shape: tuple[int, ...]) -> None:
    (result,) = AdaptiveClip(clipping=0.5)([torch.full(shape, 7.0)], Context(params=[torch.ones(shape)]))
    assert result.norm().item() == pytest.approx(0.5 * math.prod(shape) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("owned", [False, True])
def test_half_is_computed_in_float32(owned: bool) -> None:
    # The square of 300 is beyond the range of float16.
    weight, grad = torch.full((2, 64), 1e-3).half(), torch.full((2, 64), 300.0).half()
    (result,) = AdaptiveClip()([grad], Context(params=[weight], owned=owned))
    assert result.dtype == torch.float16 and (result is grad) == owned
    assert result.double().norm(dim=1).tolist() == pytest.approx([8e-5, 8e-5], rel=5e-3)


def test_a_nan_stays_in_its_unit() -> None:
    grad = torch.tensor([[math.nan, 1.0], [1.0, 1.0]])
    (result,) = AdaptiveClip()([grad], Context(params=[torch.ones(2, 2)]))
    assert result.isnan().tolist() == [[True, True], [False, False]]


def test_adaptive_clip_says_what_is_missing() -> None:
    context = Context(params=[None], names=["net.weight"])
    with pytest.raises(TransformError, match="AdaptiveClip needs the parameter behind 'net.weight', which has none"):
        AdaptiveClip()([torch.ones(2)], context)
    with pytest.raises(TransformError, match="AdaptiveClip cannot take the sparse gradient of 'net.weight'"):
        AdaptiveClip()([torch.eye(2).to_sparse()], Context(params=[torch.ones(2, 2)], names=["net.weight"]))
    with pytest.raises(TransformError, match="AdaptiveClip.unit_dim is 2, but 'net.weight' has 2 dimensions"):
        AdaptiveClip(unit_dim=2)([torch.ones(2, 2)], Context(params=[torch.ones(2, 2)], names=["net.weight"]))


def test_block_rms_counts_what_a_sparse_tensor_does_not_store() -> None:
    loose = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), [3.0, 5.0], (16,), check_invariants=True)
    (result,) = ClipByBlockRMS(1.0)([loose], Context())
    # The root mean square of 8 among 16 elements is 2.
    assert result.to_dense().tolist() == [0.0, 4.0] + [0.0] * 14


def test_block_rms_of_zeros_and_of_nothing() -> None:
    zeros, nothing = ClipByBlockRMS(1.0)([torch.zeros(3), torch.empty(0, 2)], Context())
    assert zeros.tolist() == [0.0, 0.0, 0.0] and nothing.shape == (0, 2)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_per_module_is_torch_on_each_module(norm_type: float) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3)))
    names = [name for name, _ in net.named_parameters()]
    parameters = list(net.parameters())
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)) * 3
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # The parameters of one module need not be next to each other in the list.
    order = [3, 0, 5, 2, 1, 4]
    result = PerModuleClip(1.5, norm_type=norm_type)([grads[i] for i in order], Context(names=[names[i] for i in order]))
    for module in net.modules():
        module_params = list(module.parameters(recurse=False))
        if module_params:
            nn.utils.clip_grad_norm_(module_params, 1.5, norm_type)
    for i, new in zip(order, result, strict=True):
        torch.testing.assert_close(new, parameters[i].grad, rtol=1e-6, atol=0)


def test_per_module_keeps_a_nan_where_it_is() -> None:
    names = ["a.weight", "a.bias", "b.bias", "bias"]
    tensors = [torch.tensor([math.nan]), torch.ones(1), torch.ones(1), torch.ones(1)]
    result = PerModuleClip(3.0)(tensors, Context(names=names))
    assert [value.isnan().item() for value in result] == [True, True, False, False]


def test_per_module_needs_names() -> None:
    with pytest.raises(TransformError, match="by the names of their parameters, and got 0 names for 1 tensors"):
        PerModuleClip(1.0)([torch.ones(1)], Context())


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: AdaptiveClip(0), "AdaptiveClip.clipping must be a finite number above 0, got 0"),
        (lambda: AdaptiveClip(eps=0.0), "AdaptiveClip.eps must be a finite number above 0, got 0.0"),
        (lambda: AdaptiveClip(unit_dim=-1), "AdaptiveClip.unit_dim must be an integer of at least 0, got -1"),
        (lambda: ClipByBlockRMS(STRING), "ClipByBlockRMS.threshold must be a finite number above 0, got '1e-3'"),
        (lambda: PerModuleClip(math.nan), "PerModuleClip.max_norm must be a finite number above 0, got nan"),
        (lambda: PerModuleClip(1, norm_type=-1), "PerModuleClip.norm_type must be a number above 0 or infinity, got -1"),
    ],
)
def test_refused(make_it: Callable[[], Transform], message: str) -> None:
    with pytest.raises(RuleError) as error:
        make_it()
    assert str(error.value) == message
