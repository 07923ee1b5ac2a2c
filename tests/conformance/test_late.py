"""What changes during a fit: parameters unfrozen or added later, modules replaced, modules that learn their shape late."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch, assert_no_hooks
from lightning_hooks.transforms import Scale, Zero
from tests.callbacks.models import data, trainer_of
from tests.conformance._tools import Book, Spy, everything, real, same_weights, truth

PER_EPOCH = 3


class Net(LightningModule):
    """A backbone and a head; what a test puts into `later` is called when an epoch begins."""

    def __init__(self, later: Callable[[Any, Any], None] = lambda model, optimizer: None) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        self.head = nn.Linear(4, 3)
        self.later = later

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.later(self, self.trainer.optimizers[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


class Truth(Callback):
    """The gradients of the step and the outputs of the head, by name as the model has it then."""

    def __init__(self) -> None:
        self.grads: dict[int, dict[str, float]] = {}

    def on_before_optimizer_step(self, trainer: Any, pl_module: LightningModule, optimizer: Any) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.grads[trainer.global_step] = {
            name: real(p.grad).norm().item() for name, p in pl_module.named_parameters() if p.grad is not None and id(p) in held
        }


def runs(root: Path, make: Callable[[], Net], extra: Callable[[], list[Callback]] = list) -> tuple[Book, dict[str, Spy]]:
    """Two epochs alone, watched, and with rules that change nothing: the same weights, the gradients of the truth."""

    def fit(*callbacks: Callback) -> Any:
        torch.manual_seed(0)
        model = make()
        torch.manual_seed(1)
        trainer_of(root, *extra(), *callbacks, max_epochs=2).fit(model, data(PER_EPOCH))
        assert_no_hooks(model)
        return model

    expected = Truth()
    plain = fit(expected)
    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    same_weights(plain, fit(monitor, book))
    spies = {"step": Spy(), "backward": Spy(), "output_grad": Spy()}
    rules = [
        Apply(spies["step"], params="*"),
        Apply(spies["backward"], params="*", when="backward"),
        Apply(spies["output_grad"], modules="*"),
    ]
    same_weights(plain, fit(GradientTransforms(rules)))
    for step, grads in expected.grads.items():
        tag = "grad_norm/"
        rows = {name.removeprefix(tag): value for name, value in book.rows[step].items() if name.startswith(tag)}
        assert rows == pytest.approx(grads, rel=1e-6), step
        updates = {name.partition("/")[2] for name in book.rows[step] if name.startswith("update_norm/")}
        assert updates == grads.keys(), step
        for stage in ("step", "backward"):
            given = {name: t[0].norm().item() for name, t in spies[stage].seen[step].items() if name in grads}
            assert given == pytest.approx(grads, rel=1e-6), (stage, step)
    return book, spies


def later_steps(book: Book, tag: str) -> list[int]:
    return [step for step in book.steps_of(tag) if step >= PER_EPOCH]


# -- frozen at first -------------------------------------------------------------------------------------------------------


def frozen(**options: Any) -> Net:
    model = Net(**options)
    model.backbone.requires_grad_(False)
    return model


def unfreeze(model: Net, optimizer: Any) -> None:
    model.backbone.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.backbone.parameters())})


def test_backbone_finetuning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # BackboneFinetuning says which learning rate it chose
        book, _ = runs(tmp_path, Net, lambda: [BackboneFinetuning(unfreeze_backbone_at_epoch=1, verbose=False)])
    assert book.steps_of("grad_norm/backbone.0.weight") == [3, 4, 5]
    assert book.steps_of("grad_norm/head.weight") == list(range(6))


def test_parameters_unfrozen_and_added_to_the_optimizer_later(tmp_path: Path) -> None:
    book, spies = runs(tmp_path, lambda: frozen(later=unfreeze))
    for tag in ("grad_norm", "update_norm", "param_norm"):
        assert book.steps_of(f"{tag}/backbone.0.weight") == [3, 4, 5]
    assert book.steps_of("output_norm/backbone.0") == list(range(6))
    assert book.steps_of("output_grad_norm/backbone.0") == [3, 4, 5]
    assert [step for step, seen in spies["output_grad"].seen.items() if "backbone.0" in seen] == [3, 4, 5]


def test_a_rule_in_backward_reaches_a_parameter_that_was_frozen(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = frozen(later=unfreeze)
    before = model.backbone[0].weight.detach().clone()
    rules = GradientTransforms([Apply(Zero(), params="backbone.0.weight", when="backward")])
    trainer_of(tmp_path, rules, max_epochs=2).fit(model, data(PER_EPOCH))
    assert torch.equal(model.backbone[0].weight, before)
    assert not torch.equal(model.backbone[2].weight, frozen().backbone[2].weight)


def test_parameters_that_the_optimizer_holds_only_later(tmp_path: Path) -> None:
    """They have gradients before, which nobody consumes: no row, since no optimizer steps with them."""

    class Late(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)

    def add(model: Net, optimizer: Any) -> None:
        model.zero_grad()
        optimizer.add_param_group({"params": list(model.backbone.parameters())})

    book, _ = runs(tmp_path, lambda: Late(add))
    assert book.steps_of("grad_norm/backbone.0.weight") == [3, 4, 5]
    assert book.steps_of("output_grad_norm/backbone.0") == list(range(6))


def test_parameters_frozen_later(tmp_path: Path) -> None:
    def freeze(model: Net, optimizer: Any) -> None:
        model.backbone.requires_grad_(False)
        for parameter in model.backbone.parameters():
            parameter.grad = None

    monitor = StatsMonitor(everything(), max_scalars=10**6)
    book = Book(monitor)
    trainer_of(tmp_path, monitor, book, max_epochs=2).fit(Net(freeze), data(PER_EPOCH))
    assert book.steps_of("grad_norm/backbone.0.weight") == book.steps_of("update_norm/backbone.0.weight") == [0, 1, 2]
    assert book.steps_of("grad_norm/head.weight") == list(range(6))


# -- replaced --------------------------------------------------------------------------------------------------------------


def new_head(model: Net, optimizer: Any) -> None:
    torch.manual_seed(5)
    model.head = nn.Linear(4, 3)
    optimizer.param_groups[0]["params"][-2:] = list(model.head.parameters())


def new_backbone(model: Net, optimizer: Any) -> None:
    torch.manual_seed(5)
    model.backbone = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4))
    optimizer.param_groups[0]["params"][:4] = list(model.backbone.parameters())


@pytest.mark.parametrize(("change", "name"), [(new_head, "head"), (new_backbone, "backbone.0")])
def test_a_module_replaced_by_another_of_its_name_keeps_its_rows_and_rules(tmp_path: Path, change: Any, name: str) -> None:
    book, spies = runs(tmp_path, lambda: Net(change))
    for tag in ("output_norm", "output_grad_norm", "input_norm"):
        assert book.steps_of(f"{tag}/{name}") == list(range(6)), tag
    assert [step for step, seen in spies["output_grad"].seen.items() if name in seen] == list(range(6))


def test_a_module_replaced_while_its_hooks_are_away_has_them_at_the_next_watched_step(tmp_path: Path) -> None:
    monitor = StatsMonitor([Watch(modules="head", tensors="output", stats="norm")], every_n_steps=2)
    book = Book(monitor)
    trainer_of(tmp_path, monitor, book, max_epochs=3).fit(Net(new_head), data(PER_EPOCH))
    assert book.steps_of("output_norm/head") == [1, 3, 5, 7]


def test_a_module_compiled_while_its_hooks_are_away_is_watched_inside(tmp_path: Path) -> None:
    class Compiles(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Net, batch: Any, batch_idx: int) -> None:
            if batch_idx == 4:
                pl_module.backbone.compile(backend="eager")

    monitor = StatsMonitor([Watch(modules="backbone.0", tensors="output", stats="norm")], every_n_steps=3)
    book = Book(monitor)
    trainer_of(tmp_path, Compiles(), monitor, book).fit(Net(), data(9))
    assert book.steps_of("output_norm/backbone.0") == [2, 5, 8]


def test_the_numbers_of_a_replaced_module_are_its_own(tmp_path: Path) -> None:
    kept: list[Tensor] = []

    def change(model: Net, optimizer: Any) -> None:
        new_head(model, optimizer)
        model.head.register_forward_hook(lambda m, a, out: kept.append(out.detach().clone()))

    monitor = StatsMonitor([Watch(modules="head", tensors="output", stats=["norm", "mean"])])
    book = Book(monitor)
    trainer_of(tmp_path, monitor, book, max_epochs=2).fit(Net(change), data(PER_EPOCH))
    expected = [truth([(t, 1.0)]).stats["norm"] for t in kept]
    assert book.values("output_norm/head")[PER_EPOCH:] == pytest.approx(expected, rel=1e-6)


def test_a_parameter_replaced_by_another_of_its_name_keeps_its_rows_and_rules(tmp_path: Path) -> None:
    def assign(model: Net, optimizer: Any) -> None:
        state = {name: value.clone() * 2 for name, value in model.head.state_dict().items()}
        model.head.load_state_dict(state, assign=True)
        optimizer.param_groups[0]["params"][-2:] = list(model.head.parameters())

    book, _ = runs(tmp_path, lambda: Net(assign))
    assert book.steps_of("grad_norm/head.weight") == list(range(6))


def test_replaced_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """Noticed when the old module is not called any more: the step of the change may be without its rows, with a warning."""

    class Middle(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Net, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                new_head(pl_module, trainer.optimizers[0])

    monitor = StatsMonitor([Watch(modules="head", tensors="output", stats="norm"), Watch(params="head.*", tensors="grad")])
    book = Book(monitor)
    trainer_of(tmp_path, Middle(), monitor, book).fit(Net(), data(6))
    assert set(book.steps_of("output_norm/head")) >= {0, 1, 2, 4, 5}
    assert set(book.steps_of("grad_norm/head.weight")) >= {0, 1, 2, 4, 5}


def test_a_module_that_is_taken_away_is_named_once(tmp_path: Path) -> None:
    def shorten(model: Net, optimizer: Any) -> None:
        model.backbone = nn.Sequential(nn.Linear(6, 4))

    monitor, spy = StatsMonitor(everything(), max_scalars=10**6), Spy()
    rules = GradientTransforms([Apply(spy, modules="backbone.2")])
    with pytest.warns(UserWarning, match="no longer in the model") as seen:
        trainer_of(tmp_path, monitor, rules, max_epochs=2).fit(Net(shorten), data(PER_EPOCH))
    messages = [str(w.message) for w in seen if "no longer in the model" in str(w.message)]
    assert len(messages) == 1 and "backbone.1, backbone.2" in messages[0]


# -- late shapes -----------------------------------------------------------------------------------------------------------


class Configured(Net):
    """Its head is made in `configure_model`."""

    def __init__(self) -> None:
        super().__init__()
        del self.head

    def configure_model(self) -> None:
        if not hasattr(self, "head"):
            self.head = nn.Linear(4, 3)


def test_a_model_made_in_configure_model(tmp_path: Path) -> None:
    book, _ = runs(tmp_path, Configured)
    assert book.steps_of("grad_norm/head.weight") == list(range(6))


class Lazy(Net):
    """Its head learns its input size in the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LazyLinear(3)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:.*UninitializedParameter.*")
def test_a_lazy_module_that_gets_its_shape_in_the_first_batch(tmp_path: Path) -> None:
    def make() -> Lazy:
        return Lazy()

    book, _ = runs(tmp_path, make)
    assert book.steps_of("grad_norm/head.weight") == list(range(6))
    assert book.steps_of("output_norm/head") == list(range(6))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:.*UninitializedParameter.*")
def test_a_rule_in_backward_reaches_a_lazy_parameter_from_its_first_gradient_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    starts: list[Tensor] = []

    class First(Callback):
        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            if not starts:
                starts.append(pl_module.head.weight.detach().clone())

    model = Lazy()
    rules = GradientTransforms([Apply(Zero(), params="head.weight", when="backward"), Apply(Scale(1.0), params="*")])
    trainer_of(tmp_path, rules, First()).fit(model, data(3))
    assert torch.equal(model.head.weight, starts[0])


def greatest(tensor: Tensor) -> Tensor:
    return tensor.abs().max()


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:.*UninitializedParameter.*")
def test_a_parameter_without_a_value_in_the_first_step_leaves_the_others_their_own_update(tmp_path: Path) -> None:
    class Later(Lazy):
        """Calls its head from the second batch on."""

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.backbone(x)
            return self.head(hidden) if self.global_step else hidden[:, :3]

    monitor = StatsMonitor([Watch(params="*", tensors=["grad", "update"], stats=[greatest])])
    book = Book(monitor)
    trainer_of(tmp_path, monitor, book).fit(Later(), data(3))
    names = ["backbone.0.weight", "backbone.0.bias", "backbone.2.weight", "backbone.2.bias", "head.weight", "head.bias"]
    for step, rows in book.rows.items():
        there = [name for name in names if f"update_greatest/{name}" in rows]
        assert there == (names if step else names[:4])
        for name in there:  # the learning rate is 0.1
            assert rows[f"update_greatest/{name}"] == pytest.approx(0.1 * rows[f"grad_greatest/{name}"], rel=1e-4), name
