"""How a script of the benchmarks hands over what it measured: JSON with the machine and the versions beside the rows."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, is_dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("torch", "triton", "lightning", "torchmetrics", "tensorboard", "numpy", "wandb", "lightning-hooks")


def full() -> bool:
    """Whether the long form was asked for.

    Example:
        >>> full() == (os.environ.get("FULL", "0") not in ("", "0"))
        True
    """
    return os.environ.get("FULL", "0") not in ("", "0")


def environment() -> dict[str, Any]:
    """The machine and the versions."""
    import torch

    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "kernel": kernel_in_use(),
        "full": full(),
        **versions,
        **_gpu(),
    }


def _gpu() -> dict[str, str]:
    """The device, and what measures there."""
    import torch

    if not torch.cuda.is_available():
        return {}
    return {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), "cuda kernel": kernel_in_use("cuda")}


def kernel_in_use(device: str = "cpu") -> str:
    """Which kernel measures, in the package's own words; a package without a choice has plain operations only."""
    name = "in_use" if device == "cpu" else "in_use_on_cuda"
    in_use = getattr(import_module("lightning_hooks.stats.kernels"), name, None)
    return "torch" if in_use is None else str(in_use())


def write(name: str, rows: Iterable[Any], folder: Path = RESULTS, **more: Any) -> Path:
    """Write `<name>.json`.

    Args:
        name: of the table.
        rows: mappings or dataclasses.
        folder: where to.
        more: further entries beside the rows.
    """
    plain = [asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), "rows": plain, **more}, indent=1, ensure_ascii=False) + "\n")
    return path


def in_new_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function of a module returns in a process of its own, as each training has one.

    In a process that has trained other models before, memory lies differently.

    Args:
        function: to be called; pickled by its name.
        args: its positional arguments.
        kwargs: its other ones.

    Example:
        >>> in_new_process(divmod, 7, 2)
        (3, 1)
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(function, *args, **kwargs).result()


def read(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """What `write` wrote, or None where it did not."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--name", help="name of the JSON file, without ending")
    return parser


def _commit() -> str:
    """What the package is at, and whether it was changed since."""
    root = RESULTS.parent.parent
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    except OSError:  # no git
        return "unknown"
    if found.returncode != 0:
        return "unknown"
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "lightning_hooks"], cwd=root).returncode
    return found.stdout.strip() + (" and changes" if changed else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
