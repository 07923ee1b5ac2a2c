"""Runs of a training made by hand, for the tests of rules."""

import numpy as np

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.records.facts import ModuleFacts, ParameterFacts, StepFacts, Structure
from tests.health.views import index_of, view_of


def structure_of(*names, embeddings=(), biases=()):
    """Parameters of two dimensions, each in a linear module."""
    modules = [ModuleFacts(name, "Module", "embedding" if name in embeddings else "linear") for name in names]
    parameters = [ParameterFacts(name, name, (2,) if name in biases else (2, 2), "float32") for name in names]
    return Structure(tuple(modules), tuple(parameters))


def diagnosed(rule, rows, series, *, facts=None, structure=None, summaries=None, tag=None):
    """The diagnosis of one rule after all steps: `series` [steps, rows], and the numbers of `tag` [steps]."""
    index, diagnosis = index_of(rows), Diagnosis([rule])
    for step, values in enumerate(np.asarray(series, dtype=float)):
        numbers = {} if tag is None else {tag: float(summaries[step])}
        diagnosis.add(view_of(step, index, values, facts=facts or StepFacts(), structure=structure, summaries=numbers))
    diagnosis.finish()
    assert not diagnosis.summary()["failed"]
    return diagnosis


def noisy(level, steps, seed=0, share=0.1):
    """A level with noise around it."""
    return level * (1 + share * np.random.default_rng(seed).uniform(-1, 1, steps))
