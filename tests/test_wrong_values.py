"""Wrong values of the arguments of every public class: each is refused with the class or the option in the message."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_hooks
from lightning_hooks import HooksError, RuleError, transforms
from lightning_hooks.transforms import Scale

NEEDED: dict[str, dict[str, Any]] = {
    "ActivationCapture": {"modules": "*", "stages": ["predict"]},
    "ActivationTransforms": {"apply": [{"transform": Scale(1.0), "modules": "*"}]},
    "AddDecayedWeights": {"weight_decay": 0.1},
    "AddNoise": {"std": 0.1},
    "Apply": {"transform": Scale(1.0), "params": "*"},
    "Chain": {"transforms": [Scale(1.0)]},
    "ClipByBlockRMS": {"threshold": 1.0},
    "ClipByGlobalNorm": {"max_norm": 1.0},
    "ClipByNorm": {"max_norm": 1.0},
    "ClipByValue": {"max": 1.0},
    "CustomHooks": {"hooks": [{"call": print, "kind": "forward", "modules": "*"}]},
    "Dropout": {"p": 0.1},
    "EverySteps": {"n": 2},
    "FirstSteps": {"n": 2},
    "Freeze": {"until_step": 2},
    "Function": {"call": "torch.tanh"},
    "GradientTransforms": {"apply": [{"transform": Scale(1.0), "params": "*"}]},
    "Hook": {"call": print, "kind": "forward", "modules": "*"},
    "NormAbove": {"limit": 1.0},
    "PerModuleClip": {"max_norm": 1.0},
    "Scale": {"factor": 1.0},
    "ScaleBySchedule": {"points": [(0, 1.0)]},
    "TopK": {"k": 2},
    "Watch": {"params": "*"},
    "When": {"condition": lightning_hooks.transforms.EverySteps(2), "transform": Scale(1.0)},
}
# Made by the package, not by users: their arguments are not checked. The others have no arguments of their own.
OTHERS = {"Capture", "Context", "Instrument", "Run", "RunContext", "RunFacts", "StepView"}
OTHERS |= {"CheckResult"}
OTHERS |= {"Column"}  # checked with the accumulator that it belongs to
OTHERS |= {"HookPoint", "StepConsumer", "Transform", "instrument"}
OTHERS |= {"Finding", "Severity", "Symptom"}  # what a rule or the package returns
INSTEAD = {("TopK", "fraction"): {"k": None}}


NAMES = [*lightning_hooks.__all__, *sorted(set(transforms.__all__) - {"Transform"})]


def public(name: str) -> Any:
    return getattr(transforms if name in transforms.__all__ else lightning_hooks, name)


def arguments() -> list[tuple[str, str]]:
    """Every argument of every public class, with the name of the class."""
    found = []
    for name in NAMES:
        kind = public(name)
        if isinstance(kind, type) and not issubclass(kind, Exception) and name not in OTHERS:
            found += [(name, argument) for argument in inspect.signature(kind).parameters]
    return found


def is_numeric(name: str, argument: str) -> bool:
    annotation = inspect.signature(public(name)).parameters[argument].annotation
    return re.search(r"\b(int|float|ScheduleSpec|GroupSpec)\b", str(annotation)) is not None


def make(name: str, argument: str, value: Any) -> Any:
    options = {**NEEDED.get(name, {}), **INSTEAD.get((name, argument), {}), argument: value}
    return public(name)(**options)


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["large", "negative", "of many digits"])
@pytest.mark.parametrize(("name", "argument"), [pair for pair in arguments() if is_numeric(*pair)])
def test_an_integer_beyond_the_range_of_a_float_is_refused(name: str, argument: str, value: int) -> None:
    with pytest.raises(RuleError) as caught:
        make(name, argument, value)
    assert argument in str(caught.value)
    assert len(str(caught.value)) < 600, "and not with all its digits"


def test_every_class_is_covered() -> None:
    assert {name for name, _ in arguments()} >= NEEDED.keys()
    assert len([pair for pair in arguments() if is_numeric(*pair)]) > 45


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("Scale", "factor"),
        ("EMA", "weight"),
        ("ReverseGradient", "weight"),
        ("NormalizeByNorm", "scale"),
        ("TrustRatio", "trust_coefficient"),
        ("AddNoise", "std"),
        ("AddDecayedWeights", "weight_decay"),
        ("AdaptiveClip", "eps"),
        ("ScaleByParamNorm", "min_norm"),
        ("ScaleByParamRMS", "min_scale"),
        ("TrustRatio", "min_norm"),
    ],
)
def test_a_factor_or_a_bound_that_is_infinite_in_float32_is_refused(name: str, argument: str) -> None:
    with pytest.raises(RuleError) as caught:
        make(name, argument, 1e39)
    assert str(caught.value) == (
        f"{name}.{argument} must be finite in float32, whose greatest number is 3.40282e+38, got 1e+39"
    )


@pytest.mark.parametrize("clip", [lightning_hooks.transforms.ClipByNorm, lightning_hooks.transforms.ClipByGlobalNorm])
def test_an_integer_that_torch_cannot_take_becomes_a_float(clip: Any) -> None:
    made = clip(10**30)
    assert made.max_norm == 1e30 and isinstance(made.max_norm, float)
    (result,) = made([torch.ones(2)], lightning_hooks.transforms.Context())
    assert torch.equal(result, torch.ones(2))


@pytest.mark.parametrize(("name", "argument"), [("StatsMonitor", "logdir"), ("ActivationCapture", "folder")])
def test_a_path_that_no_folder_can_have_is_refused(name: str, argument: str) -> None:
    for path, wanted in (
        ("x\0y", "without NUL characters"),
        ("a" * 5000, "that is short enough"),
        ("new/" + "a" * 300, "short"),
    ):
        with pytest.raises(RuleError) as caught:
            make(name, argument, path)
        assert str(caught.value).startswith(f"{argument} must be a path") and wanted in str(caught.value)


@pytest.mark.parametrize("read", [lightning_hooks.load_capture, lightning_hooks.read_run])
@pytest.mark.parametrize("path", ["x\0y", "a" * 5000, None, 3])
def test_a_path_that_no_run_can_have_is_refused(read: Any, path: Any) -> None:
    with pytest.raises(RuleError, match="^path must be a path"):
        read(path)


WRONG = [5, 1.5, "x", b"x", None, object(), torch.nn.Linear, [None], [5], {"a": 1}, {5}, True, lambda: 0]
"""Values of many types. An argument may accept some of them."""


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 1))


def right(name: str) -> dict[str, Any]:
    """Arguments with which a function may be called."""
    fixed: dict[str, Any] = {"model": model()}
    if name == "aggregate_losses":
        fixed = {"losses": [model()(torch.ones(2)).sum()]}
    if name == "check":
        fixed |= {"batch": (torch.ones(4, 2), torch.ones(4, 1)), "loss": torch.nn.MSELoss(), "checks": ["StepRuns"]}
    return fixed


FUNCTIONS = ["aggregate_losses", "assert_no_hooks", "check", "instrument", "match", "paused"]
MODULES = {"hooks", "transforms"}  # their functions are called by torch, their classes are in `NAMES`
BY_NAME = {"load_capture", "read_run"}  # above


def arguments_of_functions() -> list[tuple[str, str]]:
    signatures = {name: inspect.signature(getattr(lightning_hooks, name)) for name in FUNCTIONS}
    return [(name, argument) for name, signature in signatures.items() for argument in signature.parameters]


def test_every_function_is_covered() -> None:
    public = {name for name in lightning_hooks.__all__ if not isinstance(getattr(lightning_hooks, name), type)}
    assert public - MODULES - BY_NAME <= {*FUNCTIONS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "argument"), [*arguments_of_functions(), *arguments()])
def test_a_value_of_another_type_is_refused_by_name_or_works(
    name: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "CheckReport":
        pytest.skip("made by the package")
    for value in WRONG:
        try:
            if name not in FUNCTIONS:
                make(name, argument, value)
                continue
            made = getattr(lightning_hooks, name)(**{**right(name), argument: value})
            if name == "instrument":
                with made:
                    pass
        except HooksError as error:
            assert len(str(error)) < 2000


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("match", {"model": None}, "match: model must be a torch.nn.Module, got None"),
        ("match", {"model": torch.nn.Linear}, "; give an object of the class"),
        ("match", {"rules": 5}, "match: rules must be a list of Watch, Apply, Hook or mappings, got 5"),
        ("match", {"rules": "x"}, "match: rules must be a list of Watch, Apply, Hook or mappings, got 'x'"),
        ("paused", {"model": None}, "paused: model must be a torch.nn.Module, got None"),
        ("assert_no_hooks", {"model": None}, "assert_no_hooks: model must be a torch.nn.Module, got None"),
        ("check", {"model": 5}, "check: the model must be a torch.nn.Module, or the first argument a Trainer, got 5"),
        ("instrument", {"optimizer": 5}, "optimizer must be a torch optimizer, or a list of them, got int"),
        ("instrument", {"optimizer": "adam"}, "optimizer must be a torch optimizer, or a list of them, got str: 'adam'"),
        ("instrument", {"optimizer": [None]}, "optimizer must be a torch optimizer, or a list of them, got NoneType: None"),
        (
            "instrument",
            {"optimizer": torch.optim.SGD},
            "optimizer must be a torch optimizer, got the class SGD; construct one of it",
        ),
        ("aggregate_losses", {"losses": 5}, "losses must be a list of at least one scalar, got 5"),
        ("aggregate_losses", {"params": 5}, "params must be tensors, as model.parameters(), or None for all leaves, got 5"),
        ("aggregate_losses", {"params": [5]}, "params[0] must be a tensor, got 5"),
        ("aggregate_losses", {"retain_graph": "x"}, "retain_graph must be True or False, got 'x'"),
        ("aggregate_losses", {"parallel_chunk_size": 0}, "parallel_chunk_size must be a whole number from 1"),
    ],
)
def test_what_a_function_says_of_an_argument_of_another_type(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=re.escape(message)):
        getattr(lightning_hooks, name)(**{**right(name), **given})
