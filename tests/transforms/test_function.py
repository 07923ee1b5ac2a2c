from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import Context, Function


def halve(value: Tensor) -> Tensor:
    return value / 2


def test_callable_and_path_alike() -> None:
    tensors = [torch.tensor([0.5, -2.0]), torch.eye(2).to_sparse()]
    by_name, by_object = Function("torch.neg"), Function(torch.neg)
    for a, b in zip(by_name(tensors, Context()), by_object(tensors, Context()), strict=True):
        assert a.layout == b.layout and torch.equal(a.to_dense(), b.to_dense())
    assert repr(by_name) == "Function(call='torch.neg')" and by_name == Function("torch.neg")


def test_instance_and_method() -> None:
    assert Function(torch.nn.ReLU())([torch.tensor([-1.0])], Context())[0].item() == 0.0
    assert Function("torch.Tensor.neg")([torch.tensor([-1.0])], Context())[0].item() == 1.0
    assert Function(halve)([torch.tensor([-1.0])], Context())[0].item() == -0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("neg", "Function.call must be an import path such as 'package.module.name', got 'neg'"),
        ("torch..neg", "Function.call must be an import path such as 'package.module.name', got 'torch..neg'"),
        ("torhc.neg", "Function.call: cannot import 'torhc.neg': there is no module 'torhc'"),
        (
            "torch.pi",
            "Function.call must be a function, an object that can be called, or the import path of one, got 'torch.pi'",
        ),
        (
            "torch.nn.ReLU",
            "Function.call must be a function, an object that can be called, or the import path of one, got 'torch.nn.ReLU'",
        ),
        (3, "Function.call must be a function, an object that can be called, or the import path of one, got 3"),
    ],
)
def test_refused(call: object, message: str) -> None:
    with pytest.raises(RuleError) as error:
        Function(call)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_misspelled_name_gets_the_nearest() -> None:
    with pytest.raises(RuleError, match=r": torch.nn.functional has no 'rellu' \(did you mean 'relu"):
        Function("torch.nn.functional.rellu")


def test_a_fault_inside_the_users_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_transforms.py").write_text("import no_such_package_here\n")
    (tmp_path / "raising_transforms.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        RuleError,
        match="importing broken_transforms raises ModuleNotFoundError: No module named 'no_such_package_here'",
    ):
        Function("broken_transforms.f")
    with pytest.raises(RuleError, match="importing raising_transforms raises ZeroDivisionError: division by zero"):
        Function("raising_transforms.f")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda value: None, "returned for 'net.weight' NoneType, not a tensor"),
        (lambda value: value[:1], r"returned for 'net.weight' a tensor of shape \(1,\), not \(2,\)"),
        (lambda value: value.half(), "a tensor of dtype torch.float16, not torch.float32"),
        (lambda value: value.to_sparse(), "a tensor of layout torch.sparse_coo, not torch.strided"),
        (lambda value: value.to("meta"), "a tensor of device meta, not cpu"),
    ],
)
def test_wrong_result(call: object, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        Function(call)([torch.ones(2)], Context(names=["net.weight"]))  # type: ignore[arg-type]
