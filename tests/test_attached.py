"""State that belongs to an object of another library is carried by that object, and by nothing else."""

import copy
import gc
import pickle
import re
from pathlib import Path
from weakref import ref

import lightning_hooks
from lightning_hooks.attached import AttachedState, attached_to


class Owner:
    pass


class State(AttachedState):
    def __init__(self):
        self.names = []


def test_the_state_of_an_owner_is_made_once():
    first, second = Owner(), Owner()
    attached_to(first, State).names.append("a")
    assert attached_to(first, State).names == ["a"] and attached_to(second, State).names == []


def test_copies_and_pickles_of_an_owner_start_anew():
    owner = Owner()
    attached_to(owner, State).names.append("a")
    for twin in (copy.deepcopy(owner), pickle.loads(pickle.dumps(owner))):
        assert attached_to(twin, State).names == []
    assert attached_to(owner, State).names == ["a"]


def test_the_state_goes_with_its_owner():
    owner = Owner()
    known = ref(attached_to(owner, State))
    del owner
    gc.collect()
    assert known() is None


def test_the_only_process_wide_map_of_runs_is_that_from_models_to_runs():
    root = Path(lightning_hooks.__file__).parent
    pattern = r"^(\w+)(?::| =).*\b(?:Weak(?:KeyDictionary|ValueDictionary|Set)|ReferenceType)\b"
    found = {
        f"{file.relative_to(root).as_posix()}: {name}"
        for file in root.rglob("*.py")
        for name in re.findall(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
        if name != "from"
    }
    # Marks are of compiled graphs, which Dynamo keeps for the process.
    assert found == {"engine/running/run.py: _RUNS", "hooks/traced.py: _MARKS"}
