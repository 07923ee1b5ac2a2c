"""Builds the compiled kernel, where there is a compiler for it; everything else about the package is in pyproject.toml.

The extension is optional: without it the installation succeeds and the reference kernel serves. It is written for GCC and
Clang, knows no torch, and uses the stable interface of Python, so that one binary serves every Python from 3.11 on.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("lightning_hooks/stats/kernels/src")  # setuptools wants it relative to this file

kernel = Extension(
    "lightning_hooks.stats.kernels._native",
    sources=[
        str(FOLDER / f"{name}.cpp")
        for name in ("blocks", "careful", "crc", "derive", "measure", "module", "pool", "team", "tensor", "view", "writing")
    ],
    depends=sorted(str(path) for pattern in ("*.hpp", "*.inc") for path in FOLDER.glob(pattern)),
    include_dirs=[str(FOLDER)],
    language="c++",
    extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden", "-pthread", "-Wno-psabi"],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[] if sys.platform == "win32" else [kernel],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
