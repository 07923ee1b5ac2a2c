"""Fixtures of the tests that compare with optax."""

import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def optax() -> Any:
    """The optax module; imported by a fixture, so that collecting the tests does not import JAX."""
    with warnings.catch_warnings():
        # Ignore the warnings of importing JAX, which do not come from lightning_hooks.
        warnings.simplefilter("ignore")
        jax = pytest.importorskip("jax")
        library = pytest.importorskip("optax")
        jax.numpy.zeros(1)
    return library
