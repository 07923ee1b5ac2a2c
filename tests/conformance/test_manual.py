"""Manual optimization and several optimizers: each parameter's row at its own optimizer's step."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

from lightning_hooks import Apply, CustomHooks, GradientTransforms, Hook, StatsMonitor, UnsupportedError, Watch, instrument
from lightning_hooks.rules import PARAM_KINDS
from lightning_hooks.transforms import Scale, SkipStep
from tests.callbacks.models import Memory, Net, data, trainer_of
from tests.conformance._tools import Book, Spy, Witness, compare, everything, same_weights, three_runs


class Gan(LightningModule):
    """The generator steps at every batch, the discriminator at every `every`-th; each toggled for its step, or not."""

    def __init__(self, every: int = 1, toggle: bool = True, inner: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.gen = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6))
        self.disc = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
        self.every, self.toggle, self.inner = every, toggle, inner

    def step(self, optimizer: Any, loss: Any) -> None:
        if self.toggle:
            self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(loss())
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
        optimizer.step()
        if self.toggle:
            self.untoggle_optimizer(optimizer)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        first, second = self.optimizers()
        self.step(first, lambda: -self.disc(self.gen(x[:, :2])).mean())
        self.log("loss", x.mean())
        if batch_idx % self.every == 0:
            for _ in range(self.inner):
                with torch.no_grad():
                    fake = self.gen(x[:, :2])
                self.step(second, lambda fake=fake: self.disc(fake).mean() - self.disc(x).tanh().mean())

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.gen.parameters(), lr=0.1), torch.optim.Adam(self.disc.parameters(), lr=0.05)]


@pytest.mark.parametrize("toggle", [True, False], ids=["toggled", ""])
@pytest.mark.parametrize("every", [1, 3])
def test_every_number_of_two_optimizers(tmp_path: Path, every: int, toggle: bool) -> None:
    runs = three_runs(tmp_path, lambda: Gan(every, toggle), lambda: data(7))
    assert runs.book.steps_of("grad_norm/gen.0.weight") == list(range(7))
    assert runs.book.steps_of("update_norm/disc.0.weight") == list(range(0, 7, every))


class ByHand(Gan):
    """Freezes the discriminator for the generator's step and not before the next batch unfreezes it, as pix2pix does."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        first, second = self.optimizers()
        fake = self.gen(x[:, :2])
        self.disc.requires_grad_(True)
        self.step(second, lambda: self.disc(fake.detach()).mean() - self.disc(x).tanh().mean())
        self.disc.requires_grad_(False)
        self.step(first, lambda: -self.disc(fake).mean())


def test_parameters_that_are_frozen_between_two_batches(tmp_path: Path) -> None:
    def make() -> ByHand:
        return ByHand(toggle=False)

    runs = three_runs(tmp_path, make, lambda: data(4))
    assert not any(parameter.requires_grad for parameter in runs.changed.disc.parameters())
    seen: list[str] = []
    monitor = StatsMonitor([Watch(params="disc.*", tensors="grad", stats=["norm", "micro_cosine"])])
    hooks = [Hook(lambda name, _: seen.append(name), kind=kind, params="disc.0.weight", named=True) for kind in PARAM_KINDS]
    trainer_of(tmp_path, monitor, CustomHooks(hooks)).fit(make(), data(4))
    assert seen == ["disc.0.weight"] * 8


def test_every_number_of_two_optimizers_under_a_scaler_whose_scale_grows_between_their_steps(tmp_path: Path) -> None:
    """What flows back in one batch was multiplied by two scales."""

    class Free(Gan):
        def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
            pass

    def plugins() -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        return MixedPrecision("16-mixed", "cpu", scaler=scaler)

    three_runs(tmp_path, Free, lambda: data(4), plugins=plugins)


def test_where_an_optimizer_steps_several_times_in_a_batch_the_last_step_counts(tmp_path: Path) -> None:
    """Activations and what flows back are those of all of them."""
    three_runs(tmp_path, lambda: Gan(2, inner=3), lambda: data(4), stages=("backward", "output_grad"))


def test_step_numbers_are_those_of_self_log(tmp_path: Path) -> None:
    memory = Memory()
    trainer = trainer_of(tmp_path, StatsMonitor(everything(), max_scalars=10**6), logger=memory)
    trainer.fit(Gan(2), data(5))
    assert trainer.global_step == 8
    assert memory.steps == memory.steps_of("loss") == list(range(5))


@pytest.mark.parametrize("every_n_steps", [2, 3])
def test_an_interval_counts_batches_as_lightning_does(tmp_path: Path, every_n_steps: int) -> None:
    memory = Memory()
    monitor = StatsMonitor(everything(), max_scalars=10**6, every_n_steps=every_n_steps)
    trainer_of(tmp_path, monitor, logger=memory, log_every_n_steps=every_n_steps).fit(Gan(2), data(7))
    assert memory.steps == memory.steps_of("loss")


def test_rules_act_at_the_step_of_the_optimizer_that_holds_the_parameter(tmp_path: Path) -> None:
    """A rule on the generator scales its steps and leaves the discriminator's alone, although both losses reach both."""

    def run(rate: float, *callbacks: Any) -> Gan:
        class Sgd(Gan):
            def configure_optimizers(self) -> Any:
                return [torch.optim.SGD(p.parameters(), lr=r) for p, r in ((self.gen, rate), (self.disc, 0.05))]

            def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
                pass

        torch.manual_seed(0)
        model = Sgd(toggle=False)
        trainer_of(tmp_path, *callbacks).fit(model, data(5))
        return model

    same_weights(run(0.05), run(0.1, GradientTransforms([Apply(Scale(0.5), params="gen.*")])))


class Accumulates(Gan):
    """Manual accumulation: the optimizers step at every other batch."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        first, second = self.optimizers()
        self.manual_backward((self.disc(self.gen(x[:, :2])) - self.disc(x)).tanh().mean() / 2)
        if batch_idx % 2:
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()


def test_accumulation_by_hand(tmp_path: Path) -> None:
    runs = three_runs(tmp_path, Accumulates, lambda: data(6))
    assert runs.book.steps_of("grad_norm/gen.0.weight") == [1, 3, 5]
    assert runs.book.steps_of("output_norm/gen.0") == list(range(6))


class Frequencies(Net):
    """Both optimizers hold some parameters of one model; one of them is stepped without Lightning knowing."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        first, second = self.optimizers(use_pl_optimizer=True)
        loss = nn.functional.mse_loss(self(x), y)
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(loss)
        first.step()
        second.optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.body[i].parameters(), lr=0.1) for i in (0, 3)]


def test_a_raw_step_that_lightning_does_not_see_has_its_update_and_no_gradient(tmp_path: Path) -> None:
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    with pytest.warns(UserWarning, match="^SGD has stepped without Lightning's on_before_optimizer_step") as said:
        trainer_of(tmp_path, monitor, book).fit(Frequencies(), data(3))
    assert sum("has stepped" in str(each.message) for each in said) == 1
    assert book.steps_of("grad_norm/body.0.weight") == book.steps_of("update_norm/body.0.weight") == [0, 1, 2]
    assert book.steps_of("grad_norm/body.3.weight") == []
    assert book.steps_of("update_norm/body.3.weight") == [0, 1, 2]


@pytest.mark.parametrize("watched", ["body.3.weight", "body.0.weight"])
def test_a_rule_at_the_step_says_that_a_raw_step_passes_it_by(tmp_path: Path, watched: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        trainer_of(tmp_path, GradientTransforms([Apply(Scale(0.0), params=watched)])).fit(Frequencies(), data(3))
    passed_by = [each for each in said if "rules with when='step' do not change" in str(each.message)]
    assert len(passed_by) == (watched == "body.3.weight")


@pytest.mark.filterwarnings("ignore:.*are more than max_scalars")
@pytest.mark.parametrize(("most", "names"), [(500, ["body.0.weight", "body.0.bias"]), (2, ["body.0"])])
def test_the_update_of_a_raw_step_has_no_ratio_to_a_parameter_that_was_not_measured(
    tmp_path: Path, most: int, names: list[str]
) -> None:
    memory = Memory()
    monitor = StatsMonitor([Watch(params="*", tensors="update", stats="ratio")], max_scalars=most)
    with pytest.warns(UserWarning, match="^SGD has stepped without"):
        trainer_of(tmp_path, monitor, logger=memory).fit(Frequencies(), data(3))
    found = [tag for _, line in memory.ours for tag in line if tag.startswith("update_")]
    assert set(found) == {f"update_ratio/{name}" for name in names} and len(found) == 3 * len(names)


@pytest.mark.parametrize("tensor", ["update", "grad"])
def test_a_raw_step_with_a_closure_has_no_update_either_and_says_so(tmp_path: Path, tensor: str) -> None:
    class Direct(Frequencies):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            def closure() -> None:
                optimizer.zero_grad()
                self(batch[0]).sum().backward()

            _, optimizer = self.optimizers(use_pl_optimizer=False)
            optimizer.step(closure)

    monitor = StatsMonitor([Watch(params="body.3.*", tensors=tensor)], loggers=[])
    with pytest.warns(UserWarning, match="^SGD has stepped without .*: 'param', 'grad' and 'update' of its parameters have"):
        trainer_of(tmp_path, monitor).fit(Direct(), data(3))
    assert not [tag for tag in monitor.latest if tag.startswith(tensor)]


class Wrapper:
    """All that Lightning asks of an optimizer, around another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups, self.defaults, self.state = inner.param_groups, inner.defaults, inner.state
        self.state_dict, self.load_state_dict, self.zero_grad = inner.state_dict, inner.load_state_dict, inner.zero_grad

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


class Half(Wrapper, torch.optim.Optimizer):
    """An optimizer that does not call the `__init__` of its base."""


@pytest.mark.parametrize("kind", [Wrapper, Half])
def test_an_optimizer_without_hooks_has_no_update_and_the_reason(tmp_path: Path, kind: Any) -> None:
    def run(*callbacks: Any) -> Net:
        torch.manual_seed(0)
        model = Net(lambda parameters: kind(torch.optim.SGD(parameters, lr=0.1)), dropout=0.0)
        trainer_of(tmp_path, *callbacks).fit(model, data(3))
        return model

    monitor = StatsMonitor(everything(), max_scalars=10**6, loggers=[])
    book = Book(monitor)
    with pytest.warns(UserWarning) as said:
        watched = run(monitor, GradientTransforms([Apply(Scale(1.0), params="*")]), book)
    same_weights(run(), watched)
    assert [str(each.message).partition(": it does")[0] for each in said if "hooks around" in str(each.message)] == [
        f"'update' and 'state' have no rows: {kind.__name__} has no hooks around its step"
    ]
    assert book.steps_of("grad_norm/body.0.weight") == [0, 1, 2] and not book.steps_of("update_norm/body.0.weight")
    rule = Hook(print, kind="optimizer_step_post")
    with pytest.raises(UnsupportedError, match=rf"^hooks\[0\].kind: 'optimizer_step_post': {kind.__name__} has no hooks"):
        run(CustomHooks([rule]))
    with pytest.raises(UnsupportedError, match=f"^instrument: {kind.__name__} has no hooks .*; omit optimizer= and call step"):
        instrument(watched, [StatsMonitor()], optimizer=kind(torch.optim.SGD(watched.parameters(), lr=0.1))).__enter__()


def test_what_needs_no_update_does_not_miss_it(tmp_path: Path) -> None:
    monitor = StatsMonitor([Watch(params="*", tensors="grad")], loggers=[])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*have no rows")
        model = Net(lambda parameters: Wrapper(torch.optim.SGD(parameters, lr=0.1)))
        trainer_of(tmp_path, monitor, GradientTransforms([Apply(Scale(0.5), params="*")])).fit(model, data(3))
    assert "grad_norm/body.0.weight" in monitor.latest


# -- LBFGS -----------------------------------------------------------------------------------------------------------------


class Lbfgs(Net):
    def __init__(self) -> None:
        super().__init__(dropout=0.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


def test_lbfgs_every_closure_flows_into_the_activations_and_the_last_one_is_the_gradient(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> Lbfgs:
        torch.manual_seed(0)
        model = Lbfgs()
        trainer_of(tmp_path, *callbacks).fit(model, data(3))
        return model

    starts: list[dict[str, Tensor]] = []

    class Start(Witness):
        def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
            super().on_train_batch_start(trainer, *args)
            starts.append({n: p.detach().double().clone() for n, p in trainer.lightning_module.named_parameters()})

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, pl_module, *args)
            for name, parameter in pl_module.named_parameters():
                moved = parameter.detach().double() - starts[-1][name]
                self.steps[self._step][("update", name)] = [(moved, 1.0)]

    witness = Start()
    plain = run(witness)
    monitor, spy = StatsMonitor(everything(), max_scalars=10**6), Spy()
    book = Book(monitor)
    rules = [Apply(Spy(), params="*"), Apply(spy, params="*", when="backward"), Apply(Spy(), modules="*")]
    same_weights(plain, run(monitor, GradientTransforms(rules), book))
    compare(book, witness.steps)
    assert all(len(seen) == 3 for named in spy.seen.values() for seen in named.values())


def test_skipping_a_step_of_lbfgs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="LBFGS"):
        trainer_of(tmp_path, GradientTransforms([Apply(SkipStep(), params="*")])).fit(Lbfgs(), data(1))
