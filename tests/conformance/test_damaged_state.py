"""A damaged state in a checkpoint starts again as a whole, with one warning; it never ends in an error or another fit."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor

from lightning_hooks import ActivationTransforms, Apply, GradientTransforms, StatsMonitor, Transform, Watch
from lightning_hooks.transforms import EMA, AddNoise, AutoClip, Chain, Context, Dropout, EverySteps, SkipStep, When, ZClip
from tests.callbacks.models import Net, adamw, assert_clean, data, trainer_of
from tests.versions import reading

pytestmark = pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")


class Halving(Transform):
    """A transform of a user's: a count, a tensor, and a list that grows."""

    def initial_state(self) -> dict[str, Any]:
        return {"calls": 0, "scale": torch.ones(()), "seen": [], "inner": {"on": True, "name": "half"}}

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        state = context.state
        state["calls"] += 1
        state["scale"] = state["scale"] / 2
        state["seen"] = [*state["seen"], state["calls"]]
        return [tensor * state["scale"] if state["inner"]["on"] else tensor for tensor in tensors]

    def __repr__(self) -> str:
        return "Halving()"


def rule(transform: Any, **options: Any) -> list[Callback]:
    return [GradientTransforms([Apply(transform, **({"params": "body.0.*"} | options))])]


def monitor() -> list[Callback]:
    watch = Watch(params="body.0.*", tensors="grad", stats=["noise_scale"])
    return [StatsMonitor([watch], max_overhead=0.999, loggers=[])]


OURS: dict[str, Callable[[], list[Callback]]] = {
    "EMA": lambda: rule(EMA(0.5)),
    "EMA of micro-batches": lambda: rule(EMA(0.5), when="backward"),
    "AutoClip": lambda: rule(AutoClip()),
    "ZClip in its warm-up": lambda: rule(ZClip()),
    "ZClip": lambda: rule(ZClip(warmup=2)),
    "SkipStep": lambda: rule(SkipStep()),
    "AddNoise": lambda: rule(AddNoise(0.1)),
    "Dropout in backward": lambda: rule(Dropout(0.3), when="backward"),
    "Chain": lambda: rule(Chain([EMA(0.5), AddNoise(0.1), ZClip(warmup=2)])),
    "When": lambda: rule(When(EverySteps(1), transform=EMA(0.5))),
    "Halving": lambda: rule(Halving()),
    "ActivationTransforms": lambda: [ActivationTransforms([Apply(AddNoise(0.1), modules="body.0")])],
    "StatsMonitor": monitor,
    "the loss scaler": monitor,
}
# Every transform has the same entries beside its own `state` and `generators`. They are damaged once for each callback.
WITH_SHARED_ENTRIES = ("EMA", "ActivationTransforms", "StatsMonitor", "the loss scaler")
WARNED = "the checkpoint is damaged"
CHANGED = "since the checkpoint"


def fit(folder: Path, ours: Sequence[Callback], resume: Path | None = None, scaled: bool = False) -> tuple[Any, list[str]]:
    torch.manual_seed(99 if resume else 0)
    model = Net(adamw, dropout=0.0)
    torch.manual_seed(98 if resume else 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    options = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]} if scaled else {}
    epochs = {"max_epochs": 2 if resume else 1, "accumulate_grad_batches": 2}
    trainer = trainer_of(folder, *ours, logger=False, **epochs, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, data(4), ckpt_path=resume, **reading(True if resume else None))
    assert_clean(model)
    return trainer, [str(each.message) for each in caught if WARNED in str(each.message) or CHANGED in str(each.message)]


def weights(trainer: Any) -> list[Tensor]:
    return [value.clone() for value in trainer.model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a tree, containers included."""
    if path:
        yield path
    if isinstance(tree, (dict, list)):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from leaves(tree[key], (*path, key))


MISSING = object()
DAMAGES: dict[str, Callable[[Any], Any]] = {
    "None": lambda value: None,
    "a string": lambda value: "damaged",
    "NaN": lambda value: math.nan,
    "negative": lambda value: -value - 1 if isinstance(value, Tensor) and value.is_floating_point() else -1,
    "a huge integer": lambda value: 10**400,
    "a tensor": lambda value: torch.tensor([1.0, 2.0, 3.0]),
    "another shape": lambda value: torch.stack([value, value]) if isinstance(value, Tensor) else [value],
    "another dtype": lambda value: value.to(torch.int32) if isinstance(value, Tensor) else True,
    "a list": lambda value: [],
    "missing": lambda value: MISSING,
    "an extra key": lambda value: {**value, "extra": "damaged"} if isinstance(value, dict) else {"extra": 1},
}


def damaged(state: Any, path: tuple[Any, ...], damage: Callable[[Any], Any]) -> Any:
    """A copy of a state with one value damaged."""
    state = copy.deepcopy(state)
    owner = state
    for key in path[:-1]:
        owner = owner[key]
    new = damage(owner[path[-1]])
    if new is MISSING:
        del owner[path[-1]]
    else:
        owner[path[-1]] = new
    return state


@pytest.mark.parametrize("what", OURS)
def test_every_damage_of_a_state_is_found_or_harmless(tmp_path: Path, what: str) -> None:
    scaled = what == "the loss scaler"
    trainer, said = fit(tmp_path, OURS[what](), scaled=scaled)
    assert not said
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)
    (key,) = [k for k in saved if k.startswith("lightning_hooks.") and (k == "lightning_hooks.loss_scaler") == scaled]
    if what == "StatsMonitor":
        saved[key]["watch/0"]["factor"] = 1  # the steps of this fit are too few for it to grow
    name = type(OURS[what]()[0]).__name__

    def resumed(state: Any) -> tuple[list[Tensor], list[str]]:
        changed = {**saved, key: state} if state is not None else {k: v for k, v in saved.items() if k != key}
        torch.save(changed, tmp_path / "damaged.ckpt")
        trainer, said = fit(tmp_path, OURS[what](), tmp_path / "damaged.ckpt", scaled)
        return weights(trainer), said

    whole, said = resumed(saved[key])
    assert not said
    fresh, said = resumed(None)
    assert not said
    paths = [path for path in leaves(saved[key]) if what in WITH_SHARED_ENTRIES or not {"state", "generators"}.isdisjoint(path)]
    warned = 0
    for path, (kind, damage) in itertools.product(paths, DAMAGES.items()):
        after, said = resumed(damaged(saved[key], path, damage))
        case = f"{kind} at {path}: {said}"
        assert len(said) <= 1, case
        if said:
            warned += 1
            assert said[0].startswith(f"{name}: {WARNED}") or CHANGED in said[0], case
            assert same(after, fresh) or (CHANGED in said[0] and same(after, whole)), case
        elif not _is_legal(path, kind):
            # Without the entry of a callback the checkpoint is of a run that did not have it.
            is_absent = kind == "missing" and len(path) == 1
            assert same(after, fresh if is_absent else whole), case
    assert warned > len(paths)


def _is_legal(path: tuple[Any, ...], kind: str) -> bool:
    """Whether a transform may have saved that value: a key is absent before its first use, an average may be negative,
    and there may be any norms."""
    if kind == "missing":
        return "state" in path[:-1] or "generators" in path[:-1]
    return (kind == "negative" and "state" in path[:-1]) or (kind == "a tensor" and path[-1] == "norms")


@pytest.mark.parametrize("which", ["skipped_steps", "seed", "state"])
def test_a_damaged_state_starts_again_as_a_whole_and_one_warning_names_what_is_wrong(tmp_path: Path, which: str) -> None:
    def ours() -> list[Callback]:
        return [GradientTransforms([Apply(EMA(0.5), params="body.0.*"), Apply(EMA(0.9), params="body.3.*")])]

    trainer, _ = fit(tmp_path, ours())
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)
    state = saved.pop("lightning_hooks.GradientTransforms")["watch/0"]
    torch.save(saved, tmp_path / "without.ckpt")
    fresh, _ = fit(tmp_path, ours(), tmp_path / "without.ckpt")
    if which == "skipped_steps":
        state["skipped_steps"] = None
        wrong = "state.skipped_steps must be an integer below 2**63, got None"
    elif which == "seed":
        state["links"][0]["seed"] = torch.ones(3)
        wrong = f"apply[0].transform (EMA): seed must be an integer from 0 to {2**65 - 1}, got a tensor of torch.float32 and "
        wrong += "shape (3,)"
    else:
        state["links"][1]["state"]["body.3.weight"] = torch.ones(2, 3)
        wrong = "apply[1].transform (EMA): state['body.3.weight'] must be a dense floating-point tensor of shape (3, 8), got a "
        wrong += "tensor of torch.float32 and shape (2, 3)"
    torch.save({**saved, "lightning_hooks.GradientTransforms": {"watch/0": state}}, tmp_path / "damaged.ckpt")
    trainer, said = fit(tmp_path, ours(), tmp_path / "damaged.ckpt")
    assert said == [f"GradientTransforms: the checkpoint is damaged, and its state starts again: {wrong}"]
    assert same(weights(trainer), weights(fresh))
