"""The tables and examples of docs/transforms.md agree with the transforms."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import lightning_hooks.transforms as package
from lightning_hooks.transforms import NormalizeByNorm, Scale, Transform
from tests.transforms._catalogue import every_transform

TEXT = (Path(__file__).parents[2] / "docs" / "transforms.md").read_text(encoding="utf-8")
TABLES = TEXT.partition("## The transforms")[2].partition("\n## ")[0]
ROWS = {
    name: (given, needs.strip(), activations.strip())
    for name, given, needs, activations in re.findall(
        r"^\| `(\w+)\(([^`]*)\)` \| .*? \| ?([^|]*)\| ([^|]*) \|[^|]*\|$", TABLES, flags=re.MULTILINE
    )
}
MADE_OF_OTHERS = ("Chain", "When", "NormalizeByNorm")
each = pytest.mark.parametrize("name", sorted(every_transform()))


def test_the_tables_name_exactly_the_exported_transforms() -> None:
    assert set(ROWS) == every_transform()


def test_the_page_names_every_condition() -> None:
    others = {"Context", "Transform"}
    conditions = set(package.__all__) - every_transform() - others
    assert conditions == {"EverySteps", "FirstSteps", "NormAbove"}
    assert all(f"`{name}(" in TEXT for name in conditions)


@each
def test_arguments_and_defaults(name: str) -> None:
    kind = getattr(package, name)
    expected = {field.name: field.default for field in dataclasses.fields(kind) if field.init}
    signature = inspect.signature(eval(f"lambda {ROWS[name][0]}: None"))
    shown = {
        parameter.name: dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
        for parameter in signature.parameters.values()
    }
    assert list(shown) == list(expected) and shown == expected


@pytest.mark.parametrize("name", sorted(every_transform() - set(MADE_OF_OTHERS)))
def test_needs_and_activations(name: str) -> None:
    kind: type[Transform] = getattr(package, name)
    flags = {"all": kind.needs_all, "params": kind.needs_params, "step": kind.needs_step}
    assert ROWS[name][1] == ", ".join(flag for flag, needed in flags.items() if needed)
    # In the forward pass, tensors arrive one at a time, and belong to modules instead of parameters.
    assert ROWS[name][2] == ("yes" if kind.on_activations and not any(flags.values()) else "no")


def test_flags_that_depend_on_options() -> None:
    assert NormalizeByNorm().needs_all and not NormalizeByNorm(per_tensor=True).needs_all
    assert ROWS["NormalizeByNorm"][1:] == ("all, unless `per_tensor`", "with `per_tensor`")


@each
def test_every_docstring_is_whole(name: str) -> None:
    text = getattr(package, name).__doc__
    assert text is not None and "Example:\n" in text and ">>> " in text and "    Source: " in text
    fields = [field.name for field in dataclasses.fields(getattr(package, name)) if field.init]
    for field in fields:
        assert re.search(rf"^        {field}: ", text, flags=re.MULTILINE), field
    if fields:
        assert "Raises:\n" in text


def test_the_example_of_ones_own_works() -> None:
    code = re.search(r"```python\n(from dataclasses.*?)```", TEXT, flags=re.DOTALL)
    assert code is not None
    namespace: dict[str, object] = {"__name__": __name__}
    exec(code[1], namespace)
    momentum, context = namespace["Momentum"](0.5), package.Context()  # type: ignore[operator]
    import torch

    results = [momentum([torch.tensor([value])], context)[0].item() for value in (1.0, 1.0, 0.0)]
    assert results == [1.0, 1.5, 0.75] and momentum == namespace["Momentum"](0.5)  # type: ignore[operator]
    assert Scale(2.0) != momentum
