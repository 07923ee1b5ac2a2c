"""The report and the pictures, from made-up figures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from benchmarks import output, readers
from benchmarks.picture import draw
from benchmarks.report import render
from benchmarks.run import output_paths
from benchmarks.step_parts import REST, TAKING, WHOLE
from benchmarks.whole_fits import LISTS

RATIO = {"median": 1.1, "low": 1.05, "high": 1.15, "quartiles": [1.0, 1.2], "of_means": 1.11, "extra_ms": 0.5}
BASE: dict[str, Any] = {"workload": "A", "title": "an <MLP>", "kernel": "native", "step_ms": 5.0, "rounds": 3}


def fill(folder: Path) -> None:
    ratios = [{**BASE, **RATIO, "variant": variant} for variant in ("everything", "histograms")]
    hundredth = {**BASE, **RATIO, "variant": "every100", "unwatched": 1.001, "one_step_extra_ms": 0.6}
    output.write("alternating", [*ratios, hundredth], folder)
    output.write("control", [{**BASE, **RATIO, "variant": "idle_hooks", "median": 1.06}], folder)
    common = [
        {**BASE, **RATIO, "variant": "default", "overhead": 0.08},
        {**BASE, **RATIO, "variant": "transforms", "extra_ms": 0.7, "overhead": 0.01},
        {**BASE, "variant": "bf16", "skipped": "no bfloat16"},
        {**BASE, **RATIO, "variant": "validation", "overhead": 0.12},
    ]
    output.write("common", common, folder)
    output.write("compiled", [{**BASE, "variant": "compiled", "workload": "C", "skipped": "refused"}], folder)
    peers = [("lightning_hooks", 0.5), ("naive", 21.0), ("wandb.watch", 35.0)]
    output.write("peers", [{**BASE, **RATIO, "who": who, "extra_ms": extra} for who, extra in peers], folder)
    who = [*((name, 1.0) for name in readers.READERS), (readers.TOGETHER, 3.0)]
    output.write("readers", [{**BASE, **RATIO, "who": name, "extra_ms": extra} for name, extra in who], folder)
    beside = {**BASE, "what": "beside", "rows": 152, "usual_us": 3.0, "mean_us": 40.0, "largest_us": 4000.0, "median": 1.0066}
    ratios = [{**BASE, **RATIO, "what": what} for what in ("alone", "units")]
    output.write("health", [beside, *ratios], folder)
    fits = dict.fromkeys(("whole", "mean", "late", "early_ms", "outside_ms"), 1.03)
    output.write("whole_fits", [{**BASE, **fits, "what": what, "over": "nothing", "steps": 400} for what in LISTS], folder)
    output.write("histograms", [{**BASE, **RATIO, "what": "default"}], folder)
    checked = {
        "step_ms": 23.0,
        "parameters": 2_000_000,
        "seconds": 0.46,
        "cpu_seconds": 0.4,
        "steps": 20.0,
        "slowest": "InputsMatter 0.22 s",
    }
    output.write("check", [{**BASE, **checked, "extra_mb": 14.2, "verdict": "17 passed"}], folder)
    speeds = {f"{name}_{unit}": 10.0 for name in ("measure", "numpy", "sum", "copy") for unit in ("ns", "gb_s")}
    lists = [{"workload": "A", "tensors": 22, "elements": 5, "measure_many_ms": 1.0, "foreach_norm_ms": 1.0}]
    output.write("kernels", [{"size": 1000, "dtype": "float32", **speeds}], folder, lists=lists)
    output.write("writer", [{"form": "both", "values": 1000, "call_us": 0.05, "whole_us": 0.2, "bytes": 50.0}], folder)
    costs = [{"rows": rows, "ratio": 2.0, "extra_ms": 1.0, "us_per_row": 1.0} for rows in (100, 10_000)]
    output.write("scaling", costs, folder, memory=[{"rows": 100, "bytes": 1, "mb_per_1000_rows": 0.5}])
    ways = {f"{way}{key}": 1.0 for way in ("", "gathered_") for key in ("bytes", "seconds", "memory")}
    real = {
        "ranks": 2,
        "rows": 9,
        "bytes": 5,
        **{f"{way}_{ms}": 1.0 for way in ("gathered", "reduced") for ms in ("ms", "cpu_ms")},
    }
    ranks = {"ranks": 1024, "rows": 10_002, "collectives": 3, "error": 1e-15, **ways}
    output.write("many_ranks", [ranks], folder, processes=[real])
    pairs = {"workload": "A", "tensors": 22, "transform": "ClipByGlobalNorm", "beside": "torch", "ms": 1.0, "beside_ms": 2.0}
    output.write("transforms", [pairs], folder)
    met = {"what": "a tile", "value": 12.34, "unit": "ms", "target": 50.0}
    output.write("dashboard", [met, {"what": "memory", "skipped": "no Chromium"}], folder)
    step = {"workload": "A", "title": "an <MLP>", "watched_us": 1300.0, "unwatched_us": 100.0}
    whole = {**step, "part": WHOLE, "watched_us": 6100.0, "unwatched_us": 5000.0, "share": 0.1, "overhead": 0.085}
    end = {**step, "part": "StatsMonitor.on_train_batch_end"}
    output.write("step_parts", [end, whole], folder)
    call = {**step, "part": "GradientTransforms.on_before_optimizer_step", "watched_us": 250.0}
    taking = {**step, "part": TAKING, "watched_us": 50.0, "unwatched_us": 0.0}
    output.write("reports", [call, taking, end, whole], folder)
    output.write("unwatched", [end, {**step, "part": REST, "unwatched_us": 4900.0}, whole], folder)


def test_the_report_has_every_table_with_targets(tmp_path: Path) -> None:
    fill(tmp_path)
    text = render(tmp_path)
    assert "1.100 [1.050, 1.150] | 1.060 | 1.110 | 0.50 | – | – | ≤ 1.13, open |" in text
    assert "1.1000 [1.0500, 1.1500] | 1.0010 | 0.50 | – | – | ≤ 1.005, open |" in text
    assert "| 0.50 | 0.091 | 0.080, agrees | – |" in text
    assert "| 23.0 | 0.46 | 0.40 | 20 | InputsMatter 0.22 s | 14 | 8 | 17 passed |" in text
    assert "| 0.70 | 0.091 | 0.010, **does not agree** | – |" in text
    assert "| 0.50 | 0.091 | 0.120, within the noise | – |" in text
    assert "| A: an <MLP> | 250 | 100 | 50 | 200 | 0.0400 | ≤ 0.02, **missed** |" in text
    assert "| A: an <MLP> | 100 | 5,000 | 1.0204 | ≤ 1.005, **missed** |" in text
    assert "not measured: no bfloat16" in text
    assert "not measured: refused" in text
    assert "| a tile | 12.3 ms | ≤ 50, met |\n| memory | not measured: no Chromium | – |" in text
    assert "| A: an <MLP> | on_train_batch_end | 1,300 | 100 | 24.0 |" in text
    assert f"| A: an <MLP> | {WHOLE} | 6,100 | 5,000 | 22.0 |" in text
    assert "| A: an <MLP> | 0.100 | 0.085 | agrees |" in text
    assert "| `commit` | " in text
    assert "| 35.0 | 70.0 | ≥ 30, met |" in text
    assert "| A: an <MLP> | 5.0 | 1.00 | 1.00 | 1.00 | 1.00 | 3.00 | 0.75 | ≤ 1, met |" in text
    assert "| A: an <MLP> | 152 | 5.0 | 3 | 40 | 4,000 | 1.0066 | ≤ 1.01, met |" in text
    assert "| A: an <MLP> | 5.0 | 1.1000 [1.0500, 1.1500] | ≤ 1.12, open |" in text
    assert "| A: an <MLP> | 5.0 | 1.1000 [1.0500, 1.1500] | – |" in text
    assert "Not run: `python -m benchmarks.run --only reference`." in text
    for heading in (
        "Histograms of everything",
        "The measurement of one tensor",
        "Writing a step",
        "From 100 to",
        "Many ranks",
        "Transforms",
        "Where the time of a watched step goes",
        "The page",
    ):
        assert f"## {heading}" in text
    for line in text.splitlines():
        assert "nan" not in line.lower().split(), line


def test_a_section_that_was_measured_elsewhere_says_so(tmp_path: Path) -> None:
    fill(tmp_path)
    for path in tmp_path.glob("*.json"):
        content = json.loads(path.read_text())
        content["environment"] |= {
            "date": "2026-01-02",
            "commit": "abc",
            "cores": 2,
            "kernel": "native",
            "load": [0.5, 1.0, 2.0],
        }
        if path.stem in ("writer", "common"):
            content["environment"] |= {"commit": "def", "cores": 64}
        path.write_text(json.dumps(content))
    said = "2026-01-02, commit def, cores: 64, kernel: native, load: 0.5, 1.0, 2.0"
    sections = {section.partition("\n")[0]: section for section in render(tmp_path).split("\n## ")}
    others = {heading for heading, section in sections.items() if "commit def" in section}
    assert sections["Writing a step of 1,000 values"].startswith(f"Writing a step of 1,000 values\n\n{said}\n\n| form |")
    assert "`StatsMonitor()` alone" in others and "commit abc" not in render(tmp_path)
    assert not {"Everything, at every step", "Transforms"} & others


def test_an_empty_folder_is_a_report_of_nothing(tmp_path: Path) -> None:
    assert render(tmp_path).count("Not run") == 21
    assert draw(tmp_path, tmp_path / "docs") == []


def test_the_pictures_are_well_formed_and_hold_the_figures(tmp_path: Path) -> None:
    fill(tmp_path)
    paths = draw(tmp_path, tmp_path / "docs")
    assert [path.name for path in paths] == ["overhead.svg", "scaling.svg"]
    texts = [ElementTree.parse(path).getroot() for path in paths]
    words = ["".join(root.itertext()) for root in texts]
    assert "1.10×" in words[0] and "an <MLP>" in words[0]
    assert "10,000" in words[1]


def test_the_report_is_that_of_the_recorded_figures() -> None:
    _, path = output_paths(None)
    assert path.read_text(encoding="utf-8").rstrip() == render().rstrip(), "run: python -m benchmarks.run --only"


def test_a_second_machine_has_files_and_a_report_of_its_own_and_no_picture(tmp_path: Path) -> None:
    folder, report = output_paths("h100")
    assert (folder, report) == (output.RESULTS / "h100", output.RESULTS.parent / "RESULTS-h100.md")
    assert output_paths(None) == (output.RESULTS, output.RESULTS.parent / "RESULTS.md")
    fill(tmp_path)
    assert "scaling.svg" not in render(tmp_path)
    assert "![Cost of a row](../docs/scaling.svg)" in render(output.RESULTS)


def test_a_mean_above_the_target_is_said(tmp_path: Path) -> None:
    output.write("alternating", [{**BASE, **RATIO, "of_means": 1.14, "variant": "everything"}], tmp_path)
    assert "| 1.140 | 0.50 | – | – | ≤ 1.13, open; **not by the mean** |" in render(tmp_path)
