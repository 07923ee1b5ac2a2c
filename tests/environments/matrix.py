"""`make matrix`: the tests on other versions, each combination in an environment of its own.

    python -m tests.environments.matrix                    every combination of COMBINATIONS
    python -m tests.environments.matrix floors torch-2.15  these
    python -m tests.environments.matrix --product          every Python x torch x Lightning that there is, one after the other
    python -m tests.environments.matrix floors --again     what failed there before
    python -m tests.environments.matrix --render           docs/versions.md from the results that are kept

The package is built once as a wheel and installed from it; the tests run from a copy of this tree without the sources.
Each result is kept in results.json beside this file, and the page is written from all of them, so that combinations can be
run one at a time. An environment takes up to 6 GB and is removed after its run. With `uv`, on the path or named by UV,
downloads are shared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.environments.versions_page import page

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "versions.md"

FOLDERS = ["hooks", "engine", "callbacks", "stats", "tensorboard", "records", "backends", "cli", "conformance"]
TESTS = [*(f"tests/{name}" for name in FOLDERS), "tests/transforms/test_laws.py", "tests/capture/test_round_trip.py"]
# What needs no browser.
DASHBOARD = [f"tests/dashboard/test_{name}.py" for name in ("about", "diff", "explanations", "runs", "site", "tiles", "tree")]
SKIPPED = {
    "tests/conformance/test_zoo.py": "needs transformers, which has ranges of its own",
    **{f"tests/conformance/test_{name}.py": "several processes" for name in ("ddp", "products", "ranks", "sharded")},
    "tests/stats/kernels/test_threads.py": "several processes",
}
EXTRAS = ["lightning", "pytorch-lightning", "cli", "capture"]
# Old TensorBoards import pkg_resources.
NEEDED = ["pytest>=8", "pytest-xdist", "hypothesis", "hydra-core", "scikit-learn", "setuptools<81"]
REPORTED = ["torch", "lightning", "pytorch-lightning", "torchmetrics", "tensorboard", "numpy", "jsonargparse", "safetensors"]


@dataclass(frozen=True)
class Combination:
    """One environment.

    Args:
        name: of it, for the command line and the page.
        python: `3.11`.
        pins: requirements beside the package's own.
        lightning: which of the two distributions; the tests are rewritten to the name of the second.
        lowest: every requirement of the package at its lower bound.
        environment: variables of the run.
        tests: which are run, unless the command line says.
    """

    name: str
    python: str
    pins: tuple[str, ...]
    lightning: str = "lightning"
    lowest: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = tuple(TESTS)


COMBINATIONS = [
    Combination("floors", "3.11", (), lowest=True),
    Combination("floors-dashboard", "3.11", (), lowest=True, tests=tuple(DASHBOARD)),
    Combination("torch-2.11", "3.11", ("torch==2.11.*", "lightning==2.5.*")),
    Combination("torch-2.12", "3.12", ("torch==2.12.*", "lightning==2.6.*")),
    Combination("torch-2.13", "3.11", ("torch==2.13.*", "lightning==2.5.*")),
    Combination("torch-2.14", "3.13", ("torch==2.14.*", "lightning==2.5.*")),
    Combination("newest", "3.13", ()),
    Combination("newest-python", "3.14", ()),
    Combination("only-pytorch-lightning", "3.12", ("torch==2.12.*", "pytorch-lightning==2.6.*"), "pytorch-lightning"),
]
PRODUCT = [
    Combination(f"{python}-torch-{torch}-lightning-{lightning}", python, (f"torch=={torch}.*", f"lightning=={lightning}.*"))
    for python, torch, lightning in itertools.product(
        ["3.11", "3.12", "3.13", "3.14"], ["2.10", "2.11", "2.12", "2.13", "2.14", "2.15"], ["2.5", "2.6"]
    )
]


def interpreter(version: str) -> str | None:
    """A Python of a minor version: named by PYTHON_3_13, on the path, or among pyenv's."""
    named = os.environ.get(f"PYTHON_{version.replace('.', '_')}")
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for path in (named, *map(str, pyenv), shutil.which(f"python{version}")):
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def built_wheel(folder: Path) -> Path:
    """The wheel of this tree, which serves every Python; built from a copy, since others may be built beside it."""
    with tempfile.TemporaryDirectory() as source:
        for name in files_of_tree():
            target = Path(source) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), source])
    (wheel,) = folder.glob("*.whl")
    return wheel


def files_of_tree() -> list[str]:
    """The files under version control, and those that may come to be."""
    listed = run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).is_file()]


def commit_of_tree() -> str:
    """The commit that was run, with `+` where the tree differs from it in more than what this writes."""
    written = [f":!{path.relative_to(ROOT).as_posix()}" for path in (RESULTS, PAGE)]
    changed = run(["git", "status", "--porcelain", "--", ".", *written], cwd=ROOT).stdout
    return run(["git", "rev-parse", "--short=9", "HEAD"], cwd=ROOT).stdout.strip() + ("+" if changed else "")


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done


def install(combination: Combination, wheel: Path, venv: Path) -> Path:
    """Make the environment; returns its Python."""
    base = interpreter(combination.python)
    assert base is not None
    python = venv / "bin" / "python"
    wanted = [f"lightning-hooks[{combination.lightning},cli,capture] @ {wheel.as_uri()}", *combination.pins, *NEEDED]
    uv = os.environ.get("UV") or shutil.which("uv")
    if combination.lowest:
        wanted += [f"{name}=={version}" for name, version in floors().items()]
    if uv:
        run([uv, "venv", "--quiet", "--python", base, str(venv)])
        run([uv, "pip", "install", "--quiet", "--python", str(python), *wanted])
    else:
        run([base, "-m", "venv", str(venv)])
        run([str(python), "-m", "pip", "install", "--quiet", *wanted])
    return python


def floors() -> dict[str, str]:
    """The lower bounds that pyproject.toml states for what the package needs."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    found = (re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def copy_of_tests(folder: Path, lightning: str) -> None:
    """The tree without the package, which is to come from the wheel."""
    for name in files_of_tree():
        source = ROOT / name
        if name.startswith("lightning_hooks/"):
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        if lightning == "pytorch-lightning" and name != _KNOWS_BOTH and name.startswith(_TESTS) and source.suffix == ".py":
            text = source.read_text(encoding="utf-8")
            for one, other in _RENAMED.items():
                text = text.replace(one, other)
            target.write_text(text, encoding="utf-8")


_TESTS = "tests/", "galleries/"
_KNOWS_BOTH = "tests/callbacks/test_lightning_names.py"
_RENAMED = {"lightning.pytorch": "pytorch_lightning", "from lightning import": "from pytorch_lightning import"}


def try_out(combination: Combination, wheel: Path, work: Path, workers: int, tests: list[str]) -> dict[str, Any]:
    """Install, run the tests, and say what came of it."""
    venv, folder = work / f"venv-{combination.name}", work / f"tests-{combination.name}"
    for old in (venv, folder):
        shutil.rmtree(old, ignore_errors=True)
    began = time.monotonic()
    result: dict[str, Any] = {
        "python": combination.python,
    }
    try:
        python = install(combination, wheel, venv)
        result |= json.loads(run([str(python), "-c", _VERSIONS, *REPORTED], cwd=work).stdout)
        copy_of_tests(folder, combination.lightning)
        report = folder / "report.xml"
        skipped = [f"--ignore={name}" for name in SKIPPED]
        command = [str(python), "-m", "pytest", "-v", "-m", "not slow", "-n", str(workers), f"--junitxml={report}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **combination.environment}
        with (work / f"{combination.name}.log").open("w") as log:
            subprocess.run([*command, *skipped, *tests], cwd=folder, env=environment, stdout=log, stderr=log, check=False)
        result |= read_report(report)
    except RuntimeError as error:
        result["error"] = str(error)
    finally:
        shutil.rmtree(venv, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    result["minutes"] = round((time.monotonic() - began) / 60, 1)
    result["date"] = time.strftime("%Y-%m-%d")
    return result


_VERSIONS = """
import importlib.metadata, json, platform, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
import torch
found["torch"] = torch.__version__
print(json.dumps({"python": platform.python_version(), "versions": found}))
"""


def read_report(path: Path) -> dict[str, Any]:
    """The counts of a run, and of what failed the name and the first line of the reason."""
    suite = ElementTree.parse(path).getroot()
    cases = list(suite.iter("testcase"))
    failed = {}
    for case in cases:
        found = [each for kind in ("failure", "error") for each in case.findall(kind)]
        if found:
            name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            failed[name] = (found[0].get("message") or "").split("\n")[0][:300]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - len(failed) - skipped, "failed": failed, "skipped": skipped}


def failed_tests(result: dict[str, Any]) -> list[str]:
    """The tests of a result that failed, as pytest is given them; files for those that could not be imported."""
    return [
        name.partition(".py::")[2].replace(".", "/") + ".py" if name.startswith(".py::") else name for name in result["failed"]
    ]


def main() -> None:
    """Run the combinations of the command line and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="of combinations; default all")
    parser.add_argument("--product", action="store_true", help="every Python, torch and Lightning")
    parser.add_argument("--render", action="store_true", help="only write the page")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "lightning-hooks-matrix")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="run only what failed before, and all tests after an error")
    parser.add_argument("--wheel", type=Path, help="of this tree, where it is built already")
    parser.add_argument("--tests", nargs="*", help="default those of each combination")
    arguments = parser.parse_args()
    # Pip takes what lies on this path for installed, and so would not install the wheel.
    os.environ.pop("PYTHONPATH", None)
    known = {each.name: each for each in [*COMBINATIONS, *PRODUCT]}
    chosen = PRODUCT if arguments.product else COMBINATIONS
    if arguments.names:
        chosen = [known[name] for name in arguments.names]
    if not arguments.render:
        commit = commit_of_tree()  # before results are written
        wheel = arguments.wheel or built_wheel(arguments.work / f"wheel-{os.getpid()}")
        for each in chosen:
            if interpreter(each.python) is None:
                print(f"{each.name}: there is no Python {each.python}", flush=True)
                continue
            before = read_results().get(each.name) if arguments.again else None
            if before is not None and "error" in before:
                before = None  # its tests did not run
            tests = (arguments.tests or list(each.tests)) if before is None else failed_tests(before)
            if not tests:
                print(f"{each.name}: nothing failed before", flush=True)
                continue
            result = try_out(each, wheel, arguments.work, arguments.workers, tests)
            result["commit"] = commit if before is None else f"{before.get('commit', '–')}, {commit}"
            if before is not None and "error" not in result:
                for count in ("passed", "skipped"):
                    result[count] += before[count]
            keep(each.name, result)
            counts = (
                result.get("error") or f"{result['passed']} passed, {len(result['failed'])} failed, {result['skipped']} skipped"
            )
            print(f"{each.name}: {counts} ({result['minutes']} min)", flush=True)
    PAGE.write_text(rendered(read_results()), encoding="utf-8")


def rendered(results: dict[str, Any]) -> str:
    """The page of the results."""
    known = [each for each in COMBINATIONS if each.name in results]
    rest = sorted(set(results) - {each.name for each in known})
    ran = ", ".join(f"`{name}`" for name in TESTS)
    others = [
        f"`{each.name}`: Python {each.python}, {', '.join(each.pins) or 'the newest of everything'}"
        for each in COMBINATIONS
        if each not in known
    ]
    if not {each.name for each in PRODUCT} <= set(results):
        others.append("the full product of Python, torch and Lightning (`python -m tests.environments.matrix --product`)")
    others.append("Lightning 2.7, which is not on PyPI yet, and torch above 2.15")
    skipped = ", ".join(f"`{name}` ({why})" for name, why in SKIPPED.items())
    dashboard = ", ".join(f"`{name}`" for name in DASHBOARD)
    what = f"those in {ran} that are not marked as slow, without {skipped}; in `floors-dashboard` those in {dashboard}"
    return page({name: results[name] for name in [*(each.name for each in known), *rest]}, what, others)


def read_results() -> dict[str, Any]:
    """What has been run, by the name of the combination."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def keep(name: str, result: dict[str, Any]) -> None:
    """Add a result to the others, those of runs beside this one included."""
    results = {**read_results(), name: result}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
