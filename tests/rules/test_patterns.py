import warnings

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_hooks import Watch
from lightning_hooks.errors import NoMatchError, RuleError
from lightning_hooks.rules.patterns import named_modules, named_parameters, select


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(4, 4)
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.mlp(self.attn(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.encoder = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight


def modules(model, patterns, **options):
    return [target.name for target in select(named_modules(model), patterns, **options)]


def params(model, patterns, **options):
    return [target.name for target in select(named_parameters(model), patterns, **options)]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("encoder.0.*", ["encoder.0.attn", "encoder.0.mlp", "encoder.0.mlp.0", "encoder.0.mlp.1"]),
        ("*.attn", ["encoder.0.attn", "encoder.1.attn"]),
        (r"re:encoder\.\d", ["encoder.0", "encoder.1"]),
        (["!encoder*"], ["embed", "head"]),
        (["!*.mlp*", "encoder.*"], ["encoder.0", "encoder.0.attn", "encoder.1", "encoder.1.attn"]),
        (["head", "embed"], ["embed", "head"]),
        ([r"!re:.*\.[01]\..*", "encoder*"], ["encoder.0", "encoder.1"]),
    ],
)
def test_patterns(patterns, expected):
    assert modules(Net(), patterns) == expected


def test_patterns_are_case_sensitive():
    with pytest.raises(NoMatchError):
        modules(Net(), "HEAD")


def test_containers_and_the_root_are_not_included():
    assert not {"", "encoder"} & set(modules(Net(), "*"))


@pytest.mark.parametrize("types", [["Linear"], ["torch.nn.Linear"], [nn.Linear], ["torch.nn.modules.linear.Linear"]])
def test_types_by_name_path_and_class(types):
    found = modules(Net(), "*", types=types)
    assert found == ["encoder.0.attn", "encoder.0.mlp.0", "encoder.1.attn", "encoder.1.mlp.0", "head"]


def test_subclasses_count():
    assert modules(nn.Sequential(nn.LazyLinear(2)), "*", types=["Linear"]) == ["0"]


def test_types_of_a_parameter_are_those_of_its_module():
    assert params(Net(), "*.bias", types=["Linear"]) == [f"encoder.{i}.{n}.bias" for i in (0, 1) for n in ("attn", "mlp.0")]


def test_leaves():
    assert modules(Net(), "encoder.0*", among="leaves") == ["encoder.0.attn", "encoder.0.mlp.0", "encoder.0.mlp.1"]


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_a_tied_weight_answers_to_either_name_and_appears_once(name):
    assert params(Net(), name) == ["embed.weight"]
    assert params(Net(), ["*", f"!{name}"]) == [n for n in params(Net(), "*") if n != "embed.weight"]


def test_a_shared_module_appears_once():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert modules(model, "*") == ["0", "1"]
    assert modules(model, "2") == ["0"]


def test_parts_of_names_that_wrappers_add_are_removed():
    model = nn.Sequential(nn.DataParallel(nn.Sequential(nn.Linear(2, 2))), nn.ReLU())
    model.add_module("compiled", torch.compile(nn.Linear(2, 2)))
    assert modules(model, "*") == ["0", "0.0", "1", "compiled"]
    assert params(model, "*") == ["0.0.weight", "0.0.bias", "compiled.weight", "compiled.bias"]
    assert isinstance(named_modules(model)[0].value, nn.Sequential)
    assert isinstance(named_modules(model)[-1].value, nn.Linear)


def test_an_attribute_of_a_user_with_the_name_module_stays_in_the_name():
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

        def forward(self, x):
            return self.module(x)

    assert modules(Wrapper(), "*") == ["module"]
    assert params(Wrapper(), "module.*") == ["module.weight", "module.bias"]


def test_a_model_of_one_layer_is_matched_by_the_name_of_its_class():
    layer = nn.Linear(2, 2)
    assert modules(layer, "*", among="layers") == ["Linear"]
    assert named_modules(nn.DataParallel(layer))[0].value is layer
    assert modules(nn.ModuleList(), "*", strict=False, is_written=False) == []


def test_a_lightning_module_without_children_is_not_matched():
    with pytest.raises(NoMatchError, match="'\\*' matches nothing"):
        modules(LightningModule(), "*")


def test_a_rule_that_no_user_wrote_says_nothing_if_it_matches_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert modules(Net(), "nothing", strict=False, is_written=False) == []


def test_no_match_names_the_nearest_names_and_strict():
    with pytest.raises(NoMatchError) as caught:
        modules(Net(), "encoder.0.atn", where="watch[0].modules")
    assert str(caught.value) == (
        "watch[0].modules: 'encoder.0.atn' matches nothing; the nearest names are 'encoder.0.attn', 'encoder.1.attn', "
        "'encoder.0'. Set strict=False if this is intended"
    )


def test_no_match_of_types_lists_the_types_in_the_model():
    with pytest.raises(NoMatchError, match=r"of types \['Conv2d'\] \(the model has Block, Embedding, "):
        modules(Net(), "*", types=["Conv2d"])


def test_not_strict_warns():
    with pytest.warns(UserWarning, match="'nothing' matches nothing"):
        assert modules(Net(), "nothing", strict=False) == []


def test_a_wrong_regular_expression_and_a_wrong_type():
    with pytest.raises(RuleError, match=r"^watch\[1\]: 're:\(' is not a valid regular expression"):
        modules(Net(), "re:(", where="watch[1]")
    with pytest.raises(RuleError, match="types: cannot import 'torch.nn.Lineal'"):
        modules(Net(), "*", types=["torch.nn.Lineal"])
    with pytest.raises(RuleError, match="types holds 3; give a class, a class name or an import path"):
        modules(Net(), "*", types=[3])


def test_the_message_names_a_matching_module_without_a_forward():
    class Loss(nn.Module):
        def __call__(self, x):
            return x.sum()

    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(1, 1)]), "loss": Loss()})
    said = (
        r"^patterns: 'loss' matches nothing: 'loss' is there, but the \w+ defines __call__\(\) and not forward\(\), and torch"
    )
    with pytest.raises(NoMatchError, match=said):
        select(named_modules(model), "loss")
    with pytest.raises(NoMatchError, match=r"'layers' is there, but the ModuleList has no forward\(\)"):
        select(named_modules(model), ["!loss", "re:layer.*s"])


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("re:a{1,99999999999}", "the repetition number is too large"),
        ("!re:" + "(" * 5000 + ")" * 5000, "it is nested too deep"),
    ],
)
def test_an_expression_that_cannot_be_compiled_is_refused_with_a_short_message(pattern, reason):
    for make in (lambda: Watch(modules=["*", pattern]), lambda: Watch(params="*", group_by=[pattern])):
        with pytest.raises(RuleError, match=r"is not a valid regular expression") as raised:
            make()
        assert str(raised.value).endswith(f"({reason})") and len(str(raised.value)) < 400
