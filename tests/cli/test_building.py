"""A module at an import path is built with arguments, and what cannot be built says what to give."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from lightning_hooks.cli.building import built, values_of
from lightning_hooks.errors import RuleError


class Net(nn.Module):
    """A module with a width and an activation."""

    def __init__(self, width: int, act: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.act = nn.Linear(4, width), act or nn.ReLU()


made = Net(3)
PATH = f"{__name__}.Net"


def test_values_are_yaml_and_objects_have_a_class_path() -> None:
    act = "act={class_path: torch.nn.LeakyReLU, init_args: {negative_slope: 0.5}}"
    model = built(PATH, values_of(["--width=3", act]), "")
    assert isinstance(model.act, nn.LeakyReLU) and model.act.negative_slope == 0.5
    values = values_of(["in_channels=1", "out_channels=2", "kernel_size=[3, 1]"])
    assert isinstance(built("torch.nn.Conv2d", values, "").weight, torch.Tensor)


def test_values_of_a_record_that_the_module_does_not_take_are_dropped() -> None:
    model = built(PATH, {"width": 3, "rate": 0.1}, "", recorded=True)
    assert isinstance(model.encoder, nn.Linear) and model.encoder.out_features == 3
    assert built(f"{__name__}.made", {"rate": 0.1}, "", recorded=True) is made
    with pytest.raises(RuleError, match=r"Net\(rate=0.1\) raises TypeError: .* 'rate'. Its arguments are .*; say more"):
        built(PATH, {"rate": 0.1}, "say more")


def called(**values: object) -> nn.Module:
    raise AssertionError("called")


@pytest.mark.parametrize(
    ("path", "values", "named"),
    [
        ("os.system", {"command": "exit 3"}, "os.system"),
        (f"{__name__}.called", {}, f"{__name__}.called"),
        (PATH, {"width": {"class_path": "subprocess.Popen", "init_args": {"args": "true"}}}, "subprocess.Popen"),
        (PATH, {"width": 1, "act": [{"class_path": f"{__name__}.called"}]}, f"{__name__}.called"),
    ],
)
def test_a_record_calls_nothing_but_classes_of_modules(path: str, values: dict[str, object], named: str) -> None:
    said = f"module: {named} is not a class of modules, and is not called with values of a record; give another"
    if named != path:
        what = "a class of modules that the code of the module imports"
        said = f"module: the record names {named}, which is not {what}, and is not called; give another"
    with pytest.raises(RuleError, match=f"^{re.escape(said)}$"):
        built(path, values, "give another", recorded=True)
    act = {"class_path": "torch.nn.LeakyReLU", "init_args": {"negative_slope": 0.5}}
    assert isinstance(built(PATH, {"width": 3, "act": act}, "", recorded=True).act, nn.LeakyReLU)


def test_a_rule_error_of_the_module_itself_is_not_wrapped() -> None:
    with pytest.raises(RuleError, match="^max_norm|^ClipByNorm"):
        built("lightning_hooks.transforms.ClipByNorm", {"max_norm": -1}, "")
