"""What a rule leaves out is said with the reason, one line for each class and reason."""

import pytest
from torch import nn

from lightning_hooks import StatsMonitor, Watch, match
from lightning_hooks.engine.inspecting.left_out import left_out_of

CONTAINER = "has children, which are watched, and no parameters of its own"
UNCALLED = "torch uses its parameters directly and never calls it"


def encoder(layers: int) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), layers)


def test_the_default_rules_say_what_they_leave_out():
    assert list(map(str, match(nn.ModuleDict({"encoder": encoder(4), "loss": nn.MSELoss()})).left_out)) == [
        f"watch[0] leaves out encoder (TransformerEncoder): {CONTAINER}",
        "watch[0] leaves out encoder.layers.0, encoder.layers.1, encoder.layers.2 and 1 more (TransformerEncoderLayer): "
        f"{CONTAINER}",
        "watch[0] leaves out encoder.layers.0.self_attn.out_proj, encoder.layers.1.self_attn.out_proj, "
        f"encoder.layers.2.self_attn.out_proj and 1 more (NonDynamicallyQuantizableLinear): {UNCALLED}",
        "watch[0] leaves out loss (MSELoss): a loss, or a part of one",
        "watch[0] leaves out encoder.layers: the ModuleList has no forward(), and torch calls hooks around forward() only",
    ]


def test_the_lines_stand_below_the_table():
    found = match(nn.Sequential(nn.Sequential(nn.ReLU())), rules=[Watch(modules="*", select="leaves")])
    line = "watch[0] leaves out 0 (Sequential): has children"
    assert str(found).splitlines()[-1] == line
    assert found.markdown().splitlines()[-2:] == ["", f"- {line}"]
    found = match(nn.Sequential(nn.ReLU()), rules=[Watch(modules="*", select="leaves")])
    assert found.markdown().splitlines()[-1].startswith("| watch[0]")


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (Watch(modules="*"), []),
        (Watch(params="*"), []),
        (Watch(modules="encoder.layers.?", select="leaves"), ["encoder.layers.0", "encoder.layers.1"]),
        (Watch(modules=["encoder.layers.?", "!*.1"], select="layers"), ["encoder.layers.0"]),
        (Watch(modules="*", types="TransformerEncoder", select="layers"), ["encoder"]),
    ],
    ids=["all modules", "parameters", "names", "exclusion", "types"],
)
def test_only_what_a_rule_matches_by_name_and_class_is_left_out(rule, names):
    net = nn.ModuleDict({"encoder": encoder(2)})
    assert [name for each in left_out_of(net, [rule]) for name in each.names] == names


def test_what_two_rules_leave_out_is_said_once():
    rules = [Watch(modules="*", select="layers", tensors="output"), Watch(modules="*", select="layers", tensors="input")]
    (only,) = left_out_of(nn.Sequential(nn.Sequential(nn.ReLU())), rules)
    assert (only.rule, only.names) == ("watch[0]", ("0",))


def test_a_callback_says_it_too():
    net = nn.ModuleDict({"a": nn.Sequential(nn.Linear(1, 1))})
    assert [each.names for each in StatsMonitor().match(net).left_out] == [("a",)]  # type: ignore[arg-type]
