"""What holds for all tests."""

import gc
import os

import pytest

# Imports make a million objects and no garbage; looking for some takes seconds.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt what was imported from garbage collection: with torch and its likes, each collection takes 0.3 s."""
    gc.freeze()
    gc.enable()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Forget the seed that `seed_everything` leaves in the environment: processes that later tests start would take it."""
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)
