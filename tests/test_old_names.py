"""No file uses a name that has been replaced: nothing keeps an old spelling."""

import re
from functools import cache
from pathlib import Path

import pytest

from lightning_hooks import hooks, transforms

ROOT = Path(__file__).parent.parent
FOLDERS = (".ci", ".github", "benchmarks", "configs", "docs", "examples", "galleries", "lightning_hooks", "tests")
# The table of renames of the golden record has the old names, and so have the tests of it.
EXCLUDED = {Path(__file__), *(ROOT / "tests" / "golden" / name for name in ("renames.py", "test_compare.py"))}
SUFFIXES = {"", ".cpp", ".css", ".html", ".js", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
MOVED = "|".join(sorted({*transforms.__all__} - {"Transform"} | {name for name in hooks.__all__ if "_" in name}))
OF_LOOPS = "watch|apply|hooks|consumers|health|recorder|reference"

# What is searched for, by what stands there now.
OLD_NAMES = {
    "lightning_hooks.transforms.…, lightning_hooks.hooks.…": (
        rf"\blightning_hooks\.({MOVED})\b",
        rf"from lightning_hooks import [^(\n]*\b({MOVED})\b",
        rf"from lightning_hooks import \([^)]*\b({MOVED})\b",
    ),
    "Symptom, symptoms_where": (r"\bsigns_where\b", r"\bhealth(\.rule)? import .*\bSign\b", r"\bIter(able|ator)\[Sign\]"),
    "run/loss": (r"(?<!lightning_)hooks/(loss|(final_)?grad_norm|param_norm|update_ratio|nonfinite|overhead|opened)\b",),
    'select="leaves", Units(…)': (
        r"\b(leaves|layers)=True\b",
        r"\bunit_vectors\b",
        r"\bunits=-?\d",
        r"\b(leaves|layers): true",
        r"'layers': True|\"(layers|leaves)\": True",
    ),
    "enabled, every_n_steps": (r"\bis_on=|\bis_on: bool = (True|False)\b", r"\bevery=20, "),
    'accept=Path("accepted.txt")': (r"FILE\.txt", r"string that ends with `\.txt`"),
    "the name of the health rule, as NotInOptimizer": (
        r"\bOptimizerCoversParameters\b|\bGradientsReachParameters\b|\bParametersMove\b|\bFrozenStay\b",
        r"\bOutputsFinite\b|\bOutputsDiffer\b|\bActivationScale\b|\bInputScale\b",
    ),
    "instrument(model, [StatsMonitor(…), HealthMonitor(…), …])": (
        rf"\binstrument\([^,\n]*, (optimizer=[^,\n]*, )?({OF_LOOPS})=",
        rf"\bHooksTrainerCallback\(({OF_LOOPS})=",
        r"\bwatched\.(compute\(\)|record\b|flight_record\b|findings\b)",
    ),
    'run.table("grad", "norm", prefix="mine/")': (r"except `watch/`", r"\.table\(\"\w+/grad\""),
    "dependency groups": (r"\[(cli,)?(dev|bench|examples)\]'", r"extra `(bench|dev|examples)`"),
}


@cache
def texts() -> dict[str, str]:
    """The text of every file that people write. Recorded results (.json, .jsonl) are not searched."""
    files = [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    kept = [path for path in files if path.is_file() and path.suffix in SUFFIXES and path not in EXCLUDED]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in kept}


@pytest.mark.parametrize("name", OLD_NAMES)
def test_no_file_uses_the_old_name(name: str) -> None:
    found = {
        (path, match[0])
        for pattern in OLD_NAMES[name]
        for path, text in texts().items()
        for match in re.finditer(pattern, text)
    }
    assert found == set(), f"write {name}"
