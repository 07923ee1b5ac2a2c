import ast
import enum
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_hooks
from lightning_hooks import callbacks, transforms

ROOT = Path(__file__).parent.parent


def test_importing_the_package_loads_neither_torch_nor_lightning():
    code = "import sys, lightning_hooks; print([m for m in ('torch', 'lightning', 'numpy', 'tensorboard') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_list_of_public_names_is_sorted_and_each_can_be_had():
    assert list(lightning_hooks.__all__) == sorted(lightning_hooks.__all__)
    for name in lightning_hooks.__all__:
        assert getattr(lightning_hooks, name).__doc__, name
    assert set(lightning_hooks.__all__) <= set(dir(lightning_hooks))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = lightning_hooks.Nothing


@pytest.mark.parametrize("package", ["callbacks", "engine", "records", "hooks", "tensorboard", "transforms"])
def test_every_package_lists_what_a_user_may_touch(package):
    module = importlib.import_module(f"lightning_hooks.{package}")
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def imports_for_type_checkers(package):
    """Module and name of each import under `if TYPE_CHECKING`, which must be exported: `import A as A`."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    aliases = [(line.module, alias) for line in block.body for alias in line.names]
    assert all(alias.name == alias.asname for _, alias in aliases)
    return sorted((module, alias.name) for module, alias in aliases)


@pytest.mark.parametrize("package", [lightning_hooks, callbacks, transforms], ids=lambda package: package.__name__)
def test_type_checkers_see_the_names_that_load_lazily(package):
    lazy = [(f"{package.__name__}.{module}", name) for module, names in package._PUBLIC.items() for name in names]
    lazy = sorted([*lazy, *((package.__name__, name) for name in getattr(package, "_PACKAGES", ()))])
    assert imports_for_type_checkers(package) == lazy, f"add the name to _PUBLIC and under TYPE_CHECKING in {package.__file__}"


def test_every_transform_is_public():
    """A new transform: its file, and its name in `transforms/__init__.py`."""
    there = set()
    for info in pkgutil.iter_modules(transforms.__path__, f"{transforms.__name__}."):
        for name, kind in vars(importlib.import_module(info.name)).items():
            is_ours = isinstance(kind, type) and kind.__module__ == info.name and not name.startswith("_")
            if is_ours and issubclass(kind, transforms.Transform):
                there.add(name)
    listed = {name for name in transforms.__all__ if issubclass(getattr(transforms, name), transforms.Transform)}
    assert listed == there, "add it to _PUBLIC in lightning_hooks/transforms/__init__.py, and under TYPE_CHECKING there"


PUBLIC = {name: getattr(package, name) for package in (lightning_hooks, transforms) for name in package.__all__}
CALLABLES = {name: each for name, each in PUBLIC.items() if callable(each)}
# What is checked comes first in both forms: `check(model, batch)` and `check(trainer, module, data)`.
POSITIONAL = {"check": 3, "Instrument": 2, "instrument": 2}
MADE_BY_OTHERS = (Exception, enum.Enum)  # they have the constructors of their bases


@pytest.mark.parametrize("name", CALLABLES)
def test_every_argument_after_the_first_has_to_be_named(name):
    if isinstance(CALLABLES[name], type) and issubclass(CALLABLES[name], MADE_BY_OTHERS):
        return
    kinds = [argument.kind for argument in inspect.signature(CALLABLES[name]).parameters.values()]
    assert sum(kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD) for kind in kinds) <= POSITIONAL.get(name, 1)


@pytest.mark.parametrize("name", sorted({*lightning_hooks.__all__, *transforms.__all__}))
def test_every_public_name_is_in_the_readme_or_a_page_of_the_docs(name):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"`{name}" in page.read_text(encoding="utf-8") for page in pages)


def test_no_file_holds_two_ideas():
    files = [*(ROOT / "lightning_hooks").rglob("*.py")]
    assert {f.name: n for f in files if (n := len(f.read_text(encoding="utf-8").splitlines())) > 400} == {}


def test_no_full_backward_hook_and_no_waiting_for_the_device_in_a_hook():
    for file in (ROOT / "lightning_hooks").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.name != "user_kinds.py":  # where a user asks for that very hook
            assert "register_full_backward_hook(" not in text, file
        if "hooks" in file.parts:
            assert ".item()" not in text, file
            assert ".cpu()" not in text, file
