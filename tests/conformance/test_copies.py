"""Inside a fit that is watched: copies, pickles, scripts and exports of the model, with `paused` and, where it works, without."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, assert_no_hooks, paused
from tests.callbacks.models import Memory, Net, adamw, assert_clean, data, ours_on, trainer_of
from tests.conformance._lifecycle_tools import EACH, all_ours, at_step, equal_weights, hooks_in, observers

X = torch.linspace(-1, 1, 12).reshape(2, 6)


def saved(model: Any) -> Any:
    """Through `torch.save` of the whole module."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def scripted(model: Any) -> Any:
    return torch.jit.script(model.body)


def traced(model: Any) -> Any:
    return torch.jit.trace(model.body, X, check_trace=False)


def as_torchscript(model: Any) -> Any:
    trainer, model.trainer = model.trainer, None  # Lightning scripts no module that has one
    try:
        return model.to_torchscript(method="trace", example_inputs=X)
    finally:
        model.trainer = trainer


def exported(model: Any) -> Any:
    return torch.export.export(model.body, (X,)).module()


COPIERS: dict[str, Any] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved,
    "deepcopy of a part": lambda model: copy.deepcopy(model.body),
    "jit.script": scripted,
    "jit.trace": traced,
    "to_torchscript": as_torchscript,
    "torch.export": exported,
}
PLAIN = ("deepcopy", "pickle", "torch.save", "deepcopy of a part")


def fit(root: Path, model: Net, *callbacks: Any, **options: Any) -> Memory:
    torch.manual_seed(1)
    memory = Memory()
    trainer_of(root, *callbacks, logger=memory, **options).fit(model, data())
    return memory


def make() -> Net:
    torch.manual_seed(0)
    return Net(adamw, dropout=0.0)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("ours", EACH)
@pytest.mark.parametrize("name", COPIERS)
def test_a_copy_made_with_paused_carries_no_hook_and_the_fit_goes_on(tmp_path: Path, name: str, ours: str) -> None:
    def make_copy(model: Net) -> tuple[Any, Any]:
        before = ours_on(model)
        with paused(model):
            assert_no_hooks(model)
            assert ours_on(model) == 0
            made = COPIERS[name](model)
            expected = model.body(X).detach().clone()
        assert ours_on(model) == before > 0, "the hooks are back within the step"
        return made, expected

    results: list[Any] = []
    model, plain = make(), make()
    memory = fit(tmp_path, model, *EACH[ours](tmp_path), at_step(2, make_copy, results))
    fit(tmp_path, plain, *EACH[ours](tmp_path))
    ((made, expected),) = results
    if isinstance(made, nn.Module) and not isinstance(made, torch.jit.ScriptModule):
        assert hooks_in(made) == [] and ours_on_modules(made) == 0
    assert torch.allclose(made(X), expected, atol=1e-6)
    assert equal_weights(model, plain), "pausing for a copy changes nothing of the training"
    assert ours not in ("StatsMonitor", "all") or memory.steps == list(range(6))
    assert_clean(model)


def ours_on_modules(model: nn.Module) -> int:
    assert_no_hooks(model)
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("name", PLAIN)
def test_a_copy_made_without_paused_works_alone(tmp_path: Path, name: str) -> None:
    results: list[Any] = []
    model = make()
    fit(tmp_path, model, *all_ours(tmp_path), at_step(2, COPIERS[name], results), gradient_clip_val=0.5)
    (made,) = results
    assert hooks_in(made) == []
    assert_no_hooks(made)
    made(X).sum().backward()
    again = pickle.loads(pickle.dumps(copy.deepcopy(made)))
    assert torch.equal(again(X), made(X))
    assert_clean(model)


def test_weights_are_bit_identical_where_a_fit_is_paused(tmp_path: Path) -> None:
    models = []
    for ours in ([], observers(tmp_path)):
        model = make()
        fit(tmp_path, model, *ours, at_step(2, lambda m: paused(m).__enter__(), []))  # and never ends
        assert_clean(model)
        models.append(model)
    assert equal_weights(*models)


def test_a_step_that_was_paused_in_part_still_has_what_was_seen(tmp_path: Path) -> None:
    def nothing(model: Any) -> None:
        with paused(model):
            pass

    monitor, whole = StatsMonitor(), StatsMonitor()
    fit(tmp_path, make(), monitor, at_step(5, nothing, []))
    fit(tmp_path, make(), whole)
    assert monitor.latest == whole.latest and "update_norm/body.0.weight" in monitor.latest


@pytest.mark.parametrize("which", ["the model", "a part of it"])
def test_an_exception_inside_paused_puts_the_hooks_back(tmp_path: Path, which: str) -> None:
    def fails(model: Any) -> tuple[int, int]:
        before = ours_on(model)
        with pytest.raises(KeyError), paused(model if which == "the model" else model.body[0]):
            assert_no_hooks(model)
            raise KeyError
        return before, ours_on(model)

    results: list[Any] = []
    model = make()
    fit(tmp_path, model, *all_ours(tmp_path), at_step(1, fails, results))
    ((before, after),) = results
    assert before == after > 0
    assert_clean(model)


def test_paused_within_paused_stays_paused_until_the_outer_ends(tmp_path: Path) -> None:
    def nested(model: Any) -> list[int]:
        counts = [ours_on(model)]
        with paused(model):
            with paused(model.body):
                counts.append(ours_on(model))
            counts.append(ours_on(model))
        return [*counts, ours_on(model)]

    results: list[Any] = []
    model = make()
    fit(tmp_path, model, *all_ours(tmp_path), at_step(1, nested, results))
    (counts,) = results
    assert counts[0] == counts[3] > 0 and counts[1] == counts[2] == 0
    assert_clean(model)
