"""State that belongs to an object of another library is carried by that object, and by nothing else."""

import copy
import gc
import pickle
import re
from pathlib import Path
from weakref import ref

import lightning_hooks
from lightning_hooks.kept import Kept, kept_on


class Owner:
    pass


class State(Kept):
    def __init__(self):
        self.names = []


def test_the_state_of_an_owner_is_made_once():
    first, second = Owner(), Owner()
    kept_on(first, State).names.append("a")
    assert kept_on(first, State).names == ["a"] and kept_on(second, State).names == []


def test_copies_and_pickles_of_an_owner_start_anew():
    owner = Owner()
    kept_on(owner, State).names.append("a")
    for twin in (copy.deepcopy(owner), pickle.loads(pickle.dumps(owner))):
        assert kept_on(twin, State).names == []
    assert kept_on(owner, State).names == ["a"]


def test_the_state_goes_with_its_owner():
    owner = Owner()
    known = ref(kept_on(owner, State))
    del owner
    gc.collect()
    assert known() is None


def test_the_only_process_wide_map_of_runs_is_that_from_models_to_runs():
    root = Path(lightning_hooks.__file__).parent
    pattern = r"^(\w+)\b.*\bWeak(?:KeyDictionary|ValueDictionary|Set)\b"
    found = {
        f"{file.relative_to(root).as_posix()}: {name}"
        for file in root.rglob("*.py")
        for name in re.findall(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
        if name != "from"
    }
    # Marks are of compiled graphs, which Dynamo keeps for the process.
    assert found == {"engine/run.py: _RUNS", "hooks/traced.py: _MARKS"}
