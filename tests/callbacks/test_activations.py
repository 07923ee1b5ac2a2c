"""`ActivationTransforms`: what flows forward is changed, and gradients flow back as autograd gives them. Numbers by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import (
    ActivationTransforms,
    Apply,
    GradientTransforms,
    InPlaceError,
    NoMatchError,
    RuleError,
    StatsMonitor,
    TransformError,
    UnsupportedError,
    Watch,
    assert_no_hooks,
    read_run,
)
from lightning_hooks.transforms import (
    AddNoise,
    ClipByGlobalNorm,
    ClipByValue,
    Context,
    Dropout,
    Freeze,
    Function,
    Scale,
    SkipStep,
    Transform,
    Zero,
)
from tests.callbacks._tiny import Keeper, Line, Skip, loader, make
from tests.callbacks.models import Net, ValNet, data, trainer_of
from tests.conformance._tools import run_ranks
from tests.versions import reading


def changing(transform: Any, modules: str = "layer", **options: Any) -> ActivationTransforms:
    return ActivationTransforms([Apply(transform, modules=modules, **options)])


# -- numbers ---------------------------------------------------------------------------------------------------------------


def moves(root: Path, *callbacks: Callback, x: list[float] | None = None) -> tuple[list[list[float]], list[float]]:
    """The gradients of `first` and `second` of a `Skip` at x = (1, 10), where h = x.

    Without a change h gets the gradient (2, 4) + (1, 1) = (3, 5), so the rows of `first` get (3, 30) and (5, 50), and
    `second` gets h.
    """
    model = Skip()
    make(root, *callbacks).fit(model, loader(x or [1.0, 10.0]))
    assert_no_hooks(model)
    first = (torch.eye(2) - model.first.weight.detach()).tolist()
    second = (torch.tensor([[2.0, 4.0]]) - model.second.weight.detach()).tolist()
    return first, second[0]


def seven(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, 7.0)


@pytest.mark.parametrize(
    ("transform", "first", "second"),
    [
        (Scale(3.0), [[9.0, 90.0], [15.0, 150.0]], [3.0, 30.0]),
        (Scale(0.0), [[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
        # 10 becomes 5, and what is cut off gets no gradient
        (ClipByValue(max=5.0), [[3.0, 30.0], [0.0, 0.0]], [1.0, 5.0]),
        (Zero(index=1, dim=1), [[3.0, 30.0], [0.0, 0.0]], [1.0, 0.0]),
        (Zero(index=[-2], dim=-1), [[0.0, 0.0], [5.0, 50.0]], [0.0, 10.0]),
        (Zero(), [[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
        # h²: the gradient is 2·h times (3, 5)
        (Function("torch.square"), [[6.0, 60.0], [100.0, 1000.0]], [1.0, 100.0]),
        # a replacement that does not come from h: nothing flows back to it
        (Function(seven), [[0.0, 0.0], [0.0, 0.0]], [7.0, 7.0]),
        # in order: 10·0.5 = 5, then at most 4
        ([Scale(0.5), ClipByValue(max=4.0)], [[1.5, 15.0], [0.0, 0.0]], [0.5, 4.0]),
    ],
)
def test_the_output_is_changed_and_gradients_flow_through_the_change(
    tmp_path: Path, transform: Any, first: list[list[float]], second: list[float]
) -> None:
    assert moves(tmp_path, changing(transform, "first")) == (first, second)


def test_without_a_change_the_numbers_are_those_above(tmp_path: Path) -> None:
    assert moves(tmp_path) == ([[3.0, 30.0], [5.0, 50.0]], [1.0, 10.0])


def test_the_input_is_changed_for_this_module_alone(tmp_path: Path) -> None:
    """`second` is given 3·h and sends 3·(2, 4) back; the other reader of h keeps h, and sends (1, 1)."""
    assert moves(tmp_path, changing(Scale(3.0), "second", tensor="input")) == ([[7.0, 70.0], [13.0, 130.0]], [3.0, 30.0])


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x, {"more": x * 2}


class Reads(Line):
    """The layer's output goes through a module that returns a nest: y and 2·y; the loss is the sum of both means."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        one, more = self.pair(self.layer(batch))
        return one.mean() + more["more"].mean()


@pytest.mark.parametrize(
    ("tensor", "moved"),
    [
        ("output", 30.0),  # 10·(1 + 2)
        ("output[0]", 12.0),  # 10·1 + 2
        ("output[1].more", 21.0),  # 1 + 10·2
        ("input[0]", 30.0),
    ],
)
def test_a_part_of_a_nest_is_chosen_by_its_path(tmp_path: Path, tensor: str, moved: float) -> None:
    model = Reads()
    make(tmp_path, changing(Scale(10.0), "pair", tensor=tensor)).fit(model, loader([1.0, 0.0]))
    assert model.w == [-moved, 0.0]


def test_a_part_that_there_is_not_is_named(tmp_path: Path) -> None:
    model = Reads()
    with pytest.warns(UserWarning, match=r"'output\[2\]' was not found at pair, which has a tuple of 2: Tensor, dict"):
        make(tmp_path, changing(Scale(10.0), "pair", tensor="output[2]")).fit(model, loader([1.0, 0.0]))
    assert model.w == [-3.0, 0.0]


def test_noise_changes_the_activation_and_its_gradient_is_one(tmp_path: Path) -> None:
    monitor = StatsMonitor([Watch(modules="first", tensors=["output", "output_grad"], stats=["std", "mean"])])
    torch.manual_seed(1)
    first, second = moves(tmp_path, changing(AddNoise(0.5), "first"), monitor, x=[0.0, 0.0])
    assert first == [[0.0, 0.0], [0.0, 0.0]]  # x is 0
    assert all(abs(value) > 1e-3 for value in second)  # the noise itself, but for the rounding of 2 - (2 - noise)
    assert monitor.latest["output_mean/first"] == pytest.approx(sum(second) / 2, abs=1e-6)
    assert monitor.latest["output_grad_mean/first"] == 4.0  # (3, 5)


def test_dropout_drops_the_same_elements_forward_and_backward(tmp_path: Path) -> None:
    first, second = moves(tmp_path, changing(Dropout(0.5), "first"))
    for row, kept, factor in zip(first, second, (3.0, 5.0), strict=True):
        assert row == ([0.0, 0.0] if kept == 0 else [2 * factor, 20 * factor])


# -- order -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_monitor_sees_what_the_callbacks_before_it_made(tmp_path: Path, place: str) -> None:
    monitor = StatsMonitor([Watch(modules="first", tensors=["output", "output_grad"], stats=["max"])])
    change = changing(Scale(3.0), "first")
    moves(tmp_path, *((monitor, change) if place == "before" else (change, monitor)))
    assert monitor.latest["output_max/first"] == (10.0 if place == "before" else 30.0)


def test_activations_and_gradients_are_changed_side_by_side(tmp_path: Path) -> None:
    """The gradient hook is on what `first` returned in the end: (3, 5) doubled, then through the factor 3."""
    gradient = GradientTransforms([Apply(Scale(2.0), modules="first", tensor="output_grad")])
    first, second = moves(tmp_path, changing(Scale(3.0), "first"), gradient)
    assert (first, second) == ([[18.0, 180.0], [30.0, 300.0]], [3.0, 30.0])


# -- stages ----------------------------------------------------------------------------------------------------------------


class Seen(Line):
    """Notes what the layer returned in each stage; w stays at (1, 1)."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.ones_(self.layer.weight)
        self.seen: list[tuple[str, float]] = []

    def see(self, stage: str, batch: Tensor) -> Tensor:
        y: Tensor = self.layer(batch)
        self.seen.append((stage if not self.trainer.sanity_checking else "sanity", y.mean().item()))
        return y

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return 0 * self.see("train", batch).mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.see("validate", batch)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.see("test", batch)

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.see("predict", batch)


@pytest.mark.parametrize(
    ("stages", "changed"),
    [(None, {"train"}), (["train", "validate"], {"train", "validate"}), ("predict", {"predict"}), (["test"], {"test"})],
)
def test_a_rule_acts_in_its_stages_and_in_training_where_it_names_none(tmp_path: Path, stages: Any, changed: set[str]) -> None:
    model = Seen()
    trainer = make(tmp_path, changing(Scale(10.0), stages=stages), num_sanity_val_steps=1)
    one = loader([1.0, 1.0])
    trainer.fit(model, one, one)
    trainer.validate(model, one, verbose=False)
    trainer.test(model, one, verbose=False)
    trainer.predict(model, one)
    assert_no_hooks(model)
    expected = ["sanity", "train", "validate", "validate", "test", "predict"]
    assert model.seen == [(stage, 20.0 if stage in changed else 2.0) for stage in expected]


def test_rules_of_one_callback_have_their_own_stages(tmp_path: Path) -> None:
    model = Seen()
    rules = [Apply(Scale(10.0), modules="layer"), Apply(Scale(0.5), modules="layer", stages=["train", "validate"])]
    make(tmp_path, ActivationTransforms(rules)).fit(model, loader([1.0, 1.0]), loader([1.0, 1.0]))
    assert [value for stage, value in model.seen if stage != "sanity"] == [10.0, 1.0]


def test_a_rule_for_another_stage_leaves_training_bit_identical(tmp_path: Path) -> None:
    def weights(*callbacks: Callback) -> list[Tensor]:
        torch.manual_seed(0)
        model = Net()
        trainer_of(tmp_path, *callbacks).fit(model, data())
        return [p.detach().clone() for p in model.parameters()]

    changed = weights(changing(AddNoise(1.0), "body.*", stages=["validate", "test"]))
    assert all(torch.equal(one, other) for one, other in zip(weights(), changed, strict=True))


def test_random_rules_leave_the_global_random_numbers_alone(tmp_path: Path) -> None:
    """Dropout of the model itself draws what it would have drawn."""
    states = []
    for callbacks in ([], [changing(AddNoise(0.1), "body.0", stages=["train", "validate"])]):
        torch.manual_seed(0)
        trainer_of(tmp_path, *callbacks).fit(ValNet(), data(), data(1))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


# -- reports ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitored", [False, True])
def test_transforms_report_norms_cosine_and_share(tmp_path: Path, monitored: bool) -> None:
    """h = (1, 10); channel 1 becomes zero, then all is doubled."""
    logger = TensorBoardLogger(tmp_path, name="run", version="")
    monitor = [StatsMonitor([Watch(modules="first", tensors="output", stats="max")])] if monitored else []
    make(tmp_path, changing([Zero(index=1), Scale(2.0)], "first"), *monitor, logger=logger).fit(Skip(), loader([1.0, 10.0]))
    scalars = {tag: values.tolist() for tag, (_, values) in read_run(tmp_path / "run").scalars.items()}
    norm = pytest.approx(101**0.5, rel=1e-6)
    assert scalars["watch/transform_norm_before/0_Zero"] == [norm] and scalars["watch/transform_norm_after/0_Zero"] == [1.0]
    assert scalars["watch/transform_cosine/0_Zero"] == [pytest.approx(101**-0.5, rel=1e-6)]
    assert scalars["watch/transform_norm_before/1_Scale"] == [1.0] and scalars["watch/transform_norm_after/1_Scale"] == [2.0]
    assert scalars["watch/transform_acted/1_Scale"] == [1.0]


def test_links_are_numbered_over_all_callbacks_and_report_every_step(tmp_path: Path) -> None:
    keeper = Keeper()
    callbacks = [changing(ClipByValue(max=5.0), "first"), GradientTransforms([Apply(Scale(0.5), params="second.*")])]
    make(tmp_path, *callbacks, logger=keeper).fit(Skip(), loader([10.0, 0.0], [1.0, 0.0]))
    assert sorted(tag for tag in keeper.lines[0] if "acted" in tag) == [
        "transform_acted/0_ClipByValue",
        "transform_acted/1_Scale",
    ]
    assert [line["transform_norm_after/0_ClipByValue"] for line in keeper.lines.values()][0] == 5.0
    assert keeper.lines[0]["transform_acted/0_ClipByValue"] == 1.0


def test_validation_does_not_report(tmp_path: Path) -> None:
    keeper = Keeper()
    one = loader([1.0, 1.0])
    make(tmp_path, changing(Scale(10.0), stages=["validate"]), logger=keeper).fit(Seen(), one, one)
    assert not [tag for line in keeper.lines.values() for tag in line if tag.startswith("transform")]


def test_a_validation_within_an_accumulated_step_changes_neither_its_reports_nor_its_random_numbers(tmp_path: Path) -> None:
    def fit(**options: Any) -> tuple[list[Tensor], dict[int, dict[str, float]]]:
        torch.manual_seed(0)
        keeper, model = Keeper(), ValNet(dropout=0.0)
        callback = changing([AddNoise(1.0), Scale(2.0)], "body.0", stages=["train", "validate"])
        trainer = trainer_of(tmp_path, callback, logger=keeper, accumulate_grad_batches=3, **options)
        trainer.fit(model, data(), data(2))
        reports = {step: {tag: line[tag] for tag in line if tag.startswith("transform")} for step, line in keeper.lines.items()}
        return [p.detach().clone() for p in model.parameters()], reports

    plain, reports = fit(limit_val_batches=0)
    weights, others = fit(val_check_interval=1)
    assert all(torch.equal(one, other) for one, other in zip(weights, plain, strict=True))
    assert reports == others and all(len(line) == 8 for line in reports.values())


# -- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"transform": Scale(2.0), "params": "*"},
            r"^apply\[0\].params: a parameter has no activation; name modules, or use GradientTransforms$",
        ),
        (
            {"transform": Scale(2.0), "modules": "*", "tensor": "output_grad"},
            r"^apply\[0\].tensor: 'output_grad' is a gradient, and ActivationTransforms changes activations "
            r"\('output', 'input'\); use GradientTransforms$",
        ),
        (
            {"transform": Scale(2.0), "modules": "*", "tensor": "input_grad"},
            r"^apply\[0\].tensor: 'input_grad' is a gradient",
        ),
        ({"transform": Scale(2.0), "modules": "*", "tensor": "outptu"}, r"apply\[0\].tensor must be one of .*'output'"),
        ({"transform": Scale(2.0), "modules": "*", "stages": ["trian"]}, r"apply\[0\].stages\[0\] must be one of train"),
    ],
)
def test_rules_for_something_else_are_refused_when_they_are_written(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        ActivationTransforms([rule])


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(RuleError, match="apply is an empty list; give at least one rule"):
        ActivationTransforms([])


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Freeze(until_step=3), "apply[0]: Freeze"),
        (SkipStep(), "apply[0]: SkipStep acts on the optimizer's step as a whole; use it at when='step' on params"),
        (
            ClipByGlobalNorm(1.0),
            "apply[0]: ClipByGlobalNorm needs all gradients at once, but in forward they come one at a time",
        ),
    ],
)
def test_transforms_without_a_meaning_on_activations_are_refused_before_training(
    tmp_path: Path, transform: Transform, message: str
) -> None:
    model = Line()
    callback = changing(transform)
    for run in (lambda: callback.match(model), lambda: make(tmp_path, callback).fit(model, loader([1.0, 0.0]))):
        with pytest.raises(RuleError) as raised:
            run()
        assert str(raised.value).startswith(message)
    assert model.starts == 0
    assert_no_hooks(model)


def test_gradient_transforms_refuse_a_rule_on_activations() -> None:
    with pytest.raises(RuleError, match=r"apply\[0\].*ActivationTransforms"):
        GradientTransforms([Apply(Scale(2.0), modules="layer", tensor="output")])


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match=r"apply\[0\].modules: 'layr' matches nothing; .*'layer'"):
        make(tmp_path, changing(Scale(2.0), "layr")).fit(Line(), loader([1.0, 0.0]))


@dataclass(frozen=True)
class InPlace(Transform):
    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        return [tensor.detach().mul_(2) for tensor in tensors]


@dataclass(frozen=True)
class Narrower(Transform):
    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        return [tensor[:, :0] for tensor in tensors]


@dataclass(frozen=True)
class Stops(Transform):
    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        raise StopIteration("no more")


@pytest.mark.parametrize(
    ("transform", "kind", "message"),
    [
        (InPlace(), InPlaceError, r"apply\[0\].transform \(InPlace\) changed the output of layer in place"),
        (
            Narrower(),
            TransformError,
            r"apply\[0\].transform \(Narrower\) returned for the output of layer a tensor of shape \(1, 0\), not \(1, 1\)$",
        ),
        (Stops(), TransformError, r"apply\[0\].transform \(Stops\(\)\) raised StopIteration: no more"),
        (Zero(index=3), TransformError, "Zero.index 3 is out of range for 'layer': its shape is"),
    ],
)
def test_what_a_transform_may_not_do(tmp_path: Path, transform: Transform, kind: type[Exception], message: str) -> None:
    model = Line()
    with pytest.raises(kind, match=message):
        make(tmp_path, changing(transform)).fit(model, loader([1.0, 0.0]))
    assert_no_hooks(model)


# -- activation checkpointing ----------------------------------------------------------------------------------------------


class Block(LightningModule):
    """Two layers, computed again in backward where `again`."""

    def __init__(self, again: bool, times: int = 1, reentrant: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
        self.again, self.times, self.reentrant = again, times, reentrant
        self.grads: list[list[Tensor]] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        x = batch.clone().requires_grad_()
        for _ in range(self.times):
            x = checkpoint(self.body, x, use_reentrant=self.reentrant) if self.again else self.body(x)
        return x.square().mean()

    def on_after_backward(self) -> None:
        self.grads.append([p.grad.clone() for p in self.parameters() if p.grad is not None])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


BATCHES = [[1.0, -2.0, 0.5, 3.0], [0.1, 0.2, -0.3, 0.4], [2.0, 2.0, 2.0, 2.0]]


@dataclass(frozen=True)
class Drift(Transform):
    """Adds the mean of all that it saw so far, itself included."""

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        out = []
        for name, tensor in zip(context.names, tensors, strict=True):
            count, mean = context.state.get(name, (0, torch.zeros(())))
            mean = (mean * count + tensor.detach().mean()) / (count + 1)
            context.state[name] = (count + 1, mean)
            out.append(tensor + mean)
        return out


def gradients(root: Path, transform: Any, again: bool, **options: Any) -> list[list[Tensor]]:
    torch.manual_seed(0)
    model = Block(again, **options)
    make(root, changing(transform, ["body.0", "body.1"])).fit(model, loader(*BATCHES))
    assert_no_hooks(model)
    return model.grads


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "transform", [AddNoise(0.5), Dropout(0.5), Scale(0.5), Drift(), [AddNoise(0.1), Drift(), Dropout(0.2)]], ids=str
)
def test_under_activation_checkpointing_the_gradients_are_those_without(
    tmp_path: Path, transform: Any, reentrant: bool
) -> None:
    plain, again = (gradients(tmp_path, transform, again, reentrant=reentrant) for again in (False, True))
    assert len(plain) == len(BATCHES)
    for one, other in zip(plain, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("transform", "what"), [(AddNoise(0.5), "is random"), (Drift(), "keeps state")])
def test_where_it_cannot_be_known_which_call_is_computed_again_it_is_refused(
    tmp_path: Path, transform: Transform, what: str
) -> None:
    with pytest.raises(UnsupportedError) as raised:
        gradients(tmp_path, transform, True, times=2)
    assert str(raised.value) == (
        f"apply[0].transform: {type(transform).__name__} {what}, and body.0 was called 2 times under activation checkpointing: "
        "which call is computed again cannot be known. Exclude the module from the checkpoint, or use a transform that is "
        "neither random nor keeps state"
    )


def test_several_calls_are_fine_where_nothing_is_drawn_or_kept(tmp_path: Path) -> None:
    plain, again = (gradients(tmp_path, Scale(0.5), again, times=2) for again in (False, True))
    assert all(torch.equal(a, b) for one, other in zip(plain, again, strict=True) for a, b in zip(one, other, strict=True))


# -- checkpoints of the run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [AddNoise(0.5, decay=0.5), Dropout(0.3), Drift(), [Drift(), AddNoise(0.1)]], ids=str)
@pytest.mark.parametrize("validates", [False, True])
def test_a_resumed_run_is_bit_identical_to_the_run_that_never_stopped(tmp_path: Path, transform: Any, validates: bool) -> None:
    class Model(Seen):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.see("train", batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    def run(epochs: int, seed: int, resume: Path | None = None) -> Model:
        torch.manual_seed(seed)
        model = Model()
        saver = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_epochs=1)
        callback = changing(transform, stages=["train", "validate"] if validates else None)
        trainer = make(tmp_path, callback, saver, max_epochs=epochs, enable_checkpointing=True, num_sanity_val_steps=0)
        batches = loader([3.0, 4.0], [1.0, -2.0], [0.5, 0.5])
        trainer.fit(model, batches, batches, ckpt_path=resume, **reading(False if resume else None))
        return model

    whole = run(3, 0)
    run(1, 0)
    resumed = run(3, 123, tmp_path / "step=3.ckpt")
    assert resumed.w == whole.w != [1.0, 1.0]
    assert resumed.seen == whole.seen[-len(resumed.seen) :]


def fit(root: Path, callback: Callback, *batches: list[float]) -> Trainer:
    trainer = make(root, callback, num_sanity_val_steps=0)
    trainer.fit(Seen(), loader(*batches), loader([1.0, 2.0]))
    return trainer


def drifted(trainer: Trainer) -> int:
    """How many tensors `Drift` has seen, by a checkpoint that is saved now."""
    file = Path(trainer.default_root_dir) / "now.ckpt"
    trainer.save_checkpoint(file)
    (state,) = torch.load(file)["lightning_hooks.ActivationTransforms"].values()
    count: int = state["links"][0]["state"]["layer"][0]
    return count


@pytest.mark.parametrize("run", ["validate", "test"])
def test_the_state_that_another_run_reads_is_not_that_of_the_next_fit(tmp_path: Path, run: str) -> None:
    callback = changing(Drift())
    assert drifted(fit(tmp_path, callback, [1.0, 2.0], [3.0, 4.0])) == 2
    other = make(tmp_path, callback)
    getattr(other, run)(Seen(), loader([1.0, 2.0]), ckpt_path=tmp_path / "now.ckpt", verbose=False)
    assert drifted(fit(tmp_path, callback, [1.0, 2.0])) == 1


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("run", ["validate", "test"])
def test_a_checkpoint_after_another_run_has_the_state_of_the_fit(tmp_path: Path, run: str, reads: bool) -> None:
    callback = changing(Drift(), stages=["train", "validate"])
    assert drifted(fit(tmp_path, callback, [1.0, 2.0])) == 2
    trainer = fit(tmp_path, callback, [1.0, 2.0], [3.0, 4.0], [5.0, 6.0])
    path = tmp_path / "now.ckpt" if reads else None
    getattr(trainer, run)(Seen(), loader([1.0, 2.0]), ckpt_path=path, verbose=False)
    assert drifted(trainer) == 4


def test_two_processes_draw_their_own_noise_and_stay_together(tmp_path: Path) -> None:
    """The rows are (i, 0): of step 0 rank 0 has 0 and 2, rank 1 has 1 and 3; of step 1 they have 4, 6 and 5, 7."""
    ranks = [rank["draws_noise"] for rank in run_ranks("tests.callbacks.two_ranks", ["draws_noise"], tmp_path)]
    assert ranks[0]["drawn"] != ranks[1]["drawn"]
    # The mean of the rows is 1.5, then 5.5; the hook doubles each gradient.
    assert [rank["w"] for rank in ranks] == [[-14.0, 0.0]] * 2


# -- match -----------------------------------------------------------------------------------------------------------------


def test_match_shows_what_is_changed() -> None:
    callback = changing(Scale(0.5), "body.*", tensor="input", stages=["train", "validate"])
    report = callback.match(Net())
    assert report.names == ["body.0", "body.1", "body.2", "body.3"]
    assert "input" in str(report) and "Scale(factor=0.5)" in str(report)


def test_repr_and_mappings() -> None:
    callback = ActivationTransforms([{"transform": {"class_path": "Scale", "init_args": {"factor": 0.5}}, "modules": "layer"}])
    assert repr(callback) == "ActivationTransforms(apply=[Apply(transform=(Scale(factor=0.5),), modules='layer')])"
