import pytest

from .browser import chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found
