"""Between two batches nothing of ours is on a model; what is copied or written inside one can be used without us."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import pickle
import types
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.nn import functional as F
from torchmetrics import MeanSquaredError, MetricCollection
from torchmetrics.wrappers import MetricTracker

from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    HooksLeftError,
    StatsMonitor,
    Watch,
    assert_no_hooks,
)
from lightning_hooks.transforms import EMA, AddNoise, Scale
from tests import forked
from tests.callbacks.models import Memory, Net, adamw, assert_clean, data, ours_on, trainer_of
from tests.conformance._lifecycle_tools import EACH, all_ours, equal_weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:Attribute .* is an instance of `nn.Module`"),
    pytest.mark.filterwarnings("ignore:matched modules were not called"),
]

EVERYTHING = [
    Watch(modules="*", tensors=["input", "output", "output_grad"], stats="mean"),
    Watch(params="*", tensors=["grad", "final_grad", "update"], stats="norm"),
]


class Holds(LightningModule):
    """Has a loss and a metric among its hyperparameters."""

    def __init__(self, loss: nn.Module, metric: nn.Module) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net, self.loss, self.metric = nn.Linear(4, 1), loss, metric
        self.seen = MetricCollection({"mse": MeanSquaredError()})
        self.tracker = MetricTracker(MeanSquaredError(), maximize=False)
        self.clones: list[Any] = []

    def training_step(self, batch: Any, index: int) -> Any:
        predicted = self.net(batch)
        self.clones += [self.metric.clone(), self.seen.clone(), copy.deepcopy(self.net)]
        self.metric(predicted.detach(), torch.zeros_like(predicted))
        self.seen(predicted.detach(), torch.zeros_like(predicted))
        return self.loss(predicted, torch.zeros_like(predicted))

    def on_train_epoch_start(self) -> None:
        self.tracker.increment()

    def on_train_epoch_end(self) -> None:
        self.tracker(torch.ones(2), torch.zeros(2))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def batches(number: int = 4) -> Any:
    torch.manual_seed(0)
    return torch.utils.data.DataLoader(torch.randn(3 * number, 4), batch_size=3)


def fit_holding(root: Path, *callbacks: Any) -> tuple[Holds, Path]:
    torch.manual_seed(0)
    model = Holds(nn.MSELoss(), MeanSquaredError())
    trainer = trainer_of(root, *callbacks, logger=Memory(), max_epochs=2)
    trainer.fit(model, batches())
    trainer.save_checkpoint(root / "after.ckpt")
    return model, root / "after.ckpt"


class Saves(Callback):
    """Writes a checkpoint, and a module, wherever a callback can between two batches."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.made: dict[str, Any] = {}

    def _save(self, trainer: Any, model: Any, when: str) -> None:
        assert_clean_of_ours(model, trainer)
        self.made[when] = copy.deepcopy([model.metric, model.net, model.loss, trainer.optimizers])
        trainer.save_checkpoint(self.root / f"{self.name}_{when}.ckpt")
        torch.save(model.net, self.root / f"{self.name}_{when}_net.pt")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self._save(trainer, pl_module, "batch_end")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._save(trainer, pl_module, "epoch_end")


def assert_clean_of_ours(model: Any, trainer: Any) -> None:
    assert_no_hooks(model)
    for thing in (*model.modules(), *model.parameters(), *trainer.optimizers):
        kept = [value for name, value in vars(thing).items() if "hook" in name and isinstance(value, dict)]
        hooks = [hook for each in kept for hook in each.values()]
        own = [value for name, value in vars(thing).items() if hasattr(type(thing), name)]
        assert not [hook for hook in (*hooks, *own) if type(hook).__module__.startswith("lightning_hooks")]


@pytest.mark.parametrize("ours", EACH)
def test_between_two_batches_a_model_holds_nothing_of_ours(tmp_path: Path, ours: str) -> None:
    def made() -> list[Callback]:
        if ours == "StatsMonitor":
            return [StatsMonitor(EVERYTHING)]
        return [StatsMonitor(EVERYTHING), optimizer_hooks(), scaled_net(), captured_net(tmp_path)] if ours == "all" else []

    if not made():
        pytest.skip("their rules name modules of another model")
    before, after = Saves(tmp_path, "before"), Saves(tmp_path, "after")
    model, _ = fit_holding(tmp_path, before, *made(), after)
    assert_no_hooks(model)
    for saves in (before, after):
        assert saves.made.keys() == {"batch_end", "epoch_end"}
        for metric, net, loss, _ in saves.made.values():
            assert metric(torch.ones(2), torch.zeros(2)) == 1.0
            assert net(torch.ones(1, 4)).shape == (1, 1) and loss(torch.ones(1), torch.zeros(1)) == 1.0
    files = [path for path in tmp_path.iterdir() if path.suffix in (".ckpt", ".pt")]
    assert len(files) == 9
    for file in files:
        assert b"lightning_hooks." not in pickled(file) and b"contextlib" not in pickled(file), file.name


def pickled(file: Path) -> bytes:
    """What the file was pickled as; names of what a monitor keeps in a checkpoint are not names of modules."""
    with zipfile.ZipFile(file) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        return archive.read(name).replace(b"lightning_hooks.StatsMonitor", b"").replace(b"lightning_hooks.Activ", b"")


def optimizer_hooks() -> CustomHooks:
    return CustomHooks(
        [
            Hook(lambda *given: None, kind="optimizer_step_pre"),
            Hook(lambda *given: None, kind="optimizer_step_post"),
            Hook(lambda *given: None, kind="post_accumulate_grad", params="*"),
            Hook(lambda *given: None, kind="param_grad", params="*"),
            Hook(lambda *given: None, kind="forward", modules="*", prepend=True),
        ]
    )


def scaled_net() -> ActivationTransforms:
    return ActivationTransforms([Apply(Scale(0.9), modules="net")])


def captured_net(root: Path) -> ActivationCapture:
    return ActivationCapture("net", every_n_steps=1, folder=str(root / "captures"))


READ = """
import sys
sys.modules["lightning_hooks"] = None
import torch
from torch import nn
from torchmetrics import MeanSquaredError
for path in sys.argv[1:]:
    kept = torch.load(path, weights_only=False)["hyper_parameters"]
    assert kept["metric"](torch.ones(2), torch.zeros(2)) == 1.0 and kept["loss"](torch.ones(1), torch.zeros(1)) == 1.0
"""


def test_a_checkpoint_is_read_where_the_package_is_missing(tmp_path: Path) -> None:
    _, _ = fit_holding(tmp_path, Saves(tmp_path, "x"), StatsMonitor(EVERYTHING), optimizer_hooks())
    paths = [str(tmp_path / f"{name}.ckpt") for name in ("x_batch_end", "x_epoch_end", "after")]
    done = forked.run(["-c", READ, *paths])
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_is_as_safe_to_read_as_one_that_nobody_watched(tmp_path: Path) -> None:
    roots = [tmp_path / "watched", tmp_path / "plain"]
    unsafe = []
    for root, ours in zip(roots, ([StatsMonitor(EVERYTHING), optimizer_hooks()], []), strict=True):
        root.mkdir()
        fit_holding(root, Saves(root, "x"), *ours)
        files = sorted(root.glob("*.ckpt"))
        unsafe.append([torch.serialization.get_unsafe_globals_in_checkpoint(file) for file in files])
        with torch.serialization.safe_globals([nn.Linear, set]):
            assert isinstance(torch.load(root / "x_batch_end_net.pt", weights_only=True), nn.Linear)
    assert [set(each) for each in unsafe[0]] == [set(each) for each in unsafe[1]]


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_a_checkpoint_is_read_with_weights_only_where_the_users_own_classes_are_allowed(tmp_path: Path) -> None:
    change = GradientTransforms([Apply([EMA(), AddNoise(0.1)], params="*")])  # which keep a state
    model, _ = fit_holding(tmp_path, Saves(tmp_path, "x"), StatsMonitor(EVERYTHING), optimizer_hooks(), change)
    for name in ("x_batch_end", "x_epoch_end", "after"):
        path = tmp_path / f"{name}.ckpt"
        own = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        assert own and not [each for each in own if "lightning_hooks" in each]
        with torch.serialization.safe_globals([named(each) for each in own]):
            kept = torch.load(path, weights_only=True)
        assert kept["hyper_parameters"]["metric"](torch.ones(2), torch.zeros(2)) == 1.0
        assert kept["state_dict"].keys() == model.state_dict().keys()
        assert kept["lightning_hooks.GradientTransforms"]


def test_clones_made_inside_a_batch_work_alone_then_and_after_the_fit(tmp_path: Path) -> None:
    model, _ = fit_holding(tmp_path, StatsMonitor(EVERYTHING), optimizer_hooks())
    assert len(model.clones) == 24
    for metric, collection, net in zip(*[iter(model.clones)] * 3, strict=True):
        for thing in (metric, collection, net):
            assert_no_hooks(thing)
            file = io.BytesIO()
            torch.save(thing, file)
            assert b"lightning_hooks" not in file.getvalue()
        assert metric(torch.ones(2), torch.zeros(2)) == 1.0
        assert collection(torch.ones(2), torch.zeros(2)) == {"mse": 1.0}
        net(torch.ones(1, 4)).sum().backward()
    assert model.tracker.compute_all().tolist() == [1.0, 1.0]
    assert model.metric(torch.ones(2), torch.zeros(2)) == 1.0


class Encoder(Net):
    """An encoder that torch computes in another way when nobody looks."""

    def __init__(self) -> None:
        super().__init__(adamw, dropout=0.0)
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0)
        self.ways: list[int] = []
        self.outputs: list[Any] = []

    def training_step(self, batch: Any, index: int) -> Any:
        return super().training_step(batch, index) + self.encoder(batch[0].unsqueeze(0)).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        calls: list[int] = []
        linear1 = self.encoder.linear1
        forward = linear1.forward

        def counted(x: Any) -> Any:
            calls.append(1)
            return forward(x)

        vars(linear1)["forward"] = counted
        self.outputs.append(self.encoder(batch[0].unsqueeze(0)).clone())
        del linear1.forward
        self.ways.append(len(calls))
        assert ours_on(self) == 0


@pytest.mark.filterwarnings("ignore:matched modules were not called.*self_attn.out_proj")
@pytest.mark.parametrize("every", [1, 2])
def test_a_validation_that_nobody_watches_is_as_without_us(tmp_path: Path, every: int) -> None:
    models = []
    for ours in ([StatsMonitor(every_n_steps=every), optimizer_hooks()], []):
        torch.manual_seed(0)
        model = Encoder()
        torch.manual_seed(1)
        trainer = trainer_of(
            tmp_path, *ours, logger=Memory(), val_check_interval=1, limit_val_batches=1, num_sanity_val_steps=0
        )
        trainer.fit(model, data(4), data(1))
        models.append(model)
    watched, plain = models
    assert watched.ways == plain.ways == [0] * 4
    assert all(torch.equal(one, other) for one, other in zip(watched.outputs, plain.outputs, strict=True))


class Raises(Callback):
    """Fails in the middle of a batch, and again when it is told of that."""

    def __init__(self, error: type[BaseException], where: str = "on_after_backward") -> None:
        self.error = error
        setattr(self, where, self._fail)

    def _fail(self, *given: Any) -> None:
        raise self.error("first")

    def on_exception(self, *given: Any) -> None:
        raise ValueError("second")


@pytest.mark.parametrize("where", ["on_after_backward", "on_before_optimizer_step", "on_train_batch_start"])
@pytest.mark.parametrize("position", ["before", "after"])
@pytest.mark.parametrize("ours", EACH)
def test_another_callback_that_fails_when_told_of_an_error_leaves_nothing_of_ours(
    tmp_path: Path, ours: str, position: str, where: str
) -> None:
    model, failing = Net(adamw, dropout=0.0), Raises(RuntimeError, where)
    callbacks = EACH[ours](tmp_path)
    trainer = trainer_of(tmp_path, *([failing, *callbacks] if position == "before" else [*callbacks, failing]))
    given = list(trainer.callbacks)
    with pytest.raises(ValueError, match="second"):
        trainer.fit(model, data())
    assert_clean(model)
    assert trainer.callbacks == given
    x = torch.randn(2, 6)
    assert torch.equal(model.body.train()(x), model.body[3](torch.relu(model.body[0](x))))


class Patches(Callback):
    """A profiler that counts calls in its own `_call_impl`, on a class or on one module, from the second step on."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.calls = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx != 1:
            return
        module = pl_module.body[0]
        holder: Any = type(module) if self.of == "class" else module
        original = module._call_impl if self.of == "instance" else holder._call_impl

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        holder._call_impl = counting

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        holder: Any = type(pl_module.body[0]) if self.of == "class" else pl_module.body[0]
        del holder._call_impl


@pytest.mark.parametrize("of", ["class", "instance"])
@pytest.mark.parametrize("first", [True, False], ids=["before ours", "after ours"])
def test_a_call_impl_that_somebody_puts_there_is_called(tmp_path: Path, of: str, first: bool) -> None:
    memory, patches, monitor = Memory(), Patches(of), StatsMonitor(EVERYTHING)
    model = Net(adamw, dropout=0.0)
    model.body[3] = nn.LazyLinear(3)  # another class, so that one is counted
    model.body[3](torch.zeros(1, 8))
    model.body[3] = nn.Sequential(nn.Flatten(), nn.ReLU())
    model.body[3] = Head()
    trainer_of(tmp_path, *([patches, monitor] if first else [monitor, patches]), logger=memory).fit(model, data(4))
    assert patches.calls == 3
    assert len(memory.values("output_mean/body.0")) == 4


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 8))

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.weight)


def reached_from(thing: Any) -> list[Any]:
    """Everything that an object keeps alive, without what belongs to the whole process."""
    found: dict[int, Any] = {}
    left = [thing]
    while left:
        item = left.pop()
        if id(item) in found or isinstance(item, (type, types.ModuleType)):
            continue
        found[id(item)] = item
        if isinstance(item, types.FunctionType):
            left += [item.__closure__, item.__defaults__, item.__dict__]
        else:
            left += gc.get_referents(item)
    return list(found.values())


@pytest.mark.parametrize("ours", EACH)
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_whoever_keeps_the_callback_keeps_neither_model_nor_optimizer_nor_trainer(
    tmp_path: Path, ours: str, fails: bool
) -> None:
    callbacks, model = EACH[ours](tmp_path), Net(adamw)
    trainer = trainer_of(tmp_path, *callbacks, *([Fails()] if fails else []), logger=Memory())
    try:
        trainer.fit(model, data())
    except RuntimeError as error:
        assert str(error) == "at the third step"
    kept = reached_from(callbacks)
    assert len(kept) > 10 and not [thing for thing in kept if isinstance(thing, (nn.Module, Trainer, torch.optim.Optimizer))]
    assert not [thing for thing in kept if isinstance(thing, torch.Tensor) and thing.dim() == 2]
    if ours == "StatsMonitor":
        assert "output_mean/body.0" in callbacks[0].latest  # type: ignore[attr-defined]


@pytest.mark.parametrize("ours", EACH)
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_model_optimizer_and_trainer_are_freed_while_the_callback_is_kept(tmp_path: Path, ours: str, fails: bool) -> None:
    callbacks = EACH[ours](tmp_path)

    def fit() -> list[ref[Any]]:
        model = Net(adamw)
        trainer = trainer_of(tmp_path, *callbacks, *([Fails()] if fails else []), logger=Memory())
        with pytest.raises(RuntimeError, match="at the third step") if fails else nullcontext():
            trainer.fit(model, data())
        return [ref(thing) for thing in (model, model.body[0], model.body[0].weight, trainer.optimizers[0], trainer)]

    alive = fit()
    gc.collect()
    assert [made() for made in alive] == [None] * 5


class Fails(Callback):
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step == 2:
            raise RuntimeError("at the third step")


def test_leftovers_of_any_kind_are_found() -> None:
    class Old:
        def __call__(self, *given: Any) -> None: ...

    Old.__module__ = "lightning_hooks.hooks.older"
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.BatchNorm1d(1), nn.ReLU())
    model[0].register_forward_hook(Old())
    model[1].weight.register_post_accumulate_grad_hook(Old())
    vars(model[2])["forward"] = Old()
    vars(model[3])["_compiled_call_impl"] = Old()
    with pytest.raises(HooksLeftError, match="left on module 0, module 2, module 3, parameter 1.weight"):
        assert_no_hooks(model)


def test_the_list_of_callbacks_is_the_users_again(tmp_path: Path) -> None:
    given: list[Any] = all_ours(tmp_path)
    trainer = Trainer(
        default_root_dir=tmp_path,
        callbacks=given,
        logger=False,
        max_epochs=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    before, kept = trainer.callbacks, list(trainer.callbacks)  # type: ignore[attr-defined]
    trainer.fit(Net(adamw), data())
    assert trainer.callbacks is before and before == kept  # type: ignore[attr-defined]


def test_weights_are_those_of_a_fit_without_us(tmp_path: Path) -> None:
    watched, _ = fit_holding(tmp_path, StatsMonitor(EVERYTHING), optimizer_hooks())
    plain, _ = fit_holding(tmp_path)
    assert equal_weights(watched, plain)


def test_gradient_transforms_leave_no_hook_between_batches(tmp_path: Path) -> None:
    counts: list[int] = []

    class Counts(Callback):
        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            counts.append(ours_on(pl_module))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            counts.append(ours_on(pl_module))

    ours = GradientTransforms([Apply(Scale(0.5), params="*", when="backward")])
    trainer_of(tmp_path, Counts(), ours, accumulate_grad_batches=2).fit(Net(adamw), data(4))
    assert counts == [4, 0] * 4


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning", "ignore:The .grad attribute of a Tensor")
def test_a_copy_of_a_compiled_module_can_be_used_without_us(tmp_path: Path) -> None:
    copies: list[bytes] = []

    class Copies(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            copies.append(pickle.dumps(copy.deepcopy(pl_module.body)))

    model = Net(adamw, dropout=0.0)
    model.body.compile(backend="eager")
    monitor = StatsMonitor(Watch(modules="*", tensors=["output", "output_grad"], stats="mean"))
    trainer_of(tmp_path, monitor, Copies()).fit(model, data(3))
    assert len(copies) == 3 and "output_mean/body.0" in monitor.latest
    for made in copies:
        assert b"lightning_hooks" not in made
        copied = pickle.loads(made)
        assert_no_hooks(copied)
        copied(torch.randn(2, 6)).sum().backward()
