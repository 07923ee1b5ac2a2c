"""Inside a fit that is watched: copies, pickles, scripts and exports of the model, with `paused` or without."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lightning_hooks import StatsMonitor, Watch, assert_no_hooks, paused
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


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:`LightningModule.to_torchscript`")
@pytest.mark.parametrize("ours", EACH)
def test_a_copy_made_with_paused_carries_no_hook_and_the_fit_goes_on(tmp_path: Path, ours: str) -> None:
    def make_copies(model: Net) -> dict[str, Any]:
        before, copies = ours_on(model), {}
        for name, make_copy in COPIERS.items():
            with paused(model):
                assert_no_hooks(model)
                copies[name] = make_copy(model)
                assert torch.allclose(copies[name](X), model.body(X), atol=1e-6), name
            assert ours_on(model) == before > 0, f"{name}: the hooks are back within the step"
        return copies

    results: list[Any] = []
    model, plain = make(), make()
    memory = fit(tmp_path, model, *EACH[ours](tmp_path), at_step(2, make_copies, results))
    fit(tmp_path, plain, *EACH[ours](tmp_path))
    (copies,) = results
    assert copies.keys() == COPIERS.keys()
    for name, made in copies.items():
        assert hooks_in(made) == [], name
        assert_no_hooks(made)
    assert equal_weights(model, plain), "pausing for a copy changes nothing of the training"
    # In "all" there are two monitors, each of which gives the logger one dictionary for each step.
    monitors = {"StatsMonitor": 1, "all": 2}.get(ours, 0)
    assert not monitors or sorted(memory.steps) == sorted(monitors * [*range(6)])
    assert_clean(model)


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
    took = {"run/overhead": 0.0}  # no two fits take the same time
    assert {**monitor.latest, **took} == {**whole.latest, **took} and "update_norm/body.0.weight" in monitor.latest


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
        before = ours_on(model)
        with paused(model):
            with paused(model.body):
                assert_no_hooks(model)
            assert_no_hooks(model)
        return [before, ours_on(model)]

    results: list[Any] = []
    model = make()
    fit(tmp_path, model, *all_ours(tmp_path), at_step(1, nested, results))
    ((before, after),) = results
    assert before == after > 0
    assert_clean(model)


def test_between_two_batches_the_end_of_a_pause_does_not_turn_hooks_on(tmp_path: Path) -> None:
    """A pause that begins in one micro-batch of a window and ends after it: nothing else is taken for a batch."""
    pauses: list[Any] = []

    class Pauses(Callback):
        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            if not pauses:
                pauses.append(paused(pl_module))
                pauses[0].__enter__()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0:
                pauses[0].__exit__(None, None, None)
                pl_module.body(100 * X)

    memory = fit(tmp_path, make(), StatsMonitor(), Pauses(), accumulate_grad_batches=2)
    plain = fit(tmp_path, make(), StatsMonitor(), accumulate_grad_batches=2)
    assert memory.values("output_abs_max/body.0") == plain.values("output_abs_max/body.0")


def clone_of(module: Any) -> Any:
    """A module made of the same parts with other parameters, as libraries for meta-learning make it."""
    clone = type(module).__new__(type(module))
    vars(clone).update(vars(module))
    clone._parameters = {name: None if p is None else p * 0.9 for name, p in module._parameters.items()}
    clone._modules = {name: None if part is None else clone_of(part) for name, part in module._modules.items()}
    return clone


class Meta(Net):
    """Trains by the loss of its own clone too."""

    def training_step(self, batch: Any, index: int) -> Any:
        return super().training_step(batch, index) + 0.5 * clone_of(self.body)(X).square().mean()


LOOKING: dict[str, Any] = {
    **{name: EACH[name] for name in ("StatsMonitor", "CustomHooks", "ActivationCapture")},
    "only results": lambda _: [StatsMonitor(watch=Watch(modules="*", select="leaves", tensors=["output", "output_grad"]))],
}


@pytest.mark.parametrize("ours", LOOKING)
def test_clones_made_of_the_parts_of_a_watched_module_are_themselves(tmp_path: Path, ours: str) -> None:
    models = []
    for callbacks in (LOOKING[ours](tmp_path), []):
        torch.manual_seed(0)
        models.append(Meta(adamw, dropout=0.0))
        fit(tmp_path, models[-1], *callbacks)
        assert_clean(models[-1])
    plain = make()
    fit(tmp_path, plain)
    assert equal_weights(*models)
    assert any(not torch.equal(a, b) for a, b in zip(plain.parameters(), models[1].parameters(), strict=True))
