"""Training from the configurations in configs/, in a folder of its own, through the command line."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_hooks.cli.main import main

ROOT = Path(__file__).parents[1]
DIGITS = ["--config", str(ROOT / "configs" / "digits.yaml")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)  # seed_everything sets it
    yield tmp_path
    for variable in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(variable, None)


def fit(config: Path, steps: int) -> int:
    """Train the digits with a configuration added, without what prints or saves."""
    options = {
        "max_epochs": "1",
        "limit_train_batches": str(steps),
        "limit_val_batches": "1",
        "enable_progress_bar": "false",
        "enable_model_summary": "false",
        "enable_checkpointing": "false",
    }
    given = [f"--trainer.{name}={value}" for name, value in options.items()]
    return main(["fit", *DIGITS, "--config", str(config), *given])
