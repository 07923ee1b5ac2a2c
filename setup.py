"""Builds the compiled part, where there is a compiler for them; everything else about the package is in pyproject.toml.

It is optional: without it the installation succeeds, and plain torch and Python serve. It is written for GCC and Clang, knows
no torch, and uses the stable interface of Python, so that one binary serves every Python from 3.11 on.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup


def extension(name: str, folder: str) -> Extension:
    """A module from all the C++ files of a folder; paths are relative to this file, as setuptools wants them."""
    files = Path(folder)
    return Extension(
        name,
        sources=sorted(str(path) for path in files.glob("*.cpp")),
        depends=sorted(str(path) for pattern in ("*.hpp", "*.inc") for path in files.glob(pattern)),
        include_dirs=[folder],
        language="c++",
        extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden", "-pthread", "-Wno-psabi"],
        py_limited_api=True,
        optional=True,
    )


NATIVE = extension("lightning_hooks.backends._native", "lightning_hooks/backends/src")

setup(
    ext_modules=[] if sys.platform == "win32" else [NATIVE],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
