"""What holds for every transform, whatever the tensors."""

import dataclasses
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lightning_hooks.transforms as room
from lightning_hooks.errors import TransformError
from lightning_hooks.transforms import (
    AddNoise,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    Context,
    Function,
    Scale,
    Transform,
    Zero,
    ZeroNonFinite,
)

BUILT_IN = [
    Scale(0.3),
    Zero(),
    ClipByValue(-0.5, 0.7),
    ClipByValue(max=1e6),
    ClipByNorm(0.9),
    ClipByNorm(0.9, norm_type=float("inf")),
    ClipByGlobalNorm(1.1),
    ClipByGlobalNorm(1.1, norm_type=float("inf")),
    ZeroNonFinite(),
    AddNoise(0.1, decay=0.55),
]
ALL = [*BUILT_IN, Function("torch.neg")]
REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
each = pytest.mark.parametrize("transform", ALL, ids=repr)


@st.composite
def tensor(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = tuple(REAL)) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    seed = draw(st.integers(0, 2**31))
    size = draw(st.sampled_from([1e-3, 1.0, 100.0]))
    value = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size
    kind = draw(st.sampled_from(["dense", "transposed", "sparse", "uncoalesced", "special"]))
    if kind == "special" and value.numel():
        value.view(-1)[0] = draw(st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0]))
    value = value.to(draw(st.sampled_from(dtypes)))
    if kind == "transposed":
        value = value.T if value.dim() == 2 else value
    if kind == "sparse" and value.dim():
        value = value.to_sparse(1)
    if kind == "uncoalesced" and value.dim() and value.shape[0]:
        rows = torch.tensor([[0, value.shape[0] - 1, 0]])
        value = torch.sparse_coo_tensor(rows, value[rows[0]], value.shape, check_invariants=True)
    return value


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, NaN equal to NaN, 0 unlike -0."""
    if a.is_sparse:
        a, b = a.coalesce(), b.coalesce()
        return torch.equal(a.indices(), b.indices()) and same(a.values(), b.values())
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    # A NaN has many bit patterns, and the vectorised end of a loop may choose another: compare where it is, only.
    numbers = ~a.isnan()
    return (
        torch.equal(a.isnan(), b.isnan())
        and torch.equal(a[numbers], b[numbers])
        and torch.equal(a[numbers].signbit(), b[numbers].signbit())
    )


@each
@settings(max_examples=40, deadline=None)
@given(tensors=st.lists(tensor(), max_size=4))
def test_kept_and_alike_in_place(transform: Transform, tensors: list[Tensor]) -> None:
    before = [value.clone() for value in tensors]
    names = [f"layer{i}.weight" for i in range(len(tensors))]
    result = transform(tensors, Context(names=names, step=2, seed=5))
    assert len(result) == len(tensors)
    for new, value, old in zip(result, tensors, before, strict=True):
        assert new is not value
        assert (new.shape, new.dtype, new.device, new.layout) == (old.shape, old.dtype, old.device, old.layout)
        assert same(value, old)
        if value.is_sparse:
            assert value.is_coalesced() == old.is_coalesced()
    in_place = transform(before, Context(names=names, step=2, seed=5, owned=True))
    for new, owned in zip(result, in_place, strict=True):
        assert same(new, owned)


@pytest.mark.parametrize("transform", BUILT_IN, ids=repr)
def test_owned_tensors_are_returned(transform: Transform) -> None:
    dense, half = torch.randn(3, 2), torch.randn(4).half()
    merged, loose = (
        torch.randn(3, 2).to_sparse(1),
        torch.sparse_coo_tensor(torch.tensor([[1, 1]]), [[3.0], [4.0]], (3, 1), check_invariants=True),
    )
    empty, scalar = torch.empty(0, 3), torch.tensor(2.0)
    tensors = [dense, half, merged, loose, empty, scalar]
    addresses = [value.data_ptr() for value in (dense, half, scalar)]
    result = transform(tensors, Context(owned=True))
    assert all(new is value for new, value in zip(result, tensors, strict=True))
    assert [value.data_ptr() for value in (dense, half, scalar)] == addresses


@each
@pytest.mark.parametrize("owned", [False, True])
def test_empty_list(transform: Transform, owned: bool) -> None:
    assert transform([], Context(owned=owned)) == []


@each
def test_complex_has_a_defined_answer(transform: Transform) -> None:
    value = torch.tensor([3 + 4j, -1j])
    if isinstance(transform, ClipByValue):
        with pytest.raises(TransformError, match="cannot order the complex elements of 'fourier.weight'"):
            transform([value], Context(names=["fourier.weight"]))
        return
    (result,) = transform([value], Context())
    assert (result.dtype, result.shape) == (value.dtype, value.shape)
    (owned,) = transform([value.clone()], Context(owned=True))
    assert same(result, owned)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("transform", BUILT_IN, ids=repr)
def test_other_layouts_are_refused(transform: Transform) -> None:
    value = torch.eye(2).to_sparse_csr()
    with pytest.raises(TransformError, match="'net.weight' is of layout torch.sparse_csr, and only strided and sparse"):
        transform([value], Context(names=["net.weight"]))


@each
def test_differentiable_for_activations(transform: Transform) -> None:
    value = torch.randn(3, 2, requires_grad=True)
    (result,) = transform([value * 2], Context())
    torch.autograd.backward(result.sum())
    assert value.grad is not None and value.grad.isfinite().all()


@each
def test_value_object(transform: Transform) -> None:
    namespace = {name: getattr(room, name) for name in room.__all__} | {"inf": float("inf")}
    assert eval(repr(transform), namespace) == transform
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert isinstance(transform, Transform) and transform.initial_state() == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        transform.anything = 1  # type: ignore[attr-defined]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@each
@pytest.mark.parametrize("owned", [False, True])
def test_no_wait_for_the_device(transform: Transform, owned: bool) -> None:
    tensors = [torch.randn(3, 2, device="cuda"), torch.randn(4, device="cuda").half()]
    context = Context(owned=owned)
    transform([value.clone() for value in tensors], context)
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        transform(tensors, context)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def test_public_names() -> None:
    assert room.__all__ == sorted(room.__all__)
    assert all(hasattr(room, name) for name in room.__all__)
