import math

import pytest
import torch

from lightning_hooks.errors import RuleError
from lightning_hooks.transforms import AddNoise, Context


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mean_and_variance(dtype: torch.dtype) -> None:
    (result,) = AddNoise(std=0.5)([torch.ones(200_000, dtype=dtype)], Context(seed=3))
    noise = result.double() - 1
    assert noise.mean().item() == pytest.approx(0.0, abs=5e-3)
    assert noise.std().item() == pytest.approx(0.5, rel=1e-2)


def test_complex_variance_is_that_of_both_parts() -> None:
    (result,) = AddNoise(std=0.5)([torch.zeros(200_000, dtype=torch.complex64)], Context())
    assert result.abs().square().mean().sqrt().item() == pytest.approx(0.5, rel=1e-2)


def test_schedule_of_the_paper() -> None:
    transform = AddNoise(std=math.sqrt(0.3), decay=0.55)
    for step in (0, 1, 1000):
        assert transform.std_at(step) ** 2 == pytest.approx(0.3 / (1 + step) ** 0.55)


def test_same_seed_same_numbers_and_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    tensors = [torch.zeros(5), torch.zeros(3).half()]
    context = Context(seed=4)
    first, second = AddNoise(1.0)(tensors, context), AddNoise(1.0)(tensors, context)
    again = AddNoise(1.0)(tensors, Context(seed=4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], second[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_resumes_from_the_state_of_the_generator() -> None:
    context = Context(seed=4)
    AddNoise(1.0)([torch.zeros(7)], context)
    saved = context.generators["cpu"].get_state()
    (expected,) = AddNoise(1.0)([torch.zeros(7)], context)
    resumed = Context(generators={"cpu": torch.Generator()})
    resumed.generators["cpu"].set_state(saved)
    assert torch.equal(AddNoise(1.0)([torch.zeros(7)], resumed)[0], expected)


def test_sparse_gets_noise_where_it_has_entries() -> None:
    value = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), [1.0, 2.0], (4,), check_invariants=True)
    dense = AddNoise(1.0)([value], Context())[0].to_dense()
    assert dense[[1, 3]].tolist() == [0.0, 0.0] and (dense[[0, 2]] != torch.tensor([1.0, 2.0])).all()


def test_no_noise() -> None:
    value = torch.tensor([1.0, -2.0])
    assert torch.equal(AddNoise(0.0)([value], Context())[0], value)


@pytest.mark.parametrize(
    ("arguments", "field", "shown"), [({"std": -0.1}, "std", "-0.1"), ({"std": 1.0, "decay": math.nan}, "decay", "nan")]
)
def test_refused(arguments: dict[str, float], field: str, shown: str) -> None:
    with pytest.raises(RuleError) as error:
        AddNoise(**arguments)
    assert str(error.value) == f"AddNoise.{field} must be a finite number of at least 0, got {shown}"
