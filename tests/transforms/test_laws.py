"""Laws of every transform, for tensors of many kinds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.transforms import Chain, FirstSteps, Function, Transform, When, Zero
from tests.transforms._catalogue import (
    DENSE_ONLY,
    EXAMPLES,
    REAL_ONLY,
    context_of,
    each,
    every_transform,
    has,
    same,
    usable,
)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_every_transform_has_an_example() -> None:
    assert {type(transform).__name__ for transform in EXAMPLES} == every_transform()


def check(transform: Transform, tensors: list[Tensor]) -> list[Tensor]:
    """Apply a transform to tensors that it does not own and to owned copies, check both, and return the result."""
    before = [value.clone() for value in tensors]
    versions = [value._version for value in tensors if not value.is_sparse]
    result = transform(tensors, context_of(tensors))
    assert isinstance(result, list) and len(result) == len(tensors)
    for new, value, old in zip(result, tensors, before, strict=True):
        assert (new.shape, new.dtype, new.device, new.layout) == (old.shape, old.dtype, old.device, old.layout)
        assert same(value, old)
        if value.is_sparse:
            assert value.is_coalesced() == old.is_coalesced()
        elif value.numel() and new is not value:
            # The receiver may overwrite the result, so the result must not be a view of a tensor that is not owned.
            assert new.data_ptr() != value.data_ptr()
    assert [value._version for value in tensors if not value.is_sparse] == versions
    in_place = transform(before, context_of(tensors, owned=True))
    for new, overwritten, owned in zip(result, in_place, before, strict=True):
        assert same(new, overwritten)
        assert overwritten is owned or isinstance(transform, Function)
    return result


@st.composite
def tensor(draw: st.DrawFn) -> Tensor:
    """A tensor: dense, transposed, sparse, uncoalesced or with a special value, in four dtypes, perhaps empty."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    seed = draw(st.integers(0, 2**31))
    size = draw(st.sampled_from([1e-3, 1.0, 100.0]))
    value = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size
    kind = draw(st.sampled_from(["dense", "transposed", "sparse", "uncoalesced", "special"]))
    if kind == "special" and value.numel():
        value.view(-1)[0] = draw(st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0]))
    value = value.to(draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])))
    if kind == "transposed":
        value = value.T if value.dim() == 2 else value
    if kind == "sparse" and value.dim():
        value = value.to_sparse(1)
    if kind == "uncoalesced" and value.dim() and value.shape[0]:
        rows = torch.tensor([[0, value.shape[0] - 1, 0]])
        value = torch.sparse_coo_tensor(rows, value[rows[0]], value.shape, check_invariants=True)
    return value


@each
@settings(max_examples=25, deadline=None)
@given(tensors=st.lists(tensor(), max_size=4))
def test_results_fit_the_tensors_and_are_equal_in_place(transform: Transform, tensors: list[Tensor]) -> None:
    check(transform, [value for value in tensors if usable(transform, value)])


@each
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(transform: Transform, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = [(4, 3), (5,), (2, 3, 2, 2), (1, 4)]
    result = check(transform, [torch.randn(shape).to(dtype) for shape in shapes])
    assert all(value.isfinite().all() for value in result)


@each
def test_memory_format(transform: Transform) -> None:
    value = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    (kept,) = check(transform, [value])
    (dense,) = transform([value.contiguous()], context_of([value]))
    # The result does not depend on the strides, except for the order of sums and of random numbers.
    assert transform.random or torch.allclose(kept, dense, rtol=1e-4, atol=1e-5)


@each
@pytest.mark.parametrize("owned", [False, True])
def test_empty_list(transform: Transform, owned: bool) -> None:
    context = context_of([], owned)
    assert transform([], context) == []
    assert context.skip_reason is None


@each
def test_no_dimensions(transform: Transform) -> None:
    if isinstance(transform, Zero) and transform.index is not None:
        with pytest.raises(TransformError, match=r"of dimension -?\d( \(the default\))?, but 'layer0.weight' has no dim"):
            transform([torch.tensor(2.0)], context_of([torch.tensor(2.0)]))
        return
    check(transform, [torch.tensor(2.0), torch.tensor(-0.5, dtype=torch.float16)])


@each
@pytest.mark.parametrize("dims", [1, 2])
def test_sparse_is_defined_or_refused(transform: Transform, dims: int) -> None:
    value = torch.tensor([[0.0, 3.0], [0.0, 0.0], [1.0, -2.0]]).to_sparse(dims)
    if has(transform, *DENSE_ONLY):
        with pytest.raises(TransformError, match=r"cannot take the sparse gradient of 'layer0.weight': .*exclude it"):
            transform([value], context_of([value]))
    elif type(transform).__name__ == "Centralize" and dims > 1:
        with pytest.raises(TransformError, match="would fill 'layer0.weight', which is sparse in 2 dimensions: exclude it"):
            transform([value], context_of([value]))
    else:
        check(transform, [value])


@each
def test_complex_is_defined_or_refused(transform: Transform) -> None:
    value = torch.tensor([[3 + 4j, -1j], [0, 2 + 0j]])
    if has(transform, *REAL_ONLY):
        with pytest.raises(TransformError, match="cannot order the complex elements of 'layer0.weight'"):
            transform([value], context_of([value]))
        return
    (result,) = check(transform, [value])
    assert result.isfinite().all()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@each
def test_other_layouts_are_refused(transform: Transform) -> None:
    value = torch.eye(2).to_sparse_csr()
    if isinstance(transform, Function) or str(getattr(transform, "mask", "")).endswith("small_ones"):
        # A user's function receives the tensor unchanged, in any layout.
        return
    with pytest.raises(TransformError, match="'layer0.weight' is of layout torch.sparse_csr, and only strided and sparse"):
        transform([value], context_of([torch.eye(2)]))


@pytest.mark.parametrize("transform", [t for t in EXAMPLES if t.on_activations and not t.needs_params], ids=repr)
def test_differentiable_for_activations(transform: Transform) -> None:
    value = torch.randn(3, 2, requires_grad=True)
    (result,) = transform([value * 2], context_of([value]))
    torch.autograd.backward(result.sum())
    assert value.grad is not None and value.grad.isfinite().all()


@each
def test_a_chain_of_one_transform_equals_the_transform(transform: Transform) -> None:
    torch.manual_seed(0)
    chain = Chain([transform])
    for flag in ("needs_all", "repairs_nonfinite", "random", "needs_params", "needs_step", "on_activations"):
        assert getattr(chain, flag) == getattr(transform, flag), flag
    steps = [[torch.randn(4, 3), torch.randn(5)] for _ in range(6)]
    alone, chained = context_of(steps[0]), context_of(steps[0])
    always, conditional = When(FirstSteps(99), transform=transform), context_of(steps[0])
    for step, tensors in enumerate(steps):
        for context in (alone, chained, conditional):
            context.step, context.skip_reason = step, None
        expected = transform(tensors, alone)
        assert all(map(same, chain(tensors, chained), expected))
        assert all(map(same, always(tensors, conditional), expected))
        assert chained.skip_reason == conditional.skip_reason == alone.skip_reason
