import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_hooks

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


@pytest.mark.parametrize("room", ["callbacks", "engine", "records", "hooks", "tensorboard", "transforms"])
def test_every_room_lists_what_a_user_may_touch(room):
    module = importlib.import_module(f"lightning_hooks.{room}")
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("name", lightning_hooks.__all__)
def test_every_public_name_is_in_the_readme_or_a_page_of_the_docs(name):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"`{name}" in page.read_text(encoding="utf-8") for page in pages)


def test_no_file_holds_two_ideas():
    files = [*(ROOT / "lightning_hooks").rglob("*.py")]
    assert {f.name: n for f in files if (n := len(f.read_text(encoding="utf-8").splitlines())) > 400} == {}


def test_no_full_backward_hook_and_no_waiting_for_the_device_in_a_tap():
    for file in (ROOT / "lightning_hooks").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.name != "user_kinds.py":  # where a user asks for that very hook
            assert "register_full_backward_hook(" not in text, file
        if "hooks" in file.parts:
            assert ".item()" not in text, file
            assert ".cpu()" not in text, file
