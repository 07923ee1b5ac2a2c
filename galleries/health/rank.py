"""A training of the gallery in one process. With several ranks it is a case, `name:seed`, of `run_ranks`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from galleries.health.catalogue import faulty, healthy
from galleries.health.judge import judge
from galleries.health.training import Training
from galleries.rules import HEALTH


def __getattr__(case: str) -> Callable[[Path], dict[str, Any]]:
    name, _, seed = case.partition(":")
    if not seed.isdigit():
        raise AttributeError(case)
    return partial(record_here, name, int(seed))


def found(name: str) -> Training:
    """The training of this name."""
    return next(each for each in [*healthy(), *faulty()] if each.name == name)


def record_here(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """The verdict of one training at one seed, run in this process, as plain values."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for each in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(each).setLevel(logging.ERROR)
    verdict = judge(found(name), seed, folder)
    return {
        "name": name,
        "seed": seed,
        "rules": HEALTH,
        "findings": [[finding.rule, list(finding.rows), str(finding.severity), step] for finding, step in verdict.findings],
        "texts": [finding.evidence[0].text if finding.evidence else "" for finding, _ in verdict.findings],
        "causes": list(verdict.causes),
        "error": verdict.error,
        "delay": verdict.delay,
        "found": verdict.is_found,
        "in_time": verdict.is_in_time,
        "cause": verdict.has_cause,
    }
