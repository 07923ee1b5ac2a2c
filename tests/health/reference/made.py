"""Views of good and changed runs made by hand: a linear model of two layers with its loss, gradients, weights and updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.reference.learning import learn
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rules import reference_rules
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.facts import GroupFacts, ModuleFacts, OptimizerFacts, ParameterFacts, StepFacts, Structure
from lightning_hooks.records.step_view import StepView

LAYERS = ("one", "two", "three", "four")
ROWS = (
    ("loss", "loss"),
    *(("input", name) for name in LAYERS),
    *(("output", name) for name in LAYERS),
    *((tensor, f"{name}.weight") for tensor in ("grad", "param", "update") for name in LAYERS),
)
INDEX = RowIndex([name for _, name in ROWS], [tensor for tensor, _ in ROWS], order=range(len(ROWS)))
PARAMS = tuple(f"{name}.weight" for name in LAYERS)
STRUCTURE = Structure(
    tuple(ModuleFacts(name, "Linear", "linear") for name in LAYERS),
    tuple(ParameterFacts(f"{name}.weight", name, (8, 8), "float32") for name in LAYERS),
)
FACTS = StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, PARAMS),)),), precision="32-true", accumulate=1)
Change = Callable[[int, str, str], float | None]
"""The factor of the statistics of a row at a step, by step, tensor and name; None for a row that is not measured."""


def same(step: int, tensor: str, name: str) -> float | None:
    """Changes nothing."""
    return 1.0


def moments(rms: float, count: float, noise: float) -> np.ndarray:
    """The moments of a tensor of a root mean square whose extremes need all digits of a float32."""
    low, high = (float(np.float32(rms * edge * (1 + 0.1 * noise))) for edge in (-2.1, 2.3))
    return np.array([count, 0.1 * rms, count * (rms * rms * 0.99), count * rms * 0.8, low, high, 0.0, 0.0, 0.0])


def run_of(
    seed: int, change: Change = same, steps: int = 40, facts: Callable[[int], StepFacts] | None = None, **options: object
) -> Iterator[StepView]:
    """The views of a run whose numbers fall and have noise.

    Args:
        seed: of the noise.
        change: what is different.
        steps: how many.
        facts: how each step trained; default the same at every step.
        options: more fields of the views.
    """
    source = np.random.default_rng(seed)
    for step in range(steps):
        lines = []
        for tensor, name in ROWS:
            factor = change(step, tensor, name)
            noise = float(np.exp(0.05 * source.standard_normal()))
            falls = 1 / (1 + step / 20) if tensor in ("loss", "grad") else 1.0
            rms = {"update": 0.001, "param": 0.5}.get(tensor, noise * falls)
            line = moments(rms * (1.0 if factor is None else factor), 64.0, 0.0 if tensor == "param" else source.random())
            lines.append(np.array([0, 0, 0, 0, np.inf, -np.inf, 0, 0, 0]) if factor is None else line)
        view = StepView(
            step, rows=INDEX, moments=np.array(lines), facts=FACTS if facts is None else facts(step), structure=STRUCTURE
        )
        yield replace(view, **options)


def reference_of(*seeds: int, change: Change = same, **options: object) -> Reference:
    """What good runs of some seeds tell."""
    return learn((f"good-{seed}", run_of(seed, change, **options)) for seed in seeds)


def compare(reference: Reference, views: Iterator[StepView]) -> list[Finding]:
    """What the rules that compare with a reference say of a run."""
    diagnosis = Diagnosis(reference_rules(reference), causes=())
    for view in views:
        diagnosis.add(view)
    diagnosis.finish()
    assert diagnosis.summary()["failed"] == {}
    return diagnosis.findings


def said(findings: list[Finding]) -> list[tuple[str, str, int]]:
    """The rule, the first row and the first step of each finding."""
    return [(finding.rule, finding.rows[0], finding.first_step) for finding in findings]
