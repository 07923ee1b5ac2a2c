"""The one command for a machine with a CUDA GPU: build, tests, benchmark, report; nothing is fetched, and a limit is kept.

python -m benchmarks.gpu                 or `make gpu`
python -m benchmarks.gpu --device cpu    the same with tiny sizes, to try it without a GPU

Each part has a time limit of its own, and writes its JSON before the next one begins; the report is written again after each.
What does not fit into the whole limit is skipped, and said. With the variable OUT, results and logs are copied there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.report import render
from benchmarks.output import RESULTS

ROOT = Path(__file__).parents[2]
_SLOWER = {"cuda": 1, "cpu": 5}  # of limits: two cores of a CPU without a GPU are slow
_RESERVE = 8.0  # seconds for the last report


@dataclass(frozen=True)
class Part:
    """A process of its own.

    Args:
        name: of its JSON file.
        command: after the interpreter.
        limit: seconds.
    """

    name: str
    command: Sequence[str]
    limit: float


def parts(device: str, folder: Path, logs: Path) -> list[Part]:
    """What is run, in this order: the tests, then what has a target, then the rest.

    Args:
        device: `cpu` or `cuda`.
        folder: of the JSON files.
        logs: of the logs.
    """
    sizes, seconds = ("gpu", "4") if device == "cuda" else ("tiny", "0.5")
    workers = str(min(8, max(1, (os.cpu_count() or 2) // 2)))
    plain = ["--device", device, "--out", str(folder)]

    def one_fit(letter: str, limit: float, seconds: str) -> Part:
        options = ["--workload", letter, "--sizes", sizes, "--seconds", seconds, "--name", letter]
        return Part(letter, ["-m", "benchmarks.gpu.fits", *options, *plain], limit)

    def alternating(name: str, letter: str, limit: float, variants: str = "everything") -> Part:
        options = ["--workloads", letter, "--variants", variants, "--sizes", sizes, "--seconds", seconds, "--name", name]
        return Part(name, ["-m", "benchmarks.alternating", *options, *plain], limit)

    def by_workload(name: str, limit: float, module: str, workloads: str, *more: str) -> Part:
        options = ["--workloads", workloads, "--sizes", sizes, "--seconds", seconds, "--name", name, *more]
        return Part(name, ["-m", f"benchmarks.{module}", *options, *plain], limit)

    tests = ["-m", "pytest", "-m", "cuda", "tests/cuda", "-p", "no:benchmark", "-p", "no:cacheprovider", "-q"]
    tests += ["-n", workers] if importlib.util.find_spec("xdist") else []
    tests += ["-o", "filterwarnings=default", "--durations=15", f"--junitxml={logs / 'tests.xml'}"]
    found = [
        Part("tests", tests, 130),
        one_fit("D", 80, seconds),
        Part("launches", ["-m", "benchmarks.gpu.launches", *plain], 25),
        one_fit("G", 75, seconds),
        one_fit("A", 40, seconds),
        Part("hot", ["-m", "benchmarks.gpu.hot", *plain], 30),
        by_workload("units", 75, "health", "D,A", "--what", "units"),
        by_workload("step_parts", 30, "step_parts", "D"),
        Part("compiled", ["-m", "benchmarks.gpu.compiled", "--sizes", sizes, "--seconds", seconds, *plain], 80),
        Part("lists", ["-m", "benchmarks.gpu.lists", *plain], 30),
        by_workload("step_parts_compared", 30, "step_parts", "D", "--variant", "compared"),
        by_workload("recorder", 65, "recorder", "D,A", "--what", "beside"),
        by_workload("histograms", 75, "histograms", "D,A"),
        Part("bandwidth", ["-m", "benchmarks.gpu.bandwidth", *plain], 35),
        Part("synchronisations", ["-m", "benchmarks.gpu.synchronisations", *plain], 75),
        by_workload("health", 60, "health", "D,A,G", "--what", "beside"),
        by_workload("recorder_alone", 60, "recorder", "A,G", "--what", "alone"),
        alternating("B", "B", 40),
        alternating("C", "C", 40),
        Part("peers", ["-m", "benchmarks.peers", "--workloads", "A", "--sizes", sizes, "--seconds", seconds, *plain], 45),
        alternating("control", "A", 30, "control,idle_hooks"),
        alternating("final", "A", 60, "final,histograms"),
    ]
    return [replace(part, limit=part.limit * _SLOWER[device]) for part in found]


def build(log: Path) -> str:
    """Build the compiled part beside its sources, where it is not there; returns what came of it, as `_run` does.

    It runs in a folder without pyproject.toml, which older versions of setuptools reject; nothing in it is needed here.
    """
    if _imports():
        return "done"
    part = Part("build", ["setup.py", "build_ext", "--build-lib", str(ROOT)], 120)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("setup.py", "lightning_hooks"):
            Path(folder, name).symlink_to(ROOT / name)
        said = _run(part, part.limit, log, {**os.environ, "LIGHTNING_HOOKS_BUILD": "compiled"}, Path(folder))
    return "failed" if said == "done" and not _imports() else said


def _imports() -> bool:
    found = subprocess.run(
        [sys.executable, "-c", "from lightning_hooks.backends import _native"], cwd=ROOT, capture_output=True
    )
    return found.returncode == 0


def _run(
    part: Part, limit: float, log: Path, environment: os._Environ[str] | dict[str, str], folder: Path | None = None
) -> str:
    """Run a part in a folder, default this tree, with its output in a log; returns `done`, `failed` or `stopped after … s`."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *part.command],
            cwd=folder or ROOT,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            return "done" if process.wait(limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # its workers too
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return f"stopped after {limit:.0f} s"


def counts_of_tests(xml: Path) -> dict[str, object]:
    """What the tests came to, from pytest's XML; nothing where there is none."""
    if not xml.exists():
        return {}
    suite = next(ElementTree.parse(xml).getroot().iter("testsuite"))
    cases = list(suite.iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(bad) - len(skipped),
        "failed": [f"{case.get('classname')}::{case.get('name')}" for case in bad],
        "skipped": [f"{case.get('name')}: {_message(case)}" for case in skipped],
    }


def _message(case: ElementTree.Element) -> str | None:
    found = case.find("skipped")
    return None if found is None else found.get("message")


def machine(device: str) -> str:
    """A word for the machine: that of its GPU, such as `h100`."""
    if device == "cpu":
        return "dry"
    import torch

    name = torch.cuda.get_device_name().lower()
    found = re.search(r"[a-z]+\d+\w*", name)
    return found.group() if found else re.sub(r"\W+", "-", name)


def main(arguments: list[str] | None = None) -> int:
    """Build, test, measure, render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--limit", type=float, help="seconds for everything; default 560, on a CPU 2800")
    parser.add_argument("--only", nargs="*", help="the parts to run; default all")
    options = parser.parse_args(arguments)
    limit = options.limit or 560.0 * _SLOWER[options.device]
    started = time.monotonic()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device; DEVICE=cpu tries the same with tiny sizes on the CPU")
    name = machine(options.device)
    folder, report = RESULTS / name, RESULTS.parent / f"RESULTS-{name}.md"
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.json"), *logs.glob("*")):
        old.unlink()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment |= {"LIGHTNING_HOOKS_TEST_DEVICE": options.device, "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", "4" if options.device == "cuda" else "1")
    # By default each process of the tests starts a compile worker for each core: beside seven others a test took 47 s.
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    environment.pop("LIGHTNING_HOOKS_KERNEL", None)
    outcome: dict[str, dict[str, object]] = {}

    def record(name: str, said: str, begun: float) -> None:
        seconds, log = time.monotonic() - begun, logs / f"{name}.log"
        outcome[name] = {"outcome": said, "seconds": round(seconds, 1)}
        if name == "tests":
            outcome[name] |= counts_of_tests(logs / "tests.xml")
        print(f"== {name}: {said}, {seconds:.0f} s", flush=True)
        if log.exists():
            print("\n".join(log.read_text(errors="replace").splitlines()[-6 if said == "done" else -25 :]), flush=True)
        (folder / "parts.json").write_text(json.dumps(outcome, indent=1, ensure_ascii=False) + "\n")
        report.write_text(render(folder))
        _copy_out(folder, report, logs)

    record("build", build(logs / "build.log"), started)
    for part in parts(options.device, folder, logs):
        if options.only is not None and part.name not in options.only:
            continue
        begun = time.monotonic()
        left = limit - _RESERVE - (begun - started)
        log = logs / f"{part.name}.log"
        record(part.name, _run(part, min(part.limit, left), log, environment) if left > 10 else "no time left", begun)
    print(f"written: {report.relative_to(ROOT)}, {time.monotonic() - started:.0f} s in all")
    return 0 if all(each["outcome"] == "done" for each in outcome.values()) else 1


def _copy_out(folder: Path, report: Path, logs: Path) -> None:
    """Copy what there is to the folder that OUT names: the report, all JSON in one file, and the logs in one."""
    if not os.environ.get("OUT"):
        return
    out = Path(os.environ["OUT"])
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(report, out)
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    (out / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    text = "".join(f"==== {log.stem}\n{log.read_text(errors='replace')}\n" for log in sorted(logs.glob("*.log")))
    (out / "logs.txt").write_text(text[-8_000_000:])
    if (logs / "tests.xml").exists():
        shutil.copy(logs / "tests.xml", out)


if __name__ == "__main__":
    sys.exit(main())
