"""The command for a GPU: parts that stop in time, whatever they do; what was done is reported. No GPU is needed here."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from benchmarks import health, output
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import compiled
from benchmarks.gpu.report import render
from benchmarks.modes import AllLate, LaunchesAtOnce, LaunchesFromPython, LaunchMode
from benchmarks.workloads import SIZES
from lightning_hooks.stats.kernels import driver
from tests.stats.kernels import operations_in_host_memory, stand_in

XML = """<testsuites><testsuite>
<testcase classname="a" name="passes"/>
<testcase classname="a" name="fails"><failure message="no"/></testcase>
<testcase classname="b" name="skips"><skipped message="needs gigabytes"/></testcase>
</testsuite></testsuites>"""


def test_all_parts_fit_into_the_time_and_come_with_their_device(tmp_path: Path) -> None:
    for device, slower in (("cuda", 1), ("cpu", 5)):
        parts = command.parts(device, tmp_path, tmp_path)
        assert parts[0].name == "tests" and len({part.name for part in parts}) == len(parts)
        assert all("--device" in part.command and device in part.command for part in parts[1:])
        assert sum(part.limit for part in parts[:8]) < 560 * slower  # the tests, the ratios with a target, and their parts
        assert min(part.limit for part in parts) == 25 * slower


@pytest.mark.slow  # torch and Lightning are imported once more
def test_the_tests_run_without_what_a_machine_with_a_gpu_may_lack(tmp_path: Path) -> None:
    absent = ("xdist", "hypothesis", "hydra", "jsonargparse", "optax", "pandas", "playwright", "safetensors", "wandb")
    blocked = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "from pathlib import Path; from benchmarks.gpu import __main__ as command\n"
        "(tests, *_) = command.parts('cuda', Path(sys.argv[1]), Path(sys.argv[1]))\n"
        "sys.argv = [*tests.command[1:], '--collect-only']; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    call = [sys.executable, "-c", blocked, str(tmp_path)]
    run = subprocess.run(call, cwd=command.ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    for name in ("test_diagnosis", "test_fits", "test_kernels", "test_transforms"):
        assert f"tests/cuda/{name}.py::" in run.stdout


def test_a_part_is_stopped_with_what_it_started_and_its_output_is_kept(tmp_path: Path) -> None:
    log, pid = tmp_path / "log", tmp_path / "pid"
    code = f"import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); open({str(pid)!r}, 'w').write(str(p.pid)); "
    part = command.Part("slow", ["-uc", code + "print('so far'); time.sleep(60)"], 60)
    started = time.monotonic()
    assert command._run(part, 3, log, os.environ) == "stopped after 3 s"
    assert time.monotonic() - started < 30 and log.read_text() == "so far\n"
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(int(pid.read_text()), 0)
            time.sleep(0.05)
    assert command._run(command.Part("fails", ["-c", "1 / 0"], 60), 60, log, os.environ) == "failed"
    assert "ZeroDivisionError" in log.read_text()


def test_the_command_reports_each_part_and_copies_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"workload": "A", "title": "MLP", "variant": "everything", "kernel": "triton (3)", "step_ms": 9.0, "median": 1.2}
    row |= {"low": 1.16, "high": 1.3, "of_means": 1.2, "extra_ms": 1.8}
    made = (
        f"from benchmarks import output; from pathlib import Path; output.write('A', [{row}], Path({str(tmp_path / 'dry')!r}))"
    )
    parts = [command.Part("A", ["-c", made], 60), command.Part("G", ["-c", "1 / 0"], 60)]
    monkeypatch.setattr(command, "parts", lambda *args: parts)
    monkeypatch.setattr(command, "build", lambda log: "done")
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "ROOT", tmp_path.parent)
    monkeypatch.setenv("PYTHONPATH", str(output.RESULTS.parents[1]))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert command.main(["--device", "cpu"]) == 1
    report = (tmp_path / "out" / "RESULTS-dry.md").read_text()
    assert "| A: MLP | triton (3) | 9.0 | 1.200 [1.160, 1.300] |" in report and "≤ 1.03, **missed**" in report
    assert "| A | done |" in report and "| G | failed |" in report
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["A"]["rows"] == [row] and found["parts"]["G"]["outcome"] == "failed"
    assert "ZeroDivisionError" in (tmp_path / "out" / "logs.txt").read_text()


@pytest.mark.parametrize("works", [True, False])
def test_the_build_reads_no_metadata_and_its_failure_is_reported(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "lightning_hooks/backends"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text("[project]\nlicense = 1\n")  # which setuptools rejects
    (tmp_path / "setup.py").write_text(
        "import os; from setuptools import Extension, setup\n"
        "optional = os.environ.get('LIGHTNING_HOOKS_BUILD') != 'compiled'\n"
        "native = Extension('lightning_hooks.backends._native', ['lightning_hooks/backends/native.c'], optional=optional)\n"
        "setup(ext_modules=[native])\n"
    )
    source = "#include <Python.h>\nstatic PyModuleDef module = {PyModuleDef_HEAD_INIT};\n"
    source += "PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }\n"
    (package / "native.c").write_text(source if works else "#error no such machine\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "parts", lambda *args: [command.Part("A", ["-c", "print('A was run')"], 60)])
    assert command.main(["--device", "cpu"]) == (0 if works else 1)
    printed = capsys.readouterr().out
    assert ("== build: done" in printed) == works and ("no such machine" in printed) == (not works)
    assert "== A: done" in printed and "A was run" in printed
    assert f"| build | {'done' if works else 'failed'} |" in (tmp_path / "RESULTS-dry.md").read_text()


def test_what_the_tests_came_to_is_read_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "tests.xml"
    assert command.counts_of_tests(path) == {}
    path.write_text(XML)
    found = {"passed": 1, "failed": ["a::fails"], "skipped": ["skips: needs gigabytes"]}
    assert command.counts_of_tests(path) == found
    tests: dict[str, Any] = {"tests": {"outcome": "failed", "seconds": 1.0, **found}}
    (tmp_path / "parts.json").write_text(json.dumps(tests))
    assert "1 passed, 1 failed, 1 skipped; a::fails; skips: needs gigabytes" in render(tmp_path)


def test_the_tables_of_the_kernel_and_of_what_waits(tmp_path: Path) -> None:
    row = {"dtype": "bfloat16", "mb": 536.9, "kernel_us": 250.0, "kernel_gb_s": 2000.0, "with_zeros_gb_s": 1900.0}
    row |= {"sum_gb_s": 2500.0, "copy_gb_s": 3000.0, "share": 0.667}
    output.write("bandwidth", [row], tmp_path, host=[{"what": "a tensor", "tensors": 1, "us": 5.0}])
    waits = ("debug_mode", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaEventSynchronize")
    counts = {f"{name}_{label}": 1.0 for name in waits for label in ("with", "without")}
    output.write("synchronisations", [{"workload": "A", **counts}], tmp_path)
    report = render(tmp_path)
    assert "| 0.67 | ≥ 0.7, **missed** |" in report and "| A | 1 / 1 | 1 / 1 | 1 / 1 | 1 / 1 | 1 / 1 | ≤ 0, met |" in report


def test_the_tables_of_launches_of_tensors_just_written_and_of_units(tmp_path: Path) -> None:
    output.write("launches", [{"what": "cuLaunchKernel", "parameters": 26, "tight_us": 1.234, "cold_us": 3.5}], tmp_path)
    plain = {"dtype": "bfloat16", "mb": 4, "programs": None, "us": 5.5}
    few = {**plain, "programs": 264, "us": 6.5, "magnitudes": False}
    counted = {**plain, "us": 9.5, "magnitudes": False, "counted": True}
    output.write("hot", [{**plain, "magnitudes": True}, {**plain, "us": 4.5, "magnitudes": False}, few, counted], tmp_path)
    row = {
        "workload": "D",
        "title": "GPT",
        "step_ms": 60.0,
        "each": 2.5,
        "each_ms": 90.0,
        "median": 1.15,
        "low": 1.1,
        "high": 1.2,
    }
    output.write("units", [row], tmp_path)
    compared = {"workload": "D", "what": "gradients compared", "tensors": 581, "mb": 1234.5, "launches": 3, "host_us": 99.25}
    output.write("lists", [{**compared, "device_us": 345.67}, {**compared, "device_us": None}], tmp_path)
    report = render(tmp_path)
    assert "| D | gradients compared | 581 | 1,234.5 | 3 | 99.2 | 345.7 |" in report and "| 3 | 99.2 | – |" in report
    assert "| cuLaunchKernel | 26 | 1.23 | 3.50 |" in report
    assert "| with magnitudes | as the package does | 264 programs | with a histogram |" in report
    assert "| bfloat16 | 4 | 5.5 | 4.5 | 6.5 | 9.5 |" in report
    assert "| D: GPT | 60.0 | 2.500, 90.0 ms | 1.1500 [1.1000, 1.2000] | ≤ 1.02, **missed** |" in report


@pytest.mark.parametrize("part", ["fits", "launches", "hot", "lists"])
def test_a_part_writes_its_table_without_a_gpu(part: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"benchmarks.gpu.{part}")
    sizes = ["--sizes", "tiny", "--workload", "A", "--seconds", "0"] if part == "fits" else []
    module.main(["--device", "cpu", "--out", str(tmp_path), *sizes])
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) >= 2 and all(value == value for row in rows for value in row.values())


def test_a_compiled_gpt_is_measured_in_each_way_or_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from lightning_hooks.stats.kernels import in_graphs

    few = ["--compilers", "default", "--backend", "aot_eager", "--sizes", "tiny", "--workload", "C", "--seconds", "0"]
    compiled.main(["--device", "cpu", "--out", str(tmp_path), *few])
    hooks, operations = json.loads((tmp_path / "compiled.json").read_text())["rows"]
    assert (hooks["way"], operations["way"]) == ("hooks", "operations") and not in_graphs.is_used
    for row in (hooks, operations):
        assert row["measured"] == row["rows"] > 60 and row["steps"] == row["steps_watched"] and not row["missing"]
        assert row["graph_breaks"] == 0 and row["compiled_graphs"] <= 4 and row["median"] > 0
        assert row["calls"] == 2 * 2 * 7  # outputs and their gradients of the leaves of two layers: a CPU has no operations
    report = render(tmp_path)
    share = f"{hooks['rows']} of {hooks['rows']}"
    assert f"| default | hooks | {hooks['step_ms']:.1f} |" in report and f"| {share} | 28 |" in report

    def fails(workload: Any, compiler: str, ways: tuple[str, ...], *more: Any) -> list[dict[str, Any]]:
        if "operations" in ways:
            raise RuntimeError("a graph was overwritten\nand more")
        return [{**operations, "way": "hooks", "missing": ["output net.norm"], "steps": 1, "skipped": 2, "reasons": ["a mark"]}]

    monkeypatch.setattr(compiled, "_fit", fails)
    compiled.main(["--device", "cpu", "--out", str(tmp_path), *few])
    report = render(tmp_path)
    assert "| default | operations | – | not measured: RuntimeError: a graph was overwritten |" in report
    assert f"{share}; not output net.norm; **in 1 of {hooks['steps_watched']} steps** |" in report
    assert "0; 2 skipped: a mark |" in report


@pytest.mark.skipif(stand_in.missing() is not None, reason=str(stand_in.missing()))
def test_operations_measure_a_compiled_gpt_in_their_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.install(monkeypatch)
    operations_in_host_memory.install(monkeypatch)
    hooks, operations = compiled.measure(SIZES["tiny"]["C"], "default", 0.0, "cpu", "aot_eager")
    assert hooks["calls"] == 28 and operations["calls"] == 0
    for row in (hooks, operations):
        assert row["measured"] == row["rows"] and row["steps"] == row["steps_watched"] and row["compiled_graphs"] == 3


@pytest.mark.parametrize(
    ("kind", "want"),
    [(LaunchesFromPython, (False, True, False)), (LaunchesAtOnce, (True, False, False)), (AllLate, (True,) * 3)],
)
def test_a_mode_launches_in_its_own_way_only_in_its_blocks(kind: type[LaunchMode], want: tuple[bool, ...]) -> None:
    def way() -> tuple[bool, ...]:
        return driver.is_used, driver.gradients_are_late, driver.outputs_are_late

    before, mode, trainer = way(), kind("mode"), Trainer(logger=False)
    for _ in range(2):
        mode.start(trainer)
        assert way() == want
        mode.stop(trainer)
        assert way() == before
    mode.start(trainer)
    mode.finish(trainer)
    assert way() == before == (True, True, False)


def test_units_are_measured_in_blocks_where_steps_cannot_be_timed() -> None:
    row = health.measure_units_in_blocks(SIZES["tiny"]["A"], 0.0, "cpu")
    assert row["each"] > 0 and row["median"] - 1 == pytest.approx((row["each"] - 1) / 10)


def test_a_table_that_was_measured_at_another_commit_says_so(tmp_path: Path) -> None:
    row = {"workload": "A", "title": "MLP", "variant": "everything", "kernel": "triton (3)", "step_ms": 9.0, "median": 1.2}
    row |= {"low": 1.16, "high": 1.3, "of_means": 1.2, "extra_ms": 1.8}
    for name, commit in (("A", "1234abcd"), ("G", "1234abcd"), ("D", "5678abcd")):
        output.write(name, [{**row, "workload": name}], tmp_path)
        made = json.loads((tmp_path / f"{name}.json").read_text())
        made["environment"] |= {"commit": commit, "gpu": "NVIDIA X", "date": "2026-11-26"}
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    section = render(tmp_path).partition("## Everything")[2]
    assert "D: 2026-11-26, commit 5678abcd, NVIDIA X\n\n| workload |" in section and "A: 2026" not in section


@pytest.mark.parametrize("name", ["h200"])
def test_the_checked_in_report_is_that_of_its_files(name: str) -> None:
    path = output.RESULTS.parent / f"RESULTS-{name}.md"
    report = render(output.RESULTS / name)
    assert path.read_text(encoding="utf-8").rstrip() == report.rstrip(), (
        f"write `benchmarks.gpu.report.render` of benchmarks/results/{name} into {path.name}"
    )


def test_the_large_model_has_about_350_million_parameters() -> None:
    import torch

    with torch.device("meta"):
        net = SIZES["gpu"]["G"].net()
    assert 340e6 < sum(parameter.numel() for parameter in net.parameters()) < 360e6
