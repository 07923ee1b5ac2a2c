"""What kind of tensor one is, and which elements of it are read."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lightning_hooks.tensor_kinds import elements, inside_transform, same_bits

DIAGONAL = torch.diag(torch.tensor([1.0, 2.0]))
KINDS: dict[str, tuple[Callable[[], Tensor], list[float], int]] = {
    "dense": (lambda: DIAGONAL, [1.0, 0.0, 0.0, 2.0], 0),
    "coo": (DIAGONAL.to_sparse, [1.0, 2.0], 2),
    "twice at one place": (lambda: torch.sparse_coo_tensor([[0, 0, 1], [0, 0, 1]], [0.5, 0.5, 2.0], (2, 2)), [1.0, 2.0], 2),
    "csr": (DIAGONAL.to_sparse_csr, [1.0, 2.0], 2),
    "bsc": (lambda: DIAGONAL.to_sparse_bsc((1, 1)), [1.0, 2.0], 2),
    "mkldnn": (DIAGONAL.to_mkldnn, [1.0, 0.0, 0.0, 2.0], 0),
    "nested": (lambda: torch.nested.nested_tensor([DIAGONAL[0], DIAGONAL[1, 1:]], layout=torch.jagged), [1.0, 0.0, 2.0], 0),
    "complex": (lambda: torch.complex(torch.ones(1), torch.tensor([-2.0])).conj(), [1.0, 2.0], 0),
    "sparse complex": (lambda: (DIAGONAL * 1j).to_sparse(), [0.0, 1.0, 0.0, 2.0], 4),
    "negated": (lambda: torch.complex(torch.ones(1), torch.tensor([2.0])).conj().imag, [-2.0], 0),
}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*experimental")
@pytest.mark.parametrize("kind", KINDS)
def test_the_stored_elements_are_read_and_the_others_are_counted(kind: str) -> None:
    make, expected, zeros = KINDS[kind]
    found = elements(make())
    assert found is not None
    assert found[0].double().flatten().tolist() == expected and found[1] == zeros


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # deprecated
def test_what_holds_no_numbers_has_no_elements() -> None:
    assert elements(torch.ones(2, device="meta")) is None
    assert elements(torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)) is None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_transform_is_seen_on_tensors_from_outside_wherever_torch_makes_new_ones(device: str) -> None:
    outside, seen = torch.ones(2), []

    def look(x: Tensor) -> Tensor:
        seen.append(inside_transform(outside))
        return x.sum()

    with torch.device(device):
        torch.func.grad(look)(outside)
        assert seen == [True] and not inside_transform(outside)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # deprecated
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_bits_are_compared_of_tensors_of_every_kind():
    nan, packed = float("nan"), torch.tensor([0x7FC00001, 1], dtype=torch.int32).view(torch.float32)
    alike = [
        torch.tensor([nan, -0.0]), torch.tensor([True, False]), torch.tensor([nan], dtype=torch.bfloat16), packed,
        torch.tensor([complex(nan, -0.0)]).conj(), torch.tensor([[nan, 1.0], [0.0, 2.0]]).t(), torch.zeros(0),
        torch.tensor([[nan, 0.0]]).to_sparse(), torch.tensor([[nan, 0.0]]).to_sparse_csr(),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), torch.tensor(nan),
    ]  # fmt: skip
    for each in alike:
        assert same_bits(each, each.clone())
    assert not same_bits(packed, torch.tensor([0x7FC00002, 1], dtype=torch.int32).view(torch.float32))
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0)) and not same_bits(torch.ones(2), torch.ones(3))
    assert not same_bits(torch.ones(2), torch.ones(2, dtype=torch.float64))
