"""Each set-up does what is recorded of it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.golden.compare import differences
from tests.golden.record import RECORDED, load, path_of, record
from tests.golden.renames import ACCEPTED, RENAMES
from tests.golden.setups import SETUPS


@pytest.mark.slow
@pytest.mark.parametrize("name", SETUPS)
def test_a_set_up_does_what_is_recorded(name: str) -> None:
    if name == "hugging_face" and not (find_spec("transformers") and find_spec("accelerate")):
        pytest.skip("transformers or accelerate is not installed")
    found = differences(load(name), record(name), RENAMES, [each for each in ACCEPTED if each.setup == name])
    assert not found, f"`python -m tests.golden {name}` shows these differences:\n" + "\n".join(found[:40])


def test_there_is_a_record_of_each_set_up_and_of_no_other() -> None:
    assert {*RECORDED.iterdir()} == {path_of(name) for name in SETUPS}
