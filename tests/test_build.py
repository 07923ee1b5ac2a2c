"""What setup.py builds for each value of LIGHTNING_HOOKS_BUILD."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import lightning_hooks

pytest.importorskip("setuptools")
ROOT = Path(__file__).parent.parent
VERSION = lightning_hooks.__version__
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


def copy_of_sources(folder, extension):
    """What a wheel is built from, with a source of the extension that compiles in a moment, or does not."""
    made = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "src")
    shutil.copytree(ROOT / "lightning_hooks", folder / "lightning_hooks", ignore=made)
    (folder / "lightning_hooks/backends/src").mkdir()
    (folder / "lightning_hooks/backends/src/native.cpp").write_text(extension)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)


MODULE = """
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native"};
PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&module); }
"""
WITHOUT_COMPILER = {"CC": "false", "CXX": "false"}
BUILDERS = {
    "setup.py": ["setup.py", "bdist_wheel"],
    "pip": ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--disable-pip-version-check", "-w", "dist", "."],
}


def wheel_of(folder, builder, **environment):
    """The tag of a wheel that is built, and its compiled files."""
    given = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    subprocess.run([sys.executable, *BUILDERS[builder]], cwd=folder, env=given, capture_output=True, check=True)
    (wheel,) = folder.glob("dist/*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "lightning_hooks/__init__.py" in names and not [name for name in names if ".data/" in name]
    return wheel.name.partition(f"-{VERSION}-")[2], [name for name in names if name.endswith((".so", ".pyd"))]


@pytest.mark.slow
@pytest.mark.parametrize("builder", BUILDERS)
def test_without_a_compiler_the_wheel_is_the_pure_one(tmp_path, builder):
    copy_of_sources(tmp_path, MODULE)
    assert wheel_of(tmp_path, builder, **WITHOUT_COMPILER) == ("py3-none-any.whl", [])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
@pytest.mark.parametrize("builder", BUILDERS)
def test_with_a_compiler_the_wheel_is_of_the_platform_and_of_every_python(tmp_path, builder):
    copy_of_sources(tmp_path, MODULE)
    tag, compiled = wheel_of(tmp_path, builder)
    assert tag.startswith("cp311-abi3-") and compiled == ["lightning_hooks/backends/_native.abi3.so"]


@pytest.mark.slow
def test_a_wheel_that_must_be_compiled_is_not_built_without_a_compiler(tmp_path):
    copy_of_sources(tmp_path, MODULE)
    with pytest.raises(subprocess.CalledProcessError):
        wheel_of(tmp_path, "setup.py", LIGHTNING_HOOKS_BUILD="compiled", **WITHOUT_COMPILER)


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda path: path.name)
def test_workflows_name_what_they_run_exactly(path):
    text = path.read_text(encoding="utf-8")
    actions = re.findall(r"uses: (?!\./)(.*)", text)
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action) for action in actions), actions
    tools = re.findall(r"pipx run (\S+)", text)
    assert all(re.fullmatch(r"[\w-]+==\d+(\.\d+)+", tool) for tool in tools), tools


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version"] and "version" not in project


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")), ids=lambda path: path.name)
def test_issue_forms_have_what_a_code_host_needs(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name != "config.yml":
        assert form["name"] and form["description"] and all(each["attributes"]["label"] for each in form["body"])
