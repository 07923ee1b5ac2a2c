"""Runs made by hand: the tensors of each row by their statistics or by one value, a structure of a model, and a loss."""

from dataclasses import dataclass, field, replace

import numpy as np

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.facts import ModuleFacts, ParameterFacts, StepFacts, Structure
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.accumulators.base import AccumulatorRows
from lightning_hooks.stats.accumulators.units import Units
from lightning_hooks.stats.units.statistics import NAMES
from tests.health.views import NOT_MEASURED, index_of, view_of

ROLES = {
    "Linear": "linear",
    "Conv2d": "convolution",
    "Embedding": "embedding",
    "LayerNorm": "norm",
    "BatchNorm2d": "norm",
    "RNN": "recurrent",
    "AdaptiveAvgPool2d": "other",
}


@dataclass(frozen=True)
class Made:
    """A tensor by its statistics. `units` are statistics of its units, which are measured only where they are given."""

    mean: float = 0.0
    std: float = 1.0
    low: float = -3.0
    high: float = 3.0
    zeros: float = 0.0
    count: int = 2048
    units: dict[str, float] = field(default_factory=dict)

    def moments(self):
        square = self.std**2 * self.count
        return np.array([self.count, self.mean, square, self.count, self.low, self.high, self.zeros * self.count, 0.0, 0.0])


def of_rms(rms, **options):
    """A tensor of mean 0 with this root mean square."""
    return Made(std=rms, **options)


def structure_of(modules, weights=None):
    """The structure of modules {name: class}, each weighted one with a weight [64, 64] unless `weights` has another shape."""
    facts = [ModuleFacts(name, kind, ROLES.get(kind, "activation")) for name, kind in modules.items()]
    parameters = []
    for name, kind in modules.items():
        if kind in ("Linear", "Conv2d", "Embedding"):
            parameters.append(ParameterFacts(f"{name}.weight", name, (weights or {}).get(name, (64, 64)), "float32"))
            parameters.append(ParameterFacts(f"{name}.bias", name, (64,), "float32"))
    return Structure(tuple(facts), tuple(parameters))


def weights_of(*names, embeddings=(), biases=()):
    """The structure of parameters, each in a linear module of the same name, with two dimensions unless it is a bias."""
    modules = [ModuleFacts(name, "Module", "embedding" if name in embeddings else "linear") for name in names]
    parameters = [ParameterFacts(name, name, (2,) if name in biases else (2, 2), "float32") for name in names]
    return Structure(tuple(modules), tuple(parameters))


def run(structure, tensors, steps=100, loss=lambda step: 3.0, facts=None, begin=0):
    """The views of a run.

    Args:
        structure: of the model.
        tensors: {(tensor, name): a `Made`, or a function of the step; None at a step at which the row is not measured}.
        steps: how many.
        loss: a function of the step; None for a run without a loss.
        facts: of all steps.
        begin: the first step.
    """
    rows = [*tensors, *([("loss", "loss")] if loss else [])]
    tensor_names, names = zip(*rows, strict=True)
    modules = {module.name for module in structure.modules} if structure else set()
    order = [i for i, name in enumerate(names) if name in modules]
    units = AccumulatorRows(Units(), tuple(range(len(rows))))
    index = RowIndex(names, tensor_names, order=order, kept=[units])
    views = []
    for step in range(begin, begin + steps):
        made = [each(step) if callable(each) else each for each in tensors.values()]
        made += [Made(mean=loss(step), std=0.0)] if loss else []
        moments = np.array([NOT_MEASURED if each is None else each.moments() for each in made])
        kept = np.array([_units(each) for each in made])
        views.append(StepView(step, rows=index, moments=moments, kept={"units": kept}, facts=facts, structure=structure))
    return views


def run_of_series(rows, series, numbers=None, **options):
    """The views of a run of tensors whose elements are all equal.

    Args:
        rows: (tensor, name) of each row.
        series: the value of each row at each step, [steps, rows].
        numbers: the global numbers by tag, each [steps].
        options: fields of every view, such as `facts` and `structure`.
    """
    index, fixed = index_of(rows), {"facts": StepFacts(), **options}
    return [
        view_of(step, index, values, summaries={tag: float(each[step]) for tag, each in (numbers or {}).items()}, **fixed)
        for step, values in enumerate(np.asarray(series, dtype=float))
    ]


def _units(made):
    if made is None or not made.units:
        return [0.0] * (1 + len(NAMES))
    return [64.0, *(made.units.get(name, np.nan) for name in NAMES)]


def diagnosed(rule, views):
    """The diagnosis of one rule at the end of a run. A rule that raises fails the test."""
    diagnosis = Diagnosis([rule])
    for view in views:
        diagnosis.add(view)
    diagnosis.finish()
    summary = diagnosis.summary()
    assert not summary["failed"], summary["failed"]
    return diagnosis


def found(rule, views):
    """What one rule finds: {row: first step}."""
    return {row: finding.first_step for finding in diagnosed(rule, views).findings for row in finding.rows}


def warned(rule, views):
    """What one rule says above `info`: {row: first step}."""
    return {row: each.first_step for each in diagnosed(rule, views).findings if each.severity != "info" for row in each.rows}


def reason(rule, views):
    """Why a rule could not run."""
    diagnosis = diagnosed(rule, views)
    assert not diagnosis.findings
    return diagnosis.summary()["could_not_run"][rule.name]


def without_structure(views):
    """The same views of a run whose structure nobody knows."""
    return [replace(view, structure=None) for view in views]


def sparse(views, every):
    """The same views with rows at every n-th step only. Between these, a step has the loss, which is the last row."""
    moments = [np.array([*[NOT_MEASURED] * (len(view.moments) - 1), view.moments[-1]]) for view in views]
    between = [replace(view, moments=each, is_between=True) for view, each in zip(views, moments, strict=True)]
    return [each if view.step % every else view for view, each in zip(views, between, strict=True)]


def falling(step):
    """A loss that falls."""
    return 3.0 - 0.01 * step


def noisy(level, steps, seed=0, share=0.1):
    """A level with noise around it."""
    return level * (1 + share * np.random.default_rng(seed).uniform(-1, 1, steps))
