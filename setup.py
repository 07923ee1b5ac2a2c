"""Builds the compiled part; everything else about the package is in pyproject.toml.

The compiled part knows no torch and uses the stable interface of Python, so one wheel for each platform serves every Python
from 3.11 on. It needs GCC or Clang, on Windows clang-cl beside Microsoft's build tools. Without it plain torch and Python
serve, so it is optional; where it cannot be built, the wheel is py3-none-any. The environment variable LIGHTNING_HOOKS_BUILD
says whether it is wanted:

    compiled    an error where it cannot be built, as for the wheels of a release
    pure        without it: the wheel py3-none-any
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("lightning_hooks/backends/src")  # relative to this file, as setuptools wants it
WINDOWS = sys.platform == "win32"
CLANG_CL = shutil.which("clang-cl") if WINDOWS else None
# Interpreters without the lock have no stable interface.
POSSIBLE = not sysconfig.get_config_var("Py_GIL_DISABLED") and (not WINDOWS or CLANG_CL is not None)

wanted = os.environ.get("LIGHTNING_HOOKS_BUILD", "")
if wanted not in ("", "compiled", "pure"):
    raise SystemExit(f"LIGHTNING_HOOKS_BUILD={wanted!r}: choose 'compiled' or 'pure', or leave it unset")
if wanted == "compiled" and not POSSIBLE:
    raise SystemExit("LIGHTNING_HOOKS_BUILD=compiled: it needs clang-cl on Windows, and an interpreter with the lock")


class Build(build_ext):
    """Compiles with clang-cl where setuptools would take Microsoft's compiler, which has no vector extensions."""

    def build_extensions(self) -> None:
        """Called once the compiler is known."""
        if self.compiler.compiler_type == "msvc":
            self.compiler.initialize()
            self.compiler.cc = CLANG_CL
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Called for the extension; after an error, setuptools goes on if the extension is optional."""
        try:
            super().build_extension(ext)
        except Exception:
            self._build_without()
            raise

    def _build_without(self) -> None:
        """Make the wheel the pure one: with the tag of a platform, it would be taken for a compiled one."""
        self.distribution.ext_modules = []
        wheel = self.distribution.command_obj.get("bdist_wheel")
        if wheel is not None:
            wheel.root_is_pure = True


NATIVE = Extension(
    "lightning_hooks.backends._native",
    sources=sorted(map(str, FOLDER.glob("*.cpp"))),
    depends=sorted(str(path) for pattern in ("*.hpp", "*.inc") for path in FOLDER.glob(pattern)),
    include_dirs=[str(FOLDER)],
    language="c++",
    extra_compile_args=["/std:c++17", "/clang:-O3", "/EHsc"]
    if WINDOWS
    else ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-pthread", "-Wno-psabi"],
    py_limited_api=True,
    optional=wanted != "compiled",
)

if wanted == "pure" or not POSSIBLE:
    setup()
else:
    setup(ext_modules=[NATIVE], cmdclass={"build_ext": Build}, options={"bdist_wheel": {"py_limited_api": "cp311"}})
