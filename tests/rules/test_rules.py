import dataclasses
import math
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks import ActivationCapture, Apply, Hook, RuleError, Watch
from lightning_hooks.rules import parse_tensor
from lightning_hooks.rules.reading import as_rules
from lightning_hooks.rules.schedule import EveryN, every_n
from lightning_hooks.transforms import Chain, ClipByNorm, Function, ReverseGradient, Scale, When, Zero


class Plain:
    def __init__(self, factor=1.0):
        if factor < 0:
            raise ValueError("a factor below 0")
        self.factor = factor

    def __call__(self, tensors, context):
        return [self.factor * tensor for tensor in tensors]


@pytest.mark.parametrize(
    "rule",
    [
        Watch(modules="*"),
        Watch(params=["*.weight", "!head.*"], tensors="grad", stats=["norm", "p99"], every_n_steps=3, strict=False),
        Watch(modules="*", types=["Linear"], select="leaves"),
        Apply(Scale(factor=0.5), params="*"),
        Apply([Zero(), ClipByNorm(max_norm=1.0)], params="*", when="backward"),
        Apply(Zero(), modules="relu", tensor="input_grad"),
        Watch(modules="*", group_by={"first": "0.*", "rest": "*"}, every_n_steps={"first": 3, "every": 2}),
        Hook("lightning_hooks.hooks.print_shapes", kind="forward", modules="*", types=["Linear"], stages=["train", "test"]),
    ],
)
def test_repr_can_be_typed_back_in(rule):
    assert eval(repr(rule)) == rule


def test_a_tensor_that_is_named_twice_is_watched_once():
    assert Watch(params="*", tensors=["grad", "update", "grad"]) == Watch(params="*", tensors=["grad", "update"])


def test_rules_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Watch(modules="*").modules = "x"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "watch[0].modules: Watch needs exactly one of modules and params, got neither"),
        ({"modules": "*", "params": "*"}, "watch[0].modules: Watch needs exactly one of modules and params, got both"),
        (
            {"params": "*", "tensors": ["output"]},
            "watch[0].tensors: 'output' is a tensor of modules; a rule on params has param, grad, final_grad, "
            "update, state.<key>",
        ),
        (
            {"modules": "*", "tensors": "grad"},
            "watch[0].tensors: 'grad' is a tensor of params; a rule on modules has input, output, input_grad, output_grad, "
            "inner_input_grad, inner_output_grad",
        ),
        (
            {"modules": "*", "tensors": "outptu"},
            "watch[0].tensors: unknown tensor 'outptu' (did you mean 'output' or 'output_grad'?); a rule on modules has "
            "input, output, input_grad, output_grad, inner_input_grad, inner_output_grad",
        ),
        ({"modules": "*", "tensors": []}, "watch[0].tensors is empty; name at least one tensor or omit it"),
        ({"modules": "*", "stats": []}, "watch[0].stats is empty; name at least one statistic or omit it"),
        ({"modules": [3]}, "watch[0].modules[0] must be a string, got 3"),
        ({"modules": 3}, "watch[0].modules[0] must be a string, got 3"),
        ({"modules": "*", "types": [3]}, "watch[0].types[0] must be a class, a class name or an import path, got 3"),
        ({"modules": "*", "types": []}, "watch[0].types is an empty list; give at least one class, or omit it for all"),
        (
            {"modules": "*", "strict": "false"},
            "watch[0].strict must be True or False (in YAML true or false, without quotes), got 'false'",
        ),
        (
            {"modules": "*", "select": "leafs"},
            "watch[0].select must be one of all, leaves, layers, got 'leafs'",
        ),
        (
            {"params": "*", "every_n_steps": []},
            "watch[0].every_n_steps is an empty list; give an integer of at least 1, a list of steps, or a "
            "mapping with first, every, last",
        ),
        (
            {"params": "*", "every_n_steps": "10"},
            "watch[0].every_n_steps must be an integer of at least 1, a list of steps, or a mapping with first, every, "
            "last, got '10'",
        ),
        (
            {"params": "*", "group_by": True},
            "watch[0].group_by must be a depth of at least 1, patterns, or a mapping of names to patterns, got True",
        ),
        ({"modules": []}, "watch[0].modules is an empty list; give at least one pattern"),
        ({"params": "*", "select": "leaves"}, "watch[0].select='leaves' goes with modules"),
        (
            {"params": "*", "every_n_steps": 0},
            "watch[0].every_n_steps must be an integer of at least 1, a list of steps, or a mapping with first, every, "
            "last, got 0",
        ),
    ],
)
def test_messages_of_watch(fields, message):
    with pytest.raises(RuleError) as caught:
        as_rules(Watch, [fields], "watch")
    assert str(caught.value) == message


def test_an_unknown_key_is_named_with_the_nearest():
    with pytest.raises(RuleError, match=r"^apply\[1\]: unknown key 'parms' \(did you mean 'params'"):
        as_rules(Apply, [{"params": "*", "transform": "Zero"}, {"parms": "*"}], "apply")
    with pytest.raises(RuleError, match=r"^watch must be a list of Watch rules or mappings, got 'x'$"):
        as_rules(Watch, "x", "watch")
    with pytest.raises(RuleError, match=r"^watch\[0\] must be a Watch or a mapping, got 3$"):
        as_rules(Watch, [3], "watch")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"params": "*"}, r"^apply\[0\].transform is missing; give a transform or a list of them$"),
        ({"params": "*", "transform": "Zro"}, r"^apply\[0\].transform: unknown transform 'Zro' \(did you mean 'Zero'"),
        ({"params": "*", "transform": {"init_args": {}}}, r"^apply\[0\].transform: a mapping needs class_path"),
        (
            {"params": "*", "transform": ["Zero", {"class_path": "Scale", "init_args": {"factr": 1}}]},
            r"^apply\[0\].transform\[1\]: .*unexpected keyword argument 'factr'; Scale takes factor$",
        ),
        ({"params": "*", "transform": {"class_path": "ClipByNorm", "init_args": {"max_norm": -1.0}}}, r"max_norm.*-1.0"),
        ({"params": "*", "transform": "no.such.Thing"}, r"^apply\[0\].transform: cannot import 'no.such.Thing'"),
        *(
            (
                {"params": "*", "transform": transform},
                rf"^apply\[0\].transform: '{path}' is not a class of transforms; a function of one tensor goes into Function",
            )
            for path in ("math.pi", "torch.tanh", "collections.OrderedDict", "torch.nn", "torch.nn.ReLU")
            for transform in (path, {"class_path": path})
        ),
        *(
            (
                {"params": "*", "transform": transform},
                r"^apply\[0\].transform: .* cannot be called with \(tensors, context\), as a transform is; a function of one "
                r"tensor goes into Function\(…\)$",
            )
            for transform in (torch.tanh, lambda grad: grad, torch.nn.ReLU(), [lambda: None])
        ),
        ({"params": "*", "transform": "Function"}, "; Function takes call$"),
        (
            {"params": "*", "transform": {"class_path": f"{__name__}.Plain", "init_args": {"factr": 1}}},
            r"^apply\[0\].transform: .*unexpected keyword argument 'factr'$",
        ),
        (
            {"params": "*", "transform": "Zero", "when": "bckward"},
            r"^apply\[0\].when must be 'step' or 'backward', got 'bckward' \(did you mean 'backward'\?\)$",
        ),
        ({"modules": "*", "transform": "Zero", "when": "step"}, r"^apply\[0\].when='step' goes with params"),
        (
            {"modules": "*", "transform": "Zero", "tensor": "output", "when": "backward"},
            r"^apply\[0\].when='backward' goes with gradients; a rule on activations acts in forward \(omit when\)$",
        ),
        (
            {"params": "*", "transform": "Zero", "stage": "backward"},
            r"^apply\[0\]: unknown key 'stage'; it is called when: 'step' or 'backward'$",
        ),
        ({"params": "*", "transform": "Zero", "strict": 0}, r"^apply\[0\].strict must be True or False .* got 0$"),
        (
            {"params": "*", "transform": {"class_path": "Scale", "factor": 2.0}},
            r"^apply\[0\].transform: unknown key 'factor' beside class_path and init_args; arguments go under init_args: "
            r"{factor: …}$",
        ),
        (
            {"params": "*", "transform": {"class_path": "Scale", "dict_kwargs": {"factor": 2.0}}},
            r"^apply\[0\].transform: unknown key 'dict_kwargs' beside class_path and init_args; arguments go under init_args$",
        ),
        (
            {"params": "*", "transform": {"class_path": "Scale", "init_args": [2.0]}},
            r"^apply\[0\].transform.init_args must be a mapping of arguments to values, got \[2.0\]$",
        ),
        (
            {"modules": "*", "transform": "Zero", "tensor": "outptu"},
            r"^apply\[0\].tensor must be one of .* got 'outptu' \(did you mean 'output'",
        ),
        ({"params": "*", "transform": "Zero", "tensor": "output_grad"}, r"^apply\[0\].tensor='output_grad' goes with modules"),
    ],
)
def test_messages_of_apply(fields, message):
    with pytest.raises(RuleError, match=message):
        as_rules(Apply, [fields], "apply")


@pytest.mark.parametrize(
    "transform",
    [
        {"class_path": "lightning_hooks.transforms.scaling.Scale", "init_args": {"factor": 0.5}},
        {"class_path": "Scale", "init_args": {"factor": 0.5}},
        {"class_path": "lightning_hooks.transforms.Scale", "init_args": {"factor": 0.5}},
        {"_target_": "lightning_hooks.transforms.Scale", "factor": 0.5},
        Scale(0.5),
    ],
)
def test_a_transform_by_path_short_name_target_and_instance(transform):
    (rule,) = as_rules(Apply, [{"params": "*", "transform": transform}], "apply")
    assert rule.transform == (Scale(0.5),)


def test_anything_that_takes_tensors_and_a_context_is_a_transform():
    def function(tensors, context):
        return tensors

    class Module(torch.nn.Module):
        def forward(self, tensors, context):
            return tensors

    class WithForward(Plain):
        def forward(self, tensor):
            return tensor

    for transform in (function, lambda *given: given[0], Plain(), Module(), WithForward()):
        assert Apply(transform, params="*").transform == (transform,)


def test_containers_of_hydra_are_read():
    omegaconf = pytest.importorskip("omegaconf")
    listed = omegaconf.OmegaConf.create([{"params": ["*.weight"], "tensors": ["grad"], "stats": ["norm"]}])
    assert as_rules(Watch, listed, "watch") == [Watch(params=["*.weight"], tensors="grad", stats="norm")]


def test_every_n_steps_counts_as_lightning_does():
    assert [step for step in range(12) if every_n(4, "x").due(step)] == [3, 7, 11]
    assert [step for step in range(12) if every_n([0, 5], "x").due(step)] == [0, 5]
    assert [step for step in range(30) if every_n({"first": 5, "every": 5, "last": 20}, "x").due(step)] == [9, 14, 19]


@given(st.integers(1, 50), st.integers(0, 500))
def test_a_schedule_is_due_once_in_every_n_steps(n, start):
    assert sum(EveryN(every=n).due(step) for step in range(start, start + n)) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "every_n_steps must be an integer of at least 1.*got True"),
        ("3", "every_n_steps must be .*got '3'"),
        ([1, -1], r"every_n_steps\[1\] must be an integer of at least 0, got -1"),
        ({"evry": 2}, "unknown key 'evry'; give an integer"),
        ({"first": 9, "last": 3}, "last=3 is before first=9"),
    ],
)
def test_an_invalid_schedule_is_refused(value, message):
    with pytest.raises(RuleError, match=message):
        every_n(value, "every_n_steps")


def test_a_path_selects_a_part_of_a_tensor():
    assert parse_tensor("output[0].logits") == ("output", "[0].logits")
    assert Watch(modules="*", tensors=["output[0]", "input.mask"]).tensors == ("output[0]", "input.mask")
    with pytest.raises(RuleError, match=r"unknown tensor 'grad\[0\]'"):
        Watch(params="*", tensors="grad[0]")


def test_a_key_beside_class_path_and_init_args_is_refused_for_a_hook_too():
    rule = {"kind": "forward", "modules": "*", "call": {"class_path": "collections.OrderedDict", "init_args": {}, "stray": 1}}
    with pytest.raises(RuleError) as caught:
        as_rules(Hook, [rule], "hooks")
    assert str(caught.value) == (
        "hooks[0].call: unknown key 'stray' beside class_path and init_args; arguments go under init_args: {stray: …}"
    )


def test_what_a_class_of_the_user_raises_names_the_option():
    made = {"class_path": f"{__name__}.Plain", "init_args": {"factor": -1}}
    for kind, rule, name in (
        (Apply, {"params": "*", "transform": made}, "transform"),
        (Hook, {"kind": "forward", "modules": "*", "call": made}, "call"),
    ):
        with pytest.raises(RuleError) as caught:
            as_rules(kind, [rule], "rules")
        assert str(caught.value) == f"rules[0].{name}: Plain raised ValueError: a factor below 0"
    condition = {"class_path": "FirstSteps", "init_args": {"n": 0}}
    when = {"class_path": "When", "init_args": {"condition": condition, "transform": "Zero"}}
    with pytest.raises(
        RuleError, match=r"^apply\[0\].transform: When.condition: FirstSteps.n must be an integer of at least 1"
    ):
        as_rules(Apply, [{"params": "*", "transform": when}], "apply")


def test_classes_and_functions_are_shown_by_their_import_path():
    rule = Watch(modules="*", types=[OrderedDict, "Linear"], stats=[math.sqrt, "norm"])
    assert repr(rule) == "Watch(modules='*', types=('collections.OrderedDict', 'Linear'), stats=('math.sqrt', 'norm'))"
    assert repr(Hook(math.sqrt, kind="output_grad", modules="*")) == "Hook(call='math.sqrt', kind='output_grad', modules='*')"
    change = Apply([Chain([Function(math.sqrt), Zero()]), When(math.isclose, transform=ReverseGradient(math.sqrt))], params="*")
    assert repr(change) == (
        "Apply(transform=(Chain(transforms=(Function(call='math.sqrt'), Zero(index=None, dim=1))), "
        "When(condition='math.isclose', transform=ReverseGradient(weight='math.sqrt'))), params='*')"
    )
    capture = ActivationCapture("a", types=OrderedDict, stages="predict")
    assert repr(capture) == "ActivationCapture(modules=('a',), types=('collections.OrderedDict',), stages=('predict',))"
    # A lambda has no import path.
    assert "<function" in repr(Watch(modules="*", stats=lambda tensor: tensor.sum()))


@pytest.mark.parametrize("flag", ["named", "with_kwargs", "prepend", "once", "checked", "strict"])
@pytest.mark.parametrize("value", ["false", None, 1])
def test_every_flag_of_a_hook_is_true_or_false(flag, value):
    with pytest.raises(RuleError, match=rf"^hooks\[0\]\.{flag} must be True or False .*, got {value!r}$"):
        as_rules(Hook, [{"call": print, "kind": "forward", "modules": "*", flag: value}], "hooks")


@pytest.mark.parametrize("kind", ["saved_tensors", "post_accumulate_grad", "optimizer_step_pre", "optimizer_step_post"])
def test_options_of_a_hook_without_an_effect_are_refused(kind):
    call = (print, print) if kind == "saved_tensors" else print
    where = {"saved_tensors": {"modules": "*"}, "post_accumulate_grad": {"params": "*"}}.get(kind, {})
    with pytest.raises(
        RuleError, match=rf"^prepend does not go with '{kind}': torch runs these hooks in the order of registration$"
    ):
        Hook(call, kind=kind, prepend=True, **where)
    if not where:
        with pytest.raises(RuleError, match=f"^types goes with modules and params, not with '{kind}'$"):
            Hook(call, kind=kind, types="Linear")


def test_a_field_that_is_missing_is_named():
    with pytest.raises(RuleError, match=r"^hooks\[0\]\.kind is missing$"):
        as_rules(Hook, [{"call": print, "modules": "*"}], "hooks")
    with pytest.raises(RuleError, match=r"^hooks\[0\]: unknown key 'calls'"):
        as_rules(Hook, [{"call": print, "kind": "forward", "modules": "*", "calls": []}], "hooks")
    with pytest.raises(RuleError, match=r"^hooks\[0\]\.stages must be one or more of train, validate, test, predict, got None"):
        as_rules(Hook, [{"call": print, "kind": "forward", "modules": "*", "stages": None}], "hooks")


UNBALANCED = "missing ), unterminated subpattern at position 0"


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Hook, {"kind": "forward", "params": "*"}, "hooks[0].modules: a hook of kind 'forward' needs modules"),
        (Hook, {"kind": "param_grad", "modules": "*"}, "hooks[0].modules: a hook of kind 'param_grad' needs params"),
        (
            Hook,
            {"kind": "optimizer_step_pre", "params": "*"},
            "hooks[0].params: a hook of kind 'optimizer_step_pre' takes neither modules nor params",
        ),
        (Hook, {"kind": "param_grad", "params": "*", "select": "leaves"}, "hooks[0].select='leaves' goes with modules"),
        (
            Hook,
            {"kind": "node", "modules": "*", "with_kwargs": True},
            "hooks[0].with_kwargs goes with forward_pre and forward, not with 'node'",
        ),
        (
            Hook,
            {"kind": "saved_tensors", "modules": "*"},
            "hooks[0].call: a hook of kind 'saved_tensors' needs a pair (pack, unpack), got 'math.sqrt'",
        ),
        (Apply, {"params": "*", "transform": []}, "apply[0].transform is an empty list; give a transform or a list of them"),
        *(
            (
                Apply,
                {**fields, "transform": "Sign", "stages": "train"},
                "apply[0].stages goes with activations; gradients exist in training only",
            )
            for fields in ({"params": "*"}, {"modules": "*", "tensor": "output_grad"})
        ),
        (
            Watch,
            {"params": "*", "tensors": "state"},
            "watch[0].tensors: 'state' needs a key of the optimizer's state, as in 'state.exp_avg_sq'; got 'state'",
        ),
        *(
            (kind, {**fields, option: given}, f"{where}.{option}: 're:(' is not a valid regular expression ({UNBALANCED})")
            for kind, where, fields, option, given in (
                (Watch, "watch[0]", {}, "modules", "re:("),
                (Watch, "watch[0]", {}, "params", ["*", "!re:("]),
                (Watch, "watch[0]", {"params": "*"}, "group_by", {"all": "re:("}),
                (Apply, "apply[0]", {"transform": "Sign"}, "params", "re:("),
                (Hook, "hooks[0]", {"kind": "forward"}, "modules", ["re:("]),
            )
        ),
        (Watch, {"params": "*", "group_by": [3]}, "watch[0].group_by must hold patterns as strings, got 3"),
    ],
)
def test_fields_that_exclude_each_other_are_refused(kind, fields, message):
    given = {"call": "math.sqrt", **fields} if kind is Hook else fields
    with pytest.raises(RuleError) as caught:
        as_rules(kind, [given], {Hook: "hooks", Apply: "apply", Watch: "watch"}[kind])
    assert str(caught.value) == message


def own_statistic(tensor):
    return tensor.sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"params": "*", "stats": "nrom"},
            "stats[0]: unknown statistic 'nrom' (did you mean 'norm' or 'rms' or 'ratio'?); known are mean, std, rms, norm, "
            "abs_mean, min, max, abs_max, zero_fraction, underflow_fraction, nonfinite, ratio, histogram, p1, p50, p99, "
            "cosine, micro_cosine, noise_scale",
        ),
        ({"modules": "*", "stats": ["norm", "p101"]}, "stats[1]: unknown statistic 'p101' (did you mean "),
        (
            {"params": "*", "stats": ["norm", 5]},
            "stats[1]: 5 is not a statistic; give a name, an import path, a callable or an accumulator",
        ),
        (
            {"params": "*", "tensors": ["param", "grad"], "stats": "ratio"},
            "stats[0]: 'ratio' is a statistic of 'update'; the rule watches param, grad",
        ),
        (
            {"modules": "*", "stats": "cosine"},
            "stats[0]: 'cosine' is a statistic of 'grad'; the rule watches output, output_grad",
        ),
    ],
)
def test_a_statistic_that_a_rule_cannot_compute_is_refused_at_once(options, message):
    with pytest.raises(RuleError) as raised:
        Watch(**options)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("stat", ["norm", "p2.5", "no.such.module", own_statistic, f"{__name__}.own_statistic"])
def test_names_paths_and_callables_are_statistics(stat):
    assert Watch(params="*", stats=[stat, "ratio", "noise_scale"]).stats == (stat, "ratio", "noise_scale")
