"""`make clients`: quick starts of packages that are built on Lightning, trained plain and watched, compared bit by bit.

    python -m tests.environments.clients                  every package of CLIENTS
    python -m tests.environments.clients darts gluonts    these
    python -m tests.environments.clients --render         docs/clients.md from the results that are kept

Each package gets an environment of its own (1 to 2 GB each, removed afterwards unless --keep). lightning_hooks lies in a folder
beside it, which is on the path of the watched runs only: plain runs, and the reading of what watched runs saved, happen where
it cannot be imported. Results are kept in clients.json beside this file. With `uv` on the path, or named by UV, downloads are
shared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
RESULTS = HERE / "clients.json"
PAGE = ROOT / "docs" / "clients.md"


@dataclass(frozen=True)
class Client:
    """A package and its quick start.

    Args:
        quick_start: a file of tests/environments/clients, without suffix.
        requirements: what to install.
        what: what the quick start trains, for the page.
    """

    quick_start: str
    requirements: tuple[str, ...]
    what: str


CLIENTS = {
    "neuralforecast": Client("neuralforecast_nhits", ("neuralforecast",), "NHITS and NBEATS, 25 steps each; `save`, `load`"),
    "pytorch-forecasting": Client(
        "pytorch_forecasting_tft", ("pytorch-forecasting",), "Temporal Fusion Transformer, 2 epochs; `load_from_checkpoint`"
    ),
    "darts": Client("darts_nbeats", ("darts[torch]",), "NBEATS, 3 epochs, `save_checkpoints=True`; `load_from_checkpoint`"),
    "scvi-tools": Client("scvi_tools", ("scvi-tools",), "SCVI, 4 epochs; `save`, `load`"),
    "chemprop": Client("chemprop_mpnn", ("chemprop",), "MPNN, 4 epochs, `logger=False`; `load_from_checkpoint`"),
    "gluonts": Client("gluonts_deepar", ("gluonts[torch]",), "DeepAR, 2 epochs; `serialize`, `deserialize`"),
    "pytorch-tabular": Client(
        "pytorch_tabular_category",
        ("pytorch-tabular", "requests"),  # imported, not required
        "category embeddings, 2 epochs; the weights alone",
    ),
    "finetuning-scheduler": Client(
        "finetuning_scheduler_phases", ("finetuning-scheduler",), "a schedule of three phases, 8 epochs; `load_from_checkpoint`"
    ),
    "transformers": Client(
        "transformers_llama",
        ("transformers", "accelerate"),
        "Llama in a LightningModule, bf16-mixed, gradient checkpointing, accumulation; `save_pretrained`",
    ),
}

WATCHED = {
    "default": "callbacks:\n  - class_path: lightning_hooks.StatsMonitor\n",
    "everything": """callbacks:
  - class_path: lightning_hooks.StatsMonitor
    init_args:
      watch:
        - {modules: "*", tensors: [input, output, input_grad, output_grad], stats: [mean, std, norm, histogram], strict: false}
        - {params: "*", tensors: [param, grad, final_grad, update], stats: [mean, std, norm, histogram], strict: false}
  - class_path: lightning_hooks.GradientTransforms
    init_args:
      apply:
        - {params: "*", transform: {class_path: lightning_hooks.transforms.ClipByGlobalNorm, init_args: {max_norm: 1.0e+9}}}
""",
}


def run(command: list[str], **options: Any) -> str:
    """The standard output of a command.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-1500:]}{done.stderr[-2500:]}")
    return done.stdout


def install(client: Client, venv: Path, torch: str) -> Path:
    """Makes the environment, with what this package requires but without it; returns its Python."""
    python = venv / "bin" / "python"
    if (venv / "installed").exists():
        return python
    shutil.rmtree(venv, ignore_errors=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [torch, "lightning", *client.requirements, *project["dependencies"], "pyyaml"]
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)])
        run([uv, "pip", "install", "--quiet", "--python", str(python), *wanted])
    else:
        run([sys.executable, "-m", "venv", str(venv)])
        run([str(python), "-m", "pip", "install", "--quiet", torch])  # first, so that a local CPU build serves
        run([str(python), "-m", "pip", "install", "--quiet", *wanted])
    (venv / "installed").touch()
    return python


def try_out(client: Client, python: Path, package: Path, folder: Path) -> dict[str, Any]:
    """Trains plain twice and watched, and loads what each saved without the package."""
    script = [str(python), str(HERE / "quick_start.py")]
    file = str(HERE / "clients" / f"{client.quick_start}.py")
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "SSL_CERT_FILE") if name in os.environ}
    plain = {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    found = {}
    for name in ("plain", "again", *WATCHED):
        place = folder / name
        place.mkdir(parents=True)
        environment = plain
        if name in WATCHED:
            config = folder / f"{name}.yaml"
            config.write_text(WATCHED[name], encoding="utf-8")
            environment = {**plain, "PYTHONPATH": str(package), "LIGHTNING_HOOKS_CONFIG": str(config)}
        began = time.monotonic()
        trained = json.loads(run([*script, "train", file], cwd=place, env=environment).splitlines()[-1])
        trained["seconds"] = round(time.monotonic() - began, 1)
        found[name] = {"trained": trained}
        if name != "again":
            found[name]["loaded"] = json.loads(
                run([*script, "load", file, trained["saved"]], cwd=place, env=plain).splitlines()[-1]
            )
    return found


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """What differs from the plain run, and what the watched ones left and wrote."""

    def differences(name: str, part: str) -> list[str]:
        plain, other = found["plain"][part], found[name][part]
        return [
            f"{kind}{key}"
            for kind in ("weights", "predictions")
            for key in sorted({*plain[kind], *other[kind]})
            if plain[kind].get(key) != other[kind].get(key)
        ]

    arrays = {part: {kind: len(values[kind]) for kind in ("weights", "predictions")} for part, values in found["plain"].items()}
    facts: dict[str, Any] = {"arrays": arrays}
    for name in ("again", *WATCHED):
        facts[name] = {part: differences(name, part) for part in found[name]}
        facts[name]["seconds"] = found[name]["trained"]["seconds"]
    for name in WATCHED:
        facts[name] |= {key: found[name]["trained"][key] for key in ("modules", "left", "written")}
    return facts | {"seconds": found["plain"]["trained"]["seconds"]}


def versions(python: Path, names: list[str]) -> dict[str, str]:
    """The installed versions of distributions."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    return dict(json.loads(run([str(python), "-c", code, *names])))


def read_results() -> dict[str, Any]:
    """What has been run, by the name of the package."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.exists() else {}


def keep(name: str, result: dict[str, Any]) -> None:
    """Adds a result to the others."""
    results = {**read_results(), name: result}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{name}: {json.dumps(result)}", flush=True)


def result_of(name: str, package: Path, work: Path, torch: str) -> dict[str, Any]:
    """Installs a package and compares its runs; with `error` where that fails."""
    client = CLIENTS[name]
    folder = work / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    result: dict[str, Any] = {"what": client.what, "date": time.strftime("%Y-%m-%d")}
    try:
        python = install(client, work / name, torch)
        distribution = client.requirements[0].partition("[")[0]
        found = versions(python, [distribution, "torch", "lightning"])
        result["version"] = found.pop(distribution)
        words = [f"Python {platform.python_version()}", *(f"{key} {value}" for key, value in found.items())]
        result["environment"] = ", ".join(words)
        result["facts"] = compared(try_out(client, python, package, folder))
    except RuntimeError as error:
        result["error"] = str(error).strip().splitlines()[-1][:200]
        print(f"{name}: {error}", flush=True)
    return result


def main() -> None:
    """Runs the packages of the command line and writes the page."""
    from tests.environments.clients_page import page

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="of packages; default all")
    parser.add_argument("--render", action="store_true", help="only write the page")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "lightning-hooks-clients")
    parser.add_argument("--workers", type=int, default=2, help="packages at a time")
    arguments = parser.parse_args()
    if not arguments.render:
        constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        torch = next(line for line in constraints if line.startswith("torch=="))
        package = arguments.work / "package"
        shutil.rmtree(package, ignore_errors=True)
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(package), str(ROOT)])
        with ThreadPoolExecutor(arguments.workers) as pool:
            names = arguments.names or list(CLIENTS)
            running = {pool.submit(result_of, name, package, arguments.work, torch): name for name in names}
            for done in as_completed(running):
                keep(running[done], done.result())
                if not arguments.keep:
                    shutil.rmtree(arguments.work / running[done], ignore_errors=True)
    PAGE.write_text(page(read_results()), encoding="utf-8")


if __name__ == "__main__":
    main()
