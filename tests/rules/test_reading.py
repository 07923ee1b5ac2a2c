"""A rule checks the class behind a class path before calling it."""

import subprocess

import pytest

from lightning_hooks import Apply, Hook, RuleError
from lightning_hooks.records.consumer import as_consumers
from lightning_hooks.rules.reading import as_callable, as_transform
from lightning_hooks.transforms import Function, Mask, When, Zero

CALLED = []


def note(*args, **kwargs):
    CALLED.append((args, kwargs))


class Plain:
    """A class whose objects are not callable."""

    def __init__(self, **given):
        CALLED.append(given)


class OfOne(Plain):
    def __call__(self, tensor):
        return tensor


class OfTwo:
    def __call__(self, tensors, context):
        return tensors


@pytest.fixture(autouse=True)
def nothing_called():
    CALLED.clear()
    yield
    assert not CALLED


def mapping(path, form):
    path = path if "." in path else f"{__name__}.{path}"
    return {"_target_": path, "a": 1} if form == "hydra" else {"class_path": path, "init_args": {"a": 1}}


@pytest.mark.parametrize("form", ["jsonargparse", "hydra"])
@pytest.mark.parametrize("path", ["note", "Plain", "os.system", "subprocess.Popen", "subprocess.run"])
def test_only_a_class_of_the_right_kind_is_called(path, form, monkeypatch):
    monkeypatch.setattr(subprocess.Popen, "__init__", note)
    monkeypatch.setattr("os.system", note)
    item = mapping(path, form)
    shown = item.get("class_path") or item["_target_"]
    called = f"class_path must name a class whose objects can be called, got '{shown}'"
    for make, message in (
        (
            lambda: Apply(item, params="*"),
            f"transform: '{shown}' is not a class of transforms; a function of one tensor goes into",
        ),
        (lambda: Apply([Zero(), item], params="*"), f"transform[1]: '{shown}' is not a class of transforms"),
        (lambda: When(item, transform=Zero()), f"When.condition: {called}"),
        (lambda: Hook(item, kind="forward", modules="*"), f"call: {called}"),
        (lambda: Function(item), f"Function.call: {called}"),
        (lambda: as_callable(item, "x"), f"x: {called}"),
        (
            lambda: as_consumers([item]),
            f"consumers[0]: class_path must name a class with the methods start, consume and close, got '{shown}'",
        ),
    ):
        with pytest.raises(RuleError) as raised:
            make()
        assert str(raised.value).startswith(message)


def test_a_class_of_transforms_takes_tensors_and_a_context():
    with pytest.raises(RuleError, match="OfOne' is not a class of transforms"):
        as_transform(mapping("OfOne", "hydra"), "transform")
    assert isinstance(as_transform({"class_path": f"{__name__}.OfTwo"}, "transform"), OfTwo)
    assert isinstance(as_transform(OfTwo, "transform"), OfTwo)


def test_a_function_behind_an_import_path_is_not_called_when_a_rule_is_constructed():
    Hook(f"{__name__}.note", kind="forward", modules="*")
    Function(f"{__name__}.note")
    Mask(f"{__name__}.note")
