"""Training from the configurations in configs/, in a folder of its own, through the command line."""

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
    yield tmp_path


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
