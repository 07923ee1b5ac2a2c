"""Runs one quick start of tests/environments/clients in the current folder, and prints what came out of it as JSON.

Arguments: `train` or `load`, the file of the quick start, and for `load` the folder in which it was trained. A quick start has

    train() -> trained, saved       trains, and saves under a relative path
    load(saved) -> trained          the same from what was saved
    predictions(trained)            any nest of tensors, arrays and tables
    modules(trained) -> list        the modules whose weights count; without it `trained` is the module
"""

import contextlib
import gc
import hashlib
import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import torch


def digests(value, name="", into=None):
    """The SHA-256 of the bytes of each array in a nest, by its path."""
    into = {} if into is None else into
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        value = {str(column): value[column].to_numpy() for column in value.columns}
    if isinstance(value, dict):
        for key, item in value.items():
            digests(item, f"{name}.{key}", into)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            digests(item, f"{name}.{index}", into)
    elif isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        into[name] = _digest(tensor.reshape(-1).view(torch.uint8).numpy().tobytes(), tensor.dtype, tuple(tensor.shape))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        into[name] = _digest(np.ascontiguousarray(value).tobytes(), value.dtype, value.shape)
    elif value is not None:
        into[name] = _digest(repr(value).encode())
    return into


def _digest(data, *words):
    return hashlib.sha256(repr(words).encode() + data).hexdigest()[:16]


def outcome(quick_start, trained):
    modules = quick_start.modules(trained) if hasattr(quick_start, "modules") else [trained]
    weights = [trained] if isinstance(trained, dict) else [module.state_dict() for module in modules]
    return {"weights": digests(weights), "predictions": digests(quick_start.predictions(trained))}


def left_over():
    """The modules of this process on which a hook of lightning_hooks is left, as messages."""
    from lightning_hooks import HooksLeftError, assert_no_hooks

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # to look at some objects of other packages gives a warning
        modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    for module in modules:
        try:
            assert_no_hooks(module)
        except HooksLeftError as error:
            found.append(str(error).splitlines()[0])
    return len(modules), found


def written():
    """The event files in this folder that lightning_hooks wrote to: their number and bytes, the most tags of one."""
    from lightning_hooks import read_run

    facts = {"runs": 0, "scalars": 0, "histograms": 0, "bytes": 0}
    for file in Path().rglob("events.out.tfevents.*"):
        run = read_run(file)
        if run.tensors():
            facts["runs"] += 1
            facts["scalars"] = max(facts["scalars"], len(run.scalars))
            facts["histograms"] = max(facts["histograms"], len(run.histograms))
            facts["bytes"] += file.stat().st_size
    return facts


def main():
    command, file = sys.argv[1:3]
    spec = importlib.util.spec_from_file_location("quick_start", file)
    quick_start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(quick_start)
    ours = importlib.util.find_spec("lightning_hooks") is not None
    with contextlib.redirect_stdout(sys.stderr):
        if command == "train":
            trained, saved = quick_start.train()
            os.environ.pop("LIGHTNING_HOOKS_CONFIG", None)  # what follows is not training
            facts = outcome(quick_start, trained) | {"saved": str(saved)}
        else:
            assert not ours, "this process is to have no lightning_hooks"
            trained = quick_start.load(sys.argv[3])
            facts = outcome(quick_start, trained)
        if ours:
            facts["modules"], facts["left"] = left_over()
            facts["written"] = written()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
