"""What a training of the gallery is, and how one is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Case:
    """What one seed trains: a fresh module and its data.

    Args:
        module: the module.
        loader: the batches of training.
        trainer: more arguments of the Trainer (precision, accumulate_grad_batches, gradient_clip_val, max_epochs …).
        val_loader: the batches of validation, if there is one.
        ranks: the number of gloo processes.
        resumes: the step at which the training is saved, ends, and goes on from its checkpoint with a new module; 0 if never.
    """

    module: LightningModule
    loader: DataLoader
    trainer: dict[str, Any] = field(default_factory=dict)
    val_loader: DataLoader | None = None
    ranks: int = 1
    resumes: int = 0


@dataclass(frozen=True)
class Expectation:
    """What should be said of a faulty training.

    Args:
        kind: "fact" (structure, membership, non-finite: within 5 steps of the onset), "pattern" (numbers: within 60), or
            "invisible" (its layers cannot show it).
        rules: the names of rules any of which names the fault.
        rows: a glob for names of rows, modules or parameters, of which at least one must be named; "*" if the fault has no
            place.
        cause: the name of the right cause, or None.
        onset: the step at which the fault begins; 0 unless it is planted later.
        seen_by: for an invisible fault, what would see it, in words.
    """

    kind: str
    rules: tuple[str, ...] = ()
    rows: str = "*"
    cause: str | None = None
    onset: int = 0
    seen_by: str = ""


@dataclass(frozen=True)
class Training:
    """A small training of known health.

    Args:
        name: in kebab case.
        family: of faults "loss", "gradients", "updates", "activations", "initialisation", "optimizer", "data", "numerics",
            "structure" or "ranks"; of healthy ones "mlp", "cnn", "rnn", "transformer", "generative", "rl", "finetuning", …
        make: the case of a seed. It seeds everything itself.
        steps: how long it trains.
        half: "set" if thresholds may be set on it, "held" if they are only shown on it.
        expects: what should be said; None for a healthy training.
        doc: one sentence on what it is.
    """

    name: str
    family: str
    make: Callable[[int], Case]
    steps: int
    half: str
    expects: Expectation | None
    doc: str


def fit(training: Training, seed: int, callbacks: list[Callback], folder: Path) -> Trainer:
    """Run a training on the CPU."""
    case = training.make(seed)
    if not case.resumes:
        return _fit(case, training.steps, callbacks, folder)
    saved = folder / "saved.ckpt"
    _fit(case, case.resumes, callbacks, folder).save_checkpoint(saved)
    return _fit(training.make(seed), training.steps, callbacks, folder, saved)


def _fit(case: Case, steps: int, callbacks: list[Callback], folder: Path, saved: Path | None = None) -> Trainer:
    options: dict[str, Any] = {
        "max_steps": steps,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": case.ranks,
        "default_root_dir": folder,
        "callbacks": callbacks,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(**{**options, **case.trainer})
        trainer.fit(case.module, case.loader, case.val_loader, ckpt_path=saved)
    return trainer
