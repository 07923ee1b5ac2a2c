"""What the tests of parity share."""

import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def optax() -> Any:
    """The library to compare with; loaded here, so that collecting the tests does not load JAX."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what JAX says while it is imported is no fault of the package
        jax = pytest.importorskip("jax")
        library = pytest.importorskip("optax")
        jax.numpy.zeros(1)
    return library
