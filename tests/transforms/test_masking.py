import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import Context, Mask

NAMES = ["net.weight", "net.bias"]
TENSORS = [torch.tensor([[1.0, 2.0], [3.0, math.nan]]), torch.tensor([4.0, math.inf])]
MASKS = {"net.weight": torch.tensor([[True, False], [True, False]]), "net.bias": torch.tensor([0.5, 0.0])}
EXPECTED = [[[1.0, 0.0], [3.0, 0.0]], [2.0, 0.0]]


def masks_by_name(name: str, tensor: Tensor) -> Tensor:
    assert not tensor.requires_grad
    return MASKS[name]


@pytest.mark.parametrize("form", ["mapping", "torch", "safetensors", "function", "import path"])
@pytest.mark.parametrize("owned", [False, True])
def test_forms_agree(form: str, owned: bool, tmp_path: Path) -> None:
    mask: Any = MASKS
    if form == "torch":
        torch.save(MASKS, mask := tmp_path / "masks.pt")
    elif form == "safetensors":
        save_file(MASKS, mask := str(tmp_path / "masks.safetensors"))
    elif form == "function":
        mask = masks_by_name
    elif form == "import path":
        mask = f"{__name__}.masks_by_name"
    transform = Mask(mask)
    for _ in range(2):
        given = [value.clone() for value in TENSORS]
        result = transform(given, Context(names=NAMES, owned=owned))
        assert [value.tolist() for value in result] == EXPECTED
        assert all((new is value) == owned for new, value in zip(result, given, strict=True))


def test_one_mask_for_all_broadcasts() -> None:
    keep = Mask(torch.tensor([[1.0], [0.0]]))
    result = keep([torch.ones(2, 3), torch.ones(4, 2, 1)], Context())
    assert result[0].tolist() == [[1, 1, 1], [0, 0, 0]] and result[1][2].tolist() == [[1], [0]]


def test_sparse_and_half_and_complex() -> None:
    rows = torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]]), torch.ones(3, 2), (3, 2), check_invariants=True)
    (result,) = Mask(torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.5]]))([rows], Context())
    assert result.to_dense().tolist() == [[1, 1], [0, 0], [0, 1]]
    # The mask is not rounded to the dtype of the tensor first.
    (half,) = Mask(torch.tensor([0.1]))([torch.tensor([3.0]).half()], Context())
    assert half.item() == torch.tensor(3.0 * 0.1).half().item()
    (whole,) = Mask(torch.tensor([0.5, 0.0]))([torch.tensor([2 + 4j, 1j])], Context())
    assert whole.tolist() == [1 + 2j, 0]


def test_gradient_is_masked_too() -> None:
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    torch.autograd.backward(Mask(torch.tensor([0.5, 0.0]))([value * 1], Context())[0].sum())
    assert value.grad is not None and value.grad.tolist() == [0.5, 0.0]


def test_value_object(tmp_path: Path) -> None:
    one, other = Mask(torch.tensor([1.0, 0.0])), Mask(torch.tensor([1.0, 1.0]))
    assert one == Mask(torch.tensor([1.0, 0.0])) and one != other and one != Mask(torch.tensor([True, False]))
    assert Mask(MASKS) == Mask(dict(MASKS)) and Mask(MASKS) != Mask({"net.bias": MASKS["net.bias"]})
    assert Mask(masks_by_name) == Mask(masks_by_name) and hash(one) == hash(other)
    for transform in (one, Mask(MASKS), Mask(masks_by_name)):
        assert pickle.loads(pickle.dumps(transform)) == copy.deepcopy(transform) == transform
    torch.save(MASKS, tmp_path / "masks.pt")
    by_path = Mask(str(tmp_path / "masks.pt"))
    assert repr(by_path) == f"Mask(mask={str(tmp_path / 'masks.pt')!r})" and by_path == pickle.loads(pickle.dumps(by_path))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3), "the mask of 'net.weight' has shape (3,), which does not broadcast to the tensor's shape (2, 2)"),
        (
            torch.ones(4, 2, 2),
            "the mask of 'net.weight' has shape (4, 2, 2), which does not broadcast to the tensor's shape (2, 2)",
        ),
        ({"net.wieght": torch.ones(2, 2)}, "Mask has no mask for 'net.weight' (did you mean 'net.wieght'?); it has 1"),
        (lambda name, tensor: None, "the mask that Mask.mask returned for 'net.weight' must be a tensor, got NoneType"),
    ],
)
def test_does_not_fit(mask: Any, message: str) -> None:
    with pytest.raises(TransformError) as error:
        Mask(mask)([TENSORS[0]], Context(names=NAMES))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (3, "Mask.mask must be a tensor, a mapping from names to tensors, the path of a file, or a function, got 3"),
        ("torch.pi", "Mask.mask must be a function, an object that can be called, or the import path of one, got 'torch.pi'"),
        ({"a": 1}, "Mask.mask: the mask of 'a' must be a tensor, got int"),
        (torch.ones(2, dtype=torch.complex64), "Mask.mask: the mask must be boolean or real, and dense, but it is complex"),
        (torch.tensor([1.0, math.nan]), "Mask.mask: the mask must not hold NaN or infinity"),
        ({"a": torch.tensor([math.inf]).half()}, "Mask.mask: the mask of 'a' must not hold NaN or infinity"),
        (torch.ones(2, device="meta"), "Mask.mask: the mask has no values: it is on the device 'meta'"),
        ({}, "Mask.mask is an empty mapping; give a mask for each name"),
        ("x\0y", "Mask.mask must be a path without NUL characters, got 'x\\x00y'"),
        ("a" * 5000, f"Mask.mask must be a path that is short enough for this machine, got '{'a' * 97}...{'a' * 98}'"),
        (
            torch.eye(2).to_sparse(),
            "Mask.mask: the mask must be boolean or real, and dense, but it is of layout torch.sparse_coo",
        ),
    ],
)
def test_refused(mask: Any, message: str) -> None:
    with pytest.raises(RuleError) as error:
        Mask(mask)
    assert str(error.value) == message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"Mask.mask '.*missing.pt' is not a file; the directory is '"):
        Mask(tmp_path / "missing.pt")
    with pytest.raises(RuleError, match=r"Mask.mask '.*missing.safetensors' is not a file"):
        Mask(tmp_path / "missing.safetensors")
    (tmp_path / "text.pt").write_text("no masks")
    with pytest.raises(RuleError, match=r"Mask.mask '.*text.pt' cannot be read as masks \("):
        Mask(tmp_path / "text.pt")
    torch.save(Path, tmp_path / "code.pt")  # weights_only refuses to call functions that a file names
    with pytest.raises(RuleError, match=r"Mask.mask '.*code.pt' cannot be read as masks \(UnpicklingError"):
        Mask(tmp_path / "code.pt")
