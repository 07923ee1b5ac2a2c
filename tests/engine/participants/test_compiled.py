import pytest
import torch
from torch import nn

from lightning_hooks import Apply, Hook, StatsMonitor, UnsupportedError, Watch, instrument, match
from lightning_hooks.hooks import print_shapes
from lightning_hooks.transforms import Scale


def in_a_part(model):
    model[0] = torch.compile(model[0])


def in_place(model):
    model[0].compile()


@pytest.mark.parametrize("compiled", [in_a_part, in_place])
@pytest.mark.parametrize(
    ("rule", "place"),
    [
        (Apply(Scale(2.0), modules="0.*", tensor="output"), "apply"),
        (Hook(print_shapes, kind="forward", modules="0.0"), "hooks"),
    ],
)
def test_what_cannot_be_traced_is_refused_inside_a_compiled_module(compiled, rule, place):
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    compiled(model)
    expected = rf"^{place}\[0\].modules: '0.0' is compiled \(0\), and .* cannot be part of a compiled graph"
    with pytest.raises(UnsupportedError, match=expected):
        match(model, rules=[rule])


def test_modules_beside_it_and_parameters_inside_it_are_watched():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    in_a_part(model)
    rules = [Watch(modules="1", stats="mean"), Watch(params="0.0.weight", tensors="grad", stats="norm")]
    assert match(model, rules=rules).names == ["1", "0.0.weight"]
    with instrument(model, [StatsMonitor([Watch(modules="1")])]):
        pass
