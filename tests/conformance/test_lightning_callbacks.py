"""Beside Lightning's own callbacks: copies and checkpoints carry no hook of ours, and trial steps are nobody's steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, callbacks
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Apply, GradientTransforms, StatsMonitor
from lightning_hooks.transforms import AddNoise, ClipByGlobalNorm, Scale
from tests.callbacks.models import Memory, Net, adamw, assert_clean, data, nesterov, ours_on, trainer_of
from tests.conformance._lifecycle_tools import Boom, all_ours, equal_weights, hooks_in, observers
from tests.conformance._tools import Spy


def fit(root: Path, model: Net, *callbacks: Callback, loader: Any = None, **options: Any) -> Any:
    torch.manual_seed(1)
    trainer = trainer_of(root, *callbacks, **{"max_epochs": 4, **options})
    trainer.fit(model, loader or data())
    assert_clean(model)
    return trainer


def make(kind: type[Net] = Net, **options: Any) -> Net:
    torch.manual_seed(0)
    return kind(adamw, **options)


NAMES = ("StochasticWeightAveraging", "WeightAveraging", "EMAWeightAveraging")
AVERAGING = tuple(name for name in NAMES if hasattr(callbacks, name))  # the last two came with later releases of Lightning
PEERS: dict[str, Any] = {
    "StochasticWeightAveraging": lambda: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1, annealing_epochs=1),
    "WeightAveraging": lambda: callbacks.WeightAveraging(),
    "EMAWeightAveraging": lambda: callbacks.EMAWeightAveraging(decay=0.9),
    "ModelPruning": lambda: ModelPruning("l1_unstructured", parameter_names=["weight"], amount=0.3),
}
PEERS = {name: make for name, make in PEERS.items() if name in AVERAGING or name not in NAMES}


@pytest.mark.filterwarnings("ignore:Swapping scheduler")
@pytest.mark.parametrize("first", [True, False], ids=["before ours", "after ours"])
@pytest.mark.parametrize("name", PEERS)
def test_the_same_weights_with_and_without_watching(tmp_path: Path, name: str, first: bool) -> None:
    plain, watched = make(), make()
    fit(tmp_path, plain, PEERS[name]())
    ours, peer = observers(tmp_path), PEERS[name]()
    fit(tmp_path, watched, *([peer, *ours] if first else [*ours, peer]))
    assert equal_weights(plain, watched)
    if name in AVERAGING:
        copy = peer._average_model
        assert copy is None or hooks_in(copy) == []


@pytest.mark.filterwarnings("ignore:Swapping scheduler")
@pytest.mark.parametrize("name", AVERAGING)
def test_the_averaged_copy_carries_no_hook_while_the_fit_goes_on(tmp_path: Path, name: str) -> None:
    peer, seen = PEERS[name](), []

    class Look(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            seen.append((ours_on(pl_module) > 0, hooks_in(peer._average_model)))

    fit(tmp_path, make(), peer, *all_ours(tmp_path), Look())
    assert seen and all(hooked and not copied for hooked, copied in seen)


def test_a_pruned_parameter_keeps_its_rows_and_its_name(tmp_path: Path) -> None:
    memory, peer = Memory(), ModelPruning("l1_unstructured", parameter_names=["weight"], amount=0.5)
    fit(tmp_path, make(), peer, StatsMonitor(max_scalars=500), logger=memory)
    for tag in ("param_norm", "grad_norm", "update_norm"):
        assert memory.steps_of(f"{tag}/body.0.weight") == memory.steps


def halved(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.025, momentum=0.9, nesterov=True, foreach=True)


@pytest.mark.parametrize("first", [True, False], ids=["before ours", "after ours"])
def test_transforms_go_on_where_pruning_has_replaced_the_parameters(tmp_path: Path, first: bool) -> None:
    slower, halving, spy = Net(halved), Net(nesterov), Spy()
    halving.load_state_dict(slower.state_dict())
    half = [Apply([Scale(0.5), spy], params="*.weight"), Apply(Scale(0.5), params="*.bias", when="backward")]
    fit(tmp_path, slower, PEERS["ModelPruning"]())
    ours, peer = GradientTransforms(half), PEERS["ModelPruning"]()
    fit(tmp_path, halving, *([peer, ours] if first else [ours, peer]))
    assert equal_weights(slower, halving), "half the gradient is half the learning rate, to the last bit"
    assert [list(spy.seen[step]) for step in range(24)] == [["body.0.weight", "body.3.weight"]] * 24, "in all four epochs"


@pytest.mark.parametrize("first", [True, False], ids=["before ours", "after ours"])
def test_pruned_weights_stay_zero_whatever_a_transform_does_to_their_gradient(tmp_path: Path, first: bool) -> None:
    pruned: list[dict[str, torch.Tensor]] = []

    class Masks(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            pruned.append({name: mask == 0 for name, mask in pl_module.named_buffers()})

    model, peer = make(), PEERS["ModelPruning"]()
    ours = GradientTransforms([Apply([AddNoise(1.0), ClipByGlobalNorm(1.0)], params="*")])
    fit(tmp_path, model, *([peer, ours] if first else [ours, peer]), Masks())
    assert [sum(int(there.sum()) for there in masks.values()) for masks in pruned] == [
        0,
        22,
        37,
        47,
    ]  # of 72, 0.3 of what is left
    weights = model.state_dict()
    for masks in pruned:
        assert not any(weights[name.removesuffix("_mask")][there].any() for name, there in masks.items())
    assert sum(int((weights[f"body.{i}.weight"] == 0).sum()) for i in (0, 3)) == 55


class Sized(Net):
    """Says its batch size and its learning rate, as the finders want."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batch_size, self.lr = 2, 0.01
        self.trials = 0

    def train_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(3)
        x, y = torch.randn(64, 6, generator=generator), torch.randn(64, 3, generator=generator)
        return DataLoader(TensorDataset(x, y), batch_size=self.batch_size)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trials += 1
        return super().training_step(batch, batch_idx)


def finder(name: str) -> Callback:
    if name == "BatchSizeFinder":
        return BatchSizeFinder(mode="power", steps_per_trial=2, init_val=2, max_trials=2)
    return LearningRateFinder(num_training_steps=12, early_stop_threshold=None)


def skip_if_trials_count(model: Any, batches: int) -> None:
    if model.trials == batches:
        pytest.skip("Lightning 2.5.0 begins the fit after the trial steps, as if they were its own")


@pytest.mark.parametrize("name", ["BatchSizeFinder", "LearningRateFinder"])
def test_the_trial_steps_of_a_finder_are_not_written(tmp_path: Path, name: str) -> None:
    memory, model = Memory(), make(Sized, log=True)
    ours = observers(tmp_path)
    trainer = trainer_of(tmp_path, *ours, finder(name), logger=memory, max_epochs=2)
    trainer.fit(model)
    assert_clean(model)
    batches = trainer.num_training_batches * 2
    skip_if_trials_count(model, batches)
    assert model.trials > batches, "the finder did take steps of its own"
    assert memory.steps == list(range(batches)) == memory.steps_of("loss")
    assert ours[0].latest


@pytest.mark.parametrize("name", ["BatchSizeFinder", "LearningRateFinder"])
def test_a_finder_finds_the_same_and_leaves_the_same_weights(tmp_path: Path, name: str) -> None:
    models = []
    for ours in ([], observers(tmp_path)):
        model = make(Sized)
        torch.manual_seed(1)
        trainer_of(tmp_path, finder(name), *ours, max_epochs=2).fit(model)
        assert_clean(model)
        models.append(model)
    assert equal_weights(*models)
    assert (models[0].batch_size, models[0].lr) == (models[1].batch_size, models[1].lr)


def test_counters_of_transforms_do_not_count_the_trial_steps(tmp_path: Path) -> None:
    memory, model = Memory(), make(Sized)
    ours = all_ours(tmp_path)
    trainer = trainer_of(tmp_path, *ours, finder("LearningRateFinder"), logger=memory, max_epochs=1)
    trainer.fit(model)
    skip_if_trials_count(model, trainer.num_training_batches)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    (state,) = torch.load(tmp_path / "last.ckpt")["lightning_hooks.GradientTransforms"].values()
    links = state["links"]
    assert [link["report"]["reported_steps"] for link in links] == [trainer.num_training_batches] * 3
    assert_clean(model)


def assert_loads_plainly(path: Path) -> dict[str, Any]:
    """A checkpoint that holds nothing but numbers loads where only these are allowed."""
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    assert hooks_in(loaded) == []
    return loaded


def test_a_checkpoint_carries_no_hook_and_the_weights_of_the_plain_run(tmp_path: Path) -> None:
    states = []
    for name, ours in (("plain", []), ("watched", observers(tmp_path))):
        saver = ModelCheckpoint(tmp_path / name, every_n_train_steps=2, save_top_k=-1, filename="{step}")
        fit(tmp_path, make(), *ours, saver, enable_checkpointing=True, max_epochs=1)
        states.append({path.name: assert_loads_plainly(path) for path in sorted((tmp_path / name).glob("*.ckpt"))})
    plain, watched = states
    assert plain.keys() == watched.keys() and len(plain) == 3
    for name in plain:
        assert plain[name]["state_dict"].keys() == watched[name]["state_dict"].keys()
        for key, value in plain[name]["state_dict"].items():
            assert torch.equal(value, watched[name]["state_dict"][key])
        assert str(plain[name]["optimizer_states"]) == str(watched[name]["optimizer_states"])


def test_a_checkpoint_with_every_callback_of_ours_loads_plainly(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2, save_top_k=-1)
    fit(tmp_path, make(), *all_ours(tmp_path), saver, enable_checkpointing=True, max_epochs=1)
    for path in (tmp_path / "saved").glob("*.ckpt"):
        assert_loads_plainly(path)


class Fails(Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            raise Boom("late")


@pytest.mark.filterwarnings("ignore:.*fit.ckpt_path", "ignore:You.re resuming from a checkpoint")
@pytest.mark.parametrize("first", [True, False], ids=["before ours", "after ours"])
def test_a_checkpoint_on_an_exception_carries_no_hook(tmp_path: Path, first: bool) -> None:
    model, saver, ours = make(), OnExceptionCheckpoint(tmp_path, filename="died"), all_ours(tmp_path)
    with pytest.raises(Boom, match="^late$"):
        callbacks = [saver, *ours] if first else [*ours, saver]
        trainer_of(tmp_path, *callbacks, Fails(), enable_checkpointing=True).fit(model, data())
    assert_clean(model)
    assert_loads_plainly(tmp_path / "died.ckpt")
    twin = make()
    again = trainer_of(tmp_path, *all_ours(tmp_path))
    again.fit(twin, data(), ckpt_path=tmp_path / "died.ckpt")
    assert again.global_step == 6
    assert_clean(twin)
