"""`GradientTransforms`: what each stage acts on, in which order, under which trainer; numbers by hand."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_hooks import (
    Apply,
    GradientTransforms,
    InPlaceError,
    NoMatchError,
    RuleError,
    StatsMonitor,
    StepConsumer,
    StepView,
    Transform,
    TransformError,
    UnsupportedError,
    Watch,
    assert_no_hooks,
    read_run,
)
from lightning_hooks.rules.prefix import name_of
from lightning_hooks.transforms import (
    AddNoise,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    Context,
    Function,
    Scale,
    Zero,
    ZeroNonFinite,
)
from tests.callbacks._tiny import Keeper, Line, Skip, Spy, Two, loader, make, scale_of, scaled
from tests.versions import reading

W = "layer.weight"


def fit(root: Path, model: LightningModule, callbacks: Any, *batches: Any, **options: Any) -> Any:
    trainer = make(root, *callbacks, **options)
    trainer.fit(model, loader(*batches))
    assert_no_hooks(model)
    return trainer


def rule(transform: Any, **where: Any) -> GradientTransforms:
    return GradientTransforms([Apply(transform, **(where or {"params": "*"}))])


# -- what the stages act on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amp", [False, True])
def test_step_acts_on_accumulated_unscaled_gradients_before_lightnings_clipping(tmp_path: Path, amp: bool) -> None:
    model, spy = Line(), Spy()
    options = scaled() if amp else {}
    fit(
        tmp_path,
        model,
        [rule([spy, ClipByValue(max=2.0)])],
        [6.0, 0.0],
        [2.0, -2.0],
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        **options,
    )
    # (6, 0)/2 + (2, -2)/2 = (4, -1); at most 2: (2, -1); then Lightning's clip to norm 1.
    assert spy.seen == [(0, W, [4.0, -1.0])]
    assert spy.dtypes == [torch.float32]
    root5 = math.sqrt(5.0)
    assert model.w == pytest.approx([-2.0 / root5, 1.0 / root5], rel=1e-5)


def test_backward_sees_each_micro_batch(tmp_path: Path) -> None:
    model, spy = Line(), Spy()
    fit(
        tmp_path,
        model,
        [rule([spy, ClipByValue(max=2.0)], params="*", when="backward")],
        [6.0, 0.0],
        [2.0, -2.0],
        accumulate_grad_batches=2,
    )
    # Lightning divides the loss by 2; each half is clipped on its own: (2, 0) + (1, -1).
    assert spy.values(W) == [[3.0, 0.0], [1.0, -1.0]]
    assert model.w == [-3.0, 1.0]


def test_the_short_last_window_is_a_step_too(tmp_path: Path) -> None:
    model, spy = Line(), Spy()
    fit(tmp_path, model, [rule(spy)], [2.0, 0.0], [4.0, 0.0], [8.0, 0.0], accumulate_grad_batches=2)
    # Lightning divides by the full window all the same.
    assert spy.seen == [(0, W, [3.0, 0.0]), (1, W, [4.0, 0.0])]


def test_output_grad_of_a_module(tmp_path: Path) -> None:
    model, spy = Line(), Spy()
    fit(tmp_path, model, [rule([spy, Scale(0.5)], modules="layer")], [[1.0, 3.0], [3.0, 5.0]])
    assert spy.values("layer") == [[0.5, 0.5]]  # of a mean over two rows
    assert model.w == [-1.0, -2.0]  # half of the mean row (2, 4)


@pytest.mark.parametrize("seen_too", [False, True])
def test_input_grad_is_the_modules_own_contribution(tmp_path: Path, seen_too: bool) -> None:
    model, monitor = Skip(), StatsMonitor([Watch(modules="*", tensors=["input_grad", "output_grad"], stats=["norm"])])
    change = rule(Zero(), modules="second", tensor="input_grad")
    fit(tmp_path, model, [change, monitor] if seen_too else [change], [1.0, 10.0])
    # second sends (2, 4) to h, the skip sends (1, 1); only the first is taken away.
    assert (torch.eye(2) - model.first.weight).tolist() == [[1.0, 10.0], [1.0, 10.0]]
    assert (torch.tensor([[2.0, 4.0]]) - model.second.weight).tolist() == [[1.0, 10.0]]
    if seen_too:
        assert monitor.latest["input_grad_norm/second"] == 0.0
        assert monitor.latest["output_grad_norm/first"] == pytest.approx(math.sqrt(2))


def test_a_module_rule_with_params_left_alone(tmp_path: Path) -> None:
    model = Skip()
    fit(tmp_path, model, [rule(Scale(10.0), modules="first", tensor="output_grad")], [1.0, 0.0])
    assert (torch.eye(2) - model.first.weight).tolist() == [[30.0, 0.0], [50.0, 0.0]]  # 10 * ((2, 4) + (1, 1))
    assert (torch.tensor([[2.0, 4.0]]) - model.second.weight).tolist() == [[1.0, 0.0]]


# -- order -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["step", "backward"])
@pytest.mark.parametrize(
    ("chain", "expected"), [([Scale(2.0), ClipByValue(max=3.0)], 3.0), ([ClipByValue(max=3.0), Scale(2.0)], 6.0)]
)
@pytest.mark.parametrize("one_rule", [True, False])
def test_transforms_run_in_the_order_written(
    tmp_path: Path, stage: str, chain: list[Any], expected: float, one_rule: bool
) -> None:
    model = Line()
    rules = [Apply(chain, params="*", when=stage)] if one_rule else [Apply(t, params="*", when=stage) for t in chain]
    fit(tmp_path, model, [GradientTransforms(rules)], [4.0, 0.0])
    assert model.w == [-expected, 0.0]


def test_callbacks_see_what_the_ones_before_them_left(tmp_path: Path) -> None:
    model = Skip()
    watch = [
        Watch(params="first.weight", tensors=["grad", "final_grad"], stats=["norm"]),
        Watch(modules="first", tensors=["output_grad"], stats=["norm"]),
    ]
    monitors = [StatsMonitor(watch, prefix=f"{name}/") for name in "abc"]

    def half() -> GradientTransforms:
        return GradientTransforms(
            [Apply(Scale(0.5), params="first.weight"), Apply(Scale(0.5), modules="first", tensor="output_grad")]
        )

    second = GradientTransforms([Apply(Scale(0.5), modules="first"), Apply(Scale(0.5), params="first.*")])
    fit(tmp_path, model, [monitors[0], half(), monitors[1], second, monitors[2]], [1.0, 0.0])
    flow = math.sqrt(9.0 + 25.0)
    for monitor, flow_factor, step_factor in zip(monitors, (1.0, 0.5, 0.25), (1.0, 0.5, 0.25), strict=True):
        latest = monitor.latest
        assert latest["output_grad_norm/first"] == pytest.approx(flow * flow_factor)
        # Two halvings on the way back have happened before any `step` rule.
        assert latest["grad_norm/first.weight"] == pytest.approx(flow * 0.25 * step_factor)
        assert latest["final_grad_norm/first.weight"] == pytest.approx(flow / 16)
    assert (torch.eye(2) - model.first.weight)[:, 0].tolist() == [3.0 / 16, 5.0 / 16]


def test_final_grad_comes_after_transforms_and_clipping(tmp_path: Path) -> None:
    model = Line()
    monitor = StatsMonitor([Watch(params="*", tensors=["grad", "final_grad", "update"], stats=["norm"])])
    fit(tmp_path, model, [monitor, rule(Scale(0.5))], [6.0, 8.0], gradient_clip_val=2.0)
    assert monitor.latest[f"grad_norm/{W}"] == pytest.approx(10.0)
    assert monitor.latest[f"final_grad_norm/{W}"] == pytest.approx(2.0, rel=1e-5)
    assert monitor.latest[f"update_norm/{W}"] == pytest.approx(2.0, rel=1e-5)


# -- several optimizers ----------------------------------------------------------------------------------------------------


def test_each_optimizer_steps_with_its_own_gradients(tmp_path: Path) -> None:
    model, spy = Two(), Spy()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    fit(tmp_path, model, [rule([spy, ClipByGlobalNorm(1.0), Scale(2.0)])], [3.0, 4.0], [0.3, 0.4], [6.0, 8.0])
    assert [(step, name) for step, name, _ in spy.seen] == [
        (0, "a.weight"),
        (0, "b.weight"),
        (1, "a.weight"),
        (2, "a.weight"),
        (2, "b.weight"),
    ]
    moved = {name: (start[name] - p.detach()).flatten().tolist() for name, p in model.named_parameters()}
    # The global norm is that of one optimizer's gradients: 5 -> 1, 0.5 stays, 10 -> 1; all doubled.
    assert moved["a.weight"] == pytest.approx([1.2 + 0.6 + 1.2, 1.6 + 0.8 + 1.6], rel=1e-5)
    assert moved["b.weight"] == pytest.approx([2.4, 3.2], rel=1e-5)


def test_backward_rules_in_manual_optimization(tmp_path: Path) -> None:
    model, spy = Two(), Spy()
    start = model.b.weight.detach().clone()
    fit(tmp_path, model, [rule([spy, Zero()], params="b.*", when="backward")], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0])
    assert spy.values("b.weight") == [[1.0, 0.0], [4.0, 0.0]]
    assert torch.equal(model.b.weight, start)


# -- a loss scaler ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [{"params": "*"}, {"params": "*", "when": "backward"}, {"modules": "layer"}])
def test_rules_see_unscaled_float32_values_under_a_scaler(tmp_path: Path, where: dict[str, Any]) -> None:
    model, spy = Line(), Spy()
    trainer = fit(tmp_path, model, [rule([spy, ClipByValue(max=2.0)], **where)], [4.0, 1.0], **scaled())
    assert scale_of(trainer) == 1024.0
    assert spy.dtypes == [torch.float32]
    if "modules" in where:
        assert spy.values("layer") == [[1.0]]
        assert model.w == [-4.0, -1.0]
    else:
        assert spy.values(W) == [[4.0, 1.0]]
        assert model.w == [-2.0, -1.0]


@pytest.mark.parametrize("transform", [Zero(), ClipByValue(min=-1.0, max=1.0), Scale(0.0)], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("where", [{"params": "*", "when": "backward"}, {"modules": "layer"}])
def test_an_overflow_stays_visible_to_the_scaler(tmp_path: Path, transform: Any, where: dict[str, Any]) -> None:
    model = Line(factor=1e3)  # 1024 * 1e3 is no float16
    trainer = fit(tmp_path, model, [rule(transform, **where)], [1.0, 0.0], **scaled())
    assert scale_of(trainer) == 512.0
    assert model.w == [0.0, 0.0]  # the step was skipped


class Rows(Line):
    """The gradient of the rows that a batch names is `factor`, and sparse."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor)
        self.layer = torch.nn.Embedding(3, 1, sparse=True)  # type: ignore[assignment]
        torch.nn.init.zeros_(self.layer.weight)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.factor * self.layer(batch.long()).sum()


@pytest.mark.parametrize("transform", [Zero(), ClipByValue(max=1.0)], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize(("factor", "overflows"), [(3.0, False), (1e36, True)])  # 1024 * 1e36 is no float32
def test_an_overflow_of_a_sparse_gradient_too(tmp_path: Path, transform: Any, factor: float, overflows: bool) -> None:
    model = Rows(factor)
    trainer = fit(tmp_path, model, [rule(transform, params="*", when="backward")], [2.0, 0.0], **scaled())
    assert scale_of(trainer) == (512.0 if overflows else 1024.0)
    assert model.w == ([-1.0, 0.0, -1.0] if isinstance(transform, ClipByValue) and not overflows else [0.0, 0.0, 0.0])


@pytest.mark.parametrize("where", [{"params": "*", "when": "backward"}, {"modules": "layer"}])
def test_repairing_in_backward_is_refused_under_a_scaler(tmp_path: Path, where: dict[str, Any]) -> None:
    model = Line()
    expected = (
        r"^apply\[0\]\.transform: ZeroNonFinite in backward would hide the overflow from the loss scaler, whose scale then "
        r"grows without end; use when='step' on params, or bf16-mixed$"
    )
    with pytest.raises(UnsupportedError, match=expected):
        fit(tmp_path, model, [rule(ZeroNonFinite(), **where)], [1.0, 0.0], **scaled())
    assert model.starts == 0
    assert_no_hooks(model)


def test_repairing_is_allowed_without_a_scaler_and_at_the_step(tmp_path: Path) -> None:
    model = Line()
    fit(tmp_path, model, [rule(ZeroNonFinite(), params="*", when="backward")], [float("inf"), 1.0])
    assert model.w == [0.0, -1.0]
    again = Line()
    trainer = fit(tmp_path, again, [rule(ZeroNonFinite())], [float("inf"), 1.0], [1.0, 1.0], **scaled())
    # The scaler has seen the overflow before the repair: that step is skipped, the next is not.
    assert scale_of(trainer) == 512.0
    assert again.w == [-1.0, -1.0]


def test_a_fused_optimizer_is_refused_at_the_step_under_a_scaler(tmp_path: Path) -> None:
    model = Line(fused=True)
    expected = r"^apply\[0\]\.transform: SGD\(fused=True\) unscales inside its own step, .* use fused=False or when='backward'$"
    with pytest.raises(UnsupportedError, match=expected):
        fit(tmp_path, model, [rule(Scale(0.5))], [4.0, 0.0], **scaled())
    assert model.starts == 0
    assert_no_hooks(model)
    fit(tmp_path, model, [rule(Scale(0.5), params="*", when="backward")], [4.0, 0.0], **scaled())
    assert model.w == [-2.0, 0.0]


def test_a_fused_optimizer_is_fine_without_a_scaler(tmp_path: Path) -> None:
    model = Line(fused=True)
    fit(tmp_path, model, [rule(Scale(0.5))], [4.0, 0.0])
    assert model.w == [-2.0, 0.0]


class Both(Line):
    """Two layers; the gradient of the second one is twice that of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.second = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(self.second.weight)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return (self.layer(batch) + 2 * self.second(batch)).mean()


class Exchange(Transform):
    def __call__(self, tensors: list[torch.Tensor], context: Context) -> list[torch.Tensor]:
        return tensors[::-1]


class Turn(Transform):
    """Returns views of other gradients than those that they replace."""

    def __call__(self, tensors: list[torch.Tensor], context: Context) -> list[torch.Tensor]:
        return [tensors[1].view(1, 2), tensors[0].view(2).view(1, 2)]


@pytest.mark.parametrize("transform", [Exchange(), Turn()], ids=lambda t: type(t).__name__)
def test_results_may_be_the_given_gradients_in_another_order(tmp_path: Path, transform: Transform) -> None:
    model = Both()
    fit(tmp_path, model, [rule(transform)], [1.0, 3.0])
    assert model.w == [-2.0, -6.0]
    assert model.second.weight.tolist() == [[-1.0, -3.0]]


class Widens(Transform):
    """Replaces the items of the list that it is given."""

    def __call__(self, tensors: list[torch.Tensor], context: Context) -> list[torch.Tensor]:
        tensors[0] = tensors[0].double()
        return tensors


@pytest.mark.parametrize("where", [{"params": "*"}, {"params": "*", "when": "backward"}, {"modules": "layer"}])
def test_results_in_the_given_list_are_checked(tmp_path: Path, where: dict[str, Any]) -> None:
    with pytest.raises(TransformError, match="a tensor of dtype torch.float64, not torch.float32"):
        fit(tmp_path, Line(), [rule(Widens(), **where)], [1.0, 3.0])


# -- reports ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitor_first", [True, False])
def test_reports_go_into_the_event_of_the_monitor(tmp_path: Path, monitor_first: bool) -> None:
    monitor = StatsMonitor([Watch(params="*", tensors=["grad"], stats=["norm"])], every_n_steps=2)
    change = rule(ClipByNorm(1.0))
    logger = TensorBoardLogger(tmp_path, name="", version="")
    fit(
        tmp_path,
        Line(),
        [monitor, change] if monitor_first else [change, monitor],
        *[[3.0, 4.0], [6.0, 8.0], [3.0, 4.0], [0.3, 0.4]],
        logger=logger,
        log_every_n_steps=1,
    )
    run = read_run(tmp_path)
    before, values = run.scalars["watch/transform_norm_before/0_ClipByNorm"]
    assert before.tolist() == [1, 3]
    assert values.tolist() == pytest.approx([10.0, 0.5])
    assert run.scalars["watch/transform_norm_after/0_ClipByNorm"][1].tolist() == pytest.approx([1.0, 0.5], rel=1e-5)
    assert run.scalars["watch/transform_acted/0_ClipByNorm"][1].tolist() == [1.0, 0.5]
    assert run.scalars["watch/transform_cosine/0_ClipByNorm"][1].tolist() == pytest.approx([1.0, 1.0])
    assert run.scalars[f"watch/grad_norm/{W}"][0].tolist() == [1, 3]


def test_reports_by_itself_at_the_log_interval(tmp_path: Path) -> None:
    keeper = Keeper()
    changes = [rule(Scale(0.5)), rule(Zero(), params="*", when="backward")]
    fit(tmp_path, Line(), changes, *[[3.0, 4.0]] * 5, logger=keeper, log_every_n_steps=2)
    ours = {step: line for step, line in keeper.lines.items() if any("transform" in tag for tag in line)}
    assert list(ours) == [1, 3]
    assert ours[1] == {
        "transform_norm_before/0_Scale": 0.0,
        "transform_norm_after/0_Scale": 0.0,
        "transform_acted/0_Scale": 0.0,
        "transform_norm_before/1_Zero": 5.0,
        "transform_norm_after/1_Zero": 0.0,
        "transform_acted/1_Zero": 1.0,
    }


@pytest.mark.parametrize("monitor_first", [True, False])
def test_reports_by_itself_after_the_monitor_has_stopped(tmp_path: Path, monitor_first: bool) -> None:
    class Fails(StepConsumer):
        def consume(self, view: StepView) -> None:
            if view.step == 1:
                raise OSError("no space left")

    keeper = Keeper()
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats="norm")], consumers=[Fails()], on_error="warn")
    callbacks = [monitor, rule(Scale(0.5))][:: 1 if monitor_first else -1]
    with pytest.warns(UserWarning, match="stopped watching after OSError: no space left"):
        fit(tmp_path, Line(), callbacks, *[[3.0, 4.0]] * 6, logger=keeper, log_every_n_steps=2)
    assert {step: line["transform_norm_after/0_Scale"] for step, line in keeper.lines.items()} == {1: 2.5, 3: 2.5, 5: 2.5}


def test_where_a_logger_has_stopped_the_monitor_the_reports_do_not_end_the_fit(tmp_path: Path) -> None:
    class Full(Keeper):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            raise OSError("no space left")

    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats="norm")], on_error="warn")
    with pytest.warns(UserWarning, match="no space left") as caught:
        trainer = fit(tmp_path, Line(), [monitor, rule(Scale(0.5))], *[[3.0, 4.0]] * 3, logger=Full())
    assert trainer.global_step == 3
    # The reports go on in the event file of the package, which has not failed.
    assert [str(warning.message) for warning in caught if "no space left" in str(warning.message)] == [
        "a StatsMonitor stopped watching after OSError: no space left; training continues",
    ]
    with pytest.raises(OSError, match="no space left"):
        fit(tmp_path, Line(), [rule(Scale(0.5))], [3.0, 4.0], logger=Full())


@pytest.mark.parametrize("monitor_first", [True, False])
def test_reports_do_not_go_on_into_the_space_that_a_monitor_has_left_on_a_full_disk(
    tmp_path: Path, monitor_first: bool
) -> None:
    class AlmostFull(Keeper):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if "run/grad_norm" in map(name_of, metrics) and step == 1:  # an event of transforms alone is smaller
                raise OSError("no space left")
            super().log_metrics(metrics, step)

    keeper = AlmostFull()
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats="norm")], on_error="warn")
    callbacks = [monitor, rule(Scale(0.5))][:: 1 if monitor_first else -1]
    with pytest.warns(UserWarning, match="no space left") as caught:
        fit(tmp_path, Line(), callbacks, *[[3.0, 4.0]] * 4, logger=keeper)
    assert [step for step, line in keeper.lines.items() if "transform_acted/0_Scale" in line] == [0]
    # The reports go on in the event file of the package, which has not failed.
    assert [str(warning.message) for warning in caught if "no space left" in str(warning.message)] == [
        "a StatsMonitor stopped watching after OSError: no space left; training continues",
    ]


def test_reports_go_on_to_the_loggers_at_which_no_monitor_has_stopped(tmp_path: Path) -> None:
    class Refuses(Keeper):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if "run/grad_norm" in map(name_of, metrics):
                raise OSError("refused")
            super().log_metrics(metrics, step)

    refuses, keeper = Refuses(), Keeper()
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats="norm")], on_error="warn", loggers="Refuses")
    with pytest.warns(UserWarning, match="a StatsMonitor stopped watching after OSError: refused"):
        fit(tmp_path, Line(), [monitor, rule(Scale(0.5))], *[[3.0, 4.0]] * 4, logger=[refuses, keeper])
    assert [step for step, line in keeper.lines.items() if "transform_acted/0_Scale" in line] == [1, 2, 3]
    assert not any("transform_acted/0_Scale" in line for line in refuses.lines.values())


def test_reports_of_an_accumulated_step_sum_over_its_micro_batches(tmp_path: Path) -> None:
    keeper = Keeper()
    change = rule(Scale(0.5), params="*", when="backward")
    fit(tmp_path, Line(), [change], [6.0, 0.0], [0.0, 8.0], logger=keeper, accumulate_grad_batches=2)
    assert keeper.lines[0]["transform_norm_before/0_Scale"] == pytest.approx(5.0)  # (3, 0) and (0, 4)
    assert keeper.lines[0]["transform_norm_after/0_Scale"] == pytest.approx(2.5)


def test_reporting_changes_no_number(tmp_path: Path) -> None:
    rules = [Apply([ClipByGlobalNorm(1.0), Function("torch.tanh"), AddNoise(0.1)], params="*")]
    weights = []
    for every in (1, 3, 1000):
        model = Line(momentum=0.9)
        torch.manual_seed(5)
        fit(tmp_path, model, [GradientTransforms(rules)], *[[3.0, 4.0]] * 6, logger=Keeper(), log_every_n_steps=every)
        weights.append(model.w)
    assert weights[0] == weights[1] == weights[2]


def test_a_callback_that_is_listed_twice_acts_once(tmp_path: Path) -> None:
    halve, keeper, model = rule(Scale(0.5)), Keeper(), Line()
    with pytest.warns(UserWarning, match="^GradientTransforms appears 2 times in the callbacks of the Trainer; it acts once$"):
        fit(tmp_path, model, [halve, StatsMonitor(), halve], [3.0, 4.0], logger=keeper)
    assert model.w == [-1.5, -2.0]
    assert [tag for tag in keeper.lines[0] if "norm_before" in tag] == ["transform_norm_before/0_Scale"]


# -- checkpoints -----------------------------------------------------------------------------------------------------------

BATCHES = [[3.0, 4.0], [1.0, -2.0], [0.5, 0.5], [2.0, 1.0]]


@pytest.mark.parametrize("stage", ["step", "backward"])
def test_a_resumed_run_draws_the_noise_of_the_run_that_never_stopped(tmp_path: Path, stage: str) -> None:
    def run(epochs: int, seed: int, resume: Path | None = None) -> tuple[Line, Any]:
        torch.manual_seed(seed)
        model = Line(momentum=0.9)
        saver = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_epochs=1)
        change = GradientTransforms([Apply(AddNoise(0.1, decay=0.5), params="*", when=stage), Apply(Scale(0.9), params="*")])
        trainer = make(tmp_path, change, saver, max_epochs=epochs, enable_checkpointing=True)
        trainer.fit(model, loader(*BATCHES), ckpt_path=resume, **reading(False if resume else None))
        return model, change

    whole, _ = run(2, seed=1)
    plain, _ = run(1, seed=1)
    assert plain.w != whole.w
    resumed, _ = run(2, seed=99, resume=tmp_path / "step=4.ckpt")
    assert resumed.w == whole.w  # to the last bit
    other, _ = run(2, seed=2)
    assert other.w != whole.w


def saved(tmp_path: Path, change: GradientTransforms) -> Path:
    trainer = fit(tmp_path, Line(), [change], *BATCHES)
    path = tmp_path / "saved.ckpt"
    trainer.save_checkpoint(path)
    return path


def test_a_checkpoint_after_the_fit_holds_the_state(tmp_path: Path) -> None:
    path = saved(tmp_path, rule(AddNoise(0.1)))
    (state,) = torch.load(path, weights_only=False)["lightning_hooks.GradientTransforms"].values()
    assert set(state["links"][0]["generators"]) == {"cpu"}


def test_the_state_loads_with_weights_only(tmp_path: Path) -> None:
    path = saved(tmp_path, rule(AddNoise(0.1)))
    assert torch.load(path, weights_only=True)["lightning_hooks.GradientTransforms"]


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (
            [AddNoise(0.2), Scale(0.5)],
            "the transforms changed since the checkpoint; what changed restarts: "
            "AddNoise(std=0.1, decay=0.0) is now AddNoise(std=0.2, decay=0.0)",
        ),
        (
            [AddNoise(0.2), Scale(0.9)],
            "the transforms changed since the checkpoint; what changed restarts: "
            "AddNoise(std=0.1, decay=0.0) is now AddNoise(std=0.2, decay=0.0); Scale(factor=0.5) is now Scale(factor=0.9)",
        ),
    ],
)
def test_changed_parameters_warn_once(tmp_path: Path, now: list[Any], message: str) -> None:
    path = saved(tmp_path, rule([AddNoise(0.1), Scale(0.5)]))
    model = Line()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = make(tmp_path, rule(now), max_epochs=2)
        trainer.fit(model, loader(*BATCHES), ckpt_path=path, **reading(False))
    ours = [str(w.message) for w in caught if "since the checkpoint" in str(w.message)]
    assert ours == [message]


def test_two_callbacks_are_told_apart(tmp_path: Path) -> None:
    keeper = Keeper()
    noisy, halved = rule(AddNoise(0.1)), rule(Scale(0.5))
    trainer = fit(tmp_path, Line(), [noisy, halved], *BATCHES, logger=keeper)
    tags = {tag for line in keeper.lines.values() for tag in line if tag.startswith("transform_norm_before")}
    assert tags == {"transform_norm_before/0_AddNoise", "transform_norm_before/1_Scale"}
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    state = torch.load(tmp_path / "two.ckpt", weights_only=False)["lightning_hooks.GradientTransforms"]
    assert [state[f"watch/{place}"]["links"][0]["transform"] for place in "01"] == [
        "AddNoise(std=0.1, decay=0.0)",
        "Scale(factor=0.5)",
    ]


# -- errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "target"),
    [({"params": "*", "when": "backward"}, W), ({"modules": "layer"}, "layer")],
)
def test_an_in_place_change_in_backward_raises(tmp_path: Path, where: dict[str, Any], target: str) -> None:
    model = Line()
    expected = (
        rf"^apply\[0\]\.transform \(Function\) changed the gradient of {target} in place\. .* return a new tensor instead$"
    )
    with pytest.raises(InPlaceError, match=expected):
        fit(tmp_path, model, [rule(Function(lambda grad: grad.mul_(2.0)), **where)], [4.0, 0.0])
    assert_no_hooks(model)
    assert model.w == [0.0, 0.0]


@pytest.mark.parametrize(
    "every",
    [1, 2, 1000],
)
def test_at_the_step_the_gradients_are_ours_to_overwrite(tmp_path: Path, every: int) -> None:
    # Whether the step is reported must make no difference.
    keeper = Keeper()
    model = Line()
    change = rule(Function(lambda grad: grad.mul_(2.0)))
    fit(tmp_path, model, [change], *[[4.0, 0.0]] * 2, log_every_n_steps=every, logger=keeper)
    assert model.w == [-16.0, 0.0]
    if every < 1000:
        assert keeper.lines[1]["transform_norm_before/0_Function"] == 4.0
        assert keeper.lines[1]["transform_norm_after/0_Function"] == 8.0


def test_a_transform_of_all_gradients_is_refused_in_backward(tmp_path: Path) -> None:
    model = Line()
    for where in ({"params": "*", "when": "backward"}, {"modules": "layer"}):
        with pytest.raises(RuleError, match=r"^apply\[0\]: ClipByGlobalNorm needs all gradients at once, .*when='step'"):
            fit(tmp_path, model, [rule(ClipByGlobalNorm(1.0), **where)], [4.0, 0.0])
    assert model.starts == 0
    assert_no_hooks(model)


def test_a_rule_that_matches_nothing_raises_before_training(tmp_path: Path) -> None:
    model = Skip()
    monitor = StatsMonitor()
    change = GradientTransforms([Apply(Scale(0.5), params="*"), Apply(Zero(), params="secnd.weight")])
    with pytest.raises(NoMatchError) as caught:
        fit(tmp_path, model, [monitor, change], [4.0, 0.0])
    message = str(caught.value)
    assert message.startswith("apply[1].params: ")
    assert "'secnd.weight'" in message and "'second.weight'" in message and "strict=False" in message
    assert model.starts == 0
    assert_no_hooks(model)


def test_not_strict_warns_and_goes_on(tmp_path: Path) -> None:
    model = Line()
    with pytest.warns(UserWarning, match="nothing"):
        fit(tmp_path, model, [rule(Zero(), params="other", strict=False)], [4.0, 0.0])
    assert model.w == [-4.0, 0.0]


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        ([], "apply is an empty list; give at least one rule"),
        ([{"params": "*"}], "apply[0].transform is missing; give a transform or a list of them"),
        ([{"transform": "Zero"}], "apply[0].modules: Apply needs exactly one of modules and params, got neither"),
        (
            [{"params": "*", "transform": "Zeros"}],
            "apply[0].transform: unknown transform 'Zeros' (did you mean 'Zero' or 'ZeroNonFinite' or ",
        ),
        (
            [
                {"params": "*", "transform": "Zero"},
                {"params": "*", "transform": [{"class_path": "ClipByNorm"}], "when": "step"},
            ],
            "apply[1].transform: ClipByNorm.__init__() missing 1 required positional argument: 'max_norm'; "
            "ClipByNorm takes max_norm, norm_type",
        ),
        (
            [{"params": "*", "transform": {"class_path": "ClipByNorm", "init_args": {"max_norm": -1.0}}}],
            "apply[0].transform: ClipByNorm.max_norm must be a finite number above 0, got -1.0",
        ),
        ([{"params": "*", "transform": "Zero", "when": "setp"}], "apply[0].when must be 'step' or 'backward', got 'setp'"),
        ([{"parms": "*", "transform": "Zero"}], "apply[0]: unknown key 'parms' (did you mean 'params'"),
        (
            [{"modules": "*", "transform": "Zero", "tensor": "output"}],
            "apply[0].tensor: 'output' is an activation, and GradientTransforms changes gradients; use ActivationTransforms",
        ),
        (
            [{"modules": "*", "transform": "Zero", "when": "step"}],
            "apply[0].when='step' goes with params; a rule on modules acts in backward (omit when)",
        ),
    ],
)
def test_what_cannot_be_meant_is_named(apply: Any, message: str) -> None:
    with pytest.raises(RuleError) as caught:
        GradientTransforms(apply)
    assert str(caught.value).startswith(message)
