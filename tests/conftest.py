"""What holds for all tests."""

import gc

import pytest

# Imports make a million objects and no garbage; looking for some takes seconds.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt what was imported from garbage collection: with torch and its likes, each collection takes 0.3 s."""
    gc.freeze()
    gc.enable()
