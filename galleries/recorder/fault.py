"""What a training of the gallery is, and how one is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_hooks.recorder.record import Verdict


@dataclass(frozen=True)
class Case:
    """A fresh module, its batches and how it is trained.

    Args:
        module: the module.
        loader: the batches of training.
        trainer: more arguments of the Trainer, such as `precision`.
        callbacks: of the training itself, such as one that spoils a weight.
    """

    module: LightningModule
    loader: DataLoader[Any]
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()


@dataclass(frozen=True)
class Fault:
    """A small training, and what its flight record has to say.

    Args:
        name: in kebab case.
        says: what happens, in one sentence.
        build: makes the case; it seeds everything itself.
        verdict: the verdict; None for a healthy training, of which there is no record.
        step: the step of the record.
        begins: the step in which the first bad number appears; None if it is that of the record.
        module: the dotted name of the module that makes it, or of the parameter.
        direction: `forward`, `backward` or `update`; empty if the verdict has none.
        tensor: the tensor with the first bad number, as in `Place`; empty if it is not compared.
        micro_batch: the number of the batch in its step.
        call: the number of the call of the module.
        operation: the operation that the record names, such as `aten.log`; empty if there is none to name.
        node: the autograd node of a backward operation.
        failure: the class of the exception that ends the run; empty if none does.
        steps: the number of steps of the training.
        compiles: whether it can be run compiled.
    """

    name: str
    says: str
    build: Callable[[], Case]
    verdict: Verdict | None = None
    step: int = 0
    begins: int | None = None
    module: str = ""
    direction: str = ""
    tensor: str = ""
    micro_batch: int = 0
    call: int = 0
    operation: str = ""
    node: str = ""
    failure: str = ""
    steps: int = 8
    compiles: bool = True


def fit(
    fault: Fault,
    folder: Path,
    callbacks: Sequence[Callback] = (),
    backend: str | None = None,
    prepare: Callable[[Case], None] | None = None,
    said: list[str] | None = None,
    **trainer: Any,
) -> Trainer:
    """Train on the CPU.

    Args:
        fault: the training.
        folder: where its files go.
        callbacks: what watches it.
        backend: compiles each network of the module with this backend of `torch.compile`; None trains eagerly.
        prepare: called with the case before the fit.
        said: gets the texts of all warnings.
        trainer: more arguments of the Trainer.

    Raises:
        Exception: whatever ends the run.
    """
    case = fault.build()
    if prepare is not None:
        prepare(case)
    options: dict[str, Any] = {
        "max_steps": fault.steps,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        "callbacks": [*case.callbacks, *callbacks],
    }
    if backend is not None:
        torch.compiler.reset()
        # Lightning's `self.log` cannot be traced, so the module itself stays eager.
        for network in case.module.children():
            network.compile(backend=backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = Trainer(**{**options, **case.trainer, **trainer})
            made.fit(case.module, case.loader)
        finally:
            if said is not None:
                said += [str(warning.message) for warning in caught]
    return made
