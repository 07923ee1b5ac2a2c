"""What setup.py builds for each value of LIGHTNING_HOOKS_BUILD."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools")
ROOT = Path(__file__).parent.parent
DESCRIBE = """
import setuptools
from distutils.core import run_setup
made = run_setup("setup.py", stop_after="init")
print([(each.name, each.optional, each.py_limited_api) for each in made.ext_modules or []])
print(made.command_options.get("bdist_wheel", {}).get("py_limited_api", (None, None))[1])
"""


def described(wanted):
    """The extensions of the wheel, whether they are optional and of the stable interface, and the tag of the interpreter."""
    command = [sys.executable, "-c", DESCRIBE]
    environment = {"LIGHTNING_HOOKS_BUILD": wanted}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="there it depends on clang-cl")
def test_what_is_built():
    native = "lightning_hooks.backends._native"
    assert described("") == [repr([(native, True, True)]), "cp311"]
    assert described("compiled") == [repr([(native, False, True)]), "cp311"]
    assert described("pure") == ["[]", "None"]


def test_another_value_is_an_error():
    command = [sys.executable, "setup.py", "--name"]
    done = subprocess.run(command, cwd=ROOT, env={"LIGHTNING_HOOKS_BUILD": "fast"}, capture_output=True, text=True)
    assert done.stderr == "LIGHTNING_HOOKS_BUILD='fast': choose 'compiled' or 'pure', or leave it unset\n"


def test_a_wheel_has_every_file_but_sources_of_the_extension(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    made = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "lightning_hooks", tmp_path / "lightning_hooks", ignore=made)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    expected = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("lightning_hooks/**/*") if path.is_file()}
    expected -= {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("lightning_hooks/backends/src/*")}
    assert "lightning_hooks/dashboard/page/vendor/uPlot.esm.js" in expected
    command = [sys.executable, "-c", "from setuptools import build_meta; build_meta.build_wheel('dist')"]
    subprocess.run(command, cwd=tmp_path, env={"LIGHTNING_HOOKS_BUILD": "pure"}, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("dist/*-py3-none-any.whl")
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("lightning_hooks/")} == expected
