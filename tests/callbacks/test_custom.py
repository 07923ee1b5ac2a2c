"""`CustomHooks` in fits and in the other runs of a Trainer: when they run, in which order, and that none is left."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import (
    ActivationTransforms,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    HookError,
    NoMatchError,
    RuleError,
    StatsMonitor,
    Watch,
    assert_no_hooks,
    load_capture,
)
from lightning_hooks.cli.main import main
from lightning_hooks.rules import MODULE_KINDS, OPTIMIZER_KINDS, PARAM_KINDS
from lightning_hooks.transforms import Scale
from tests import forked
from tests.callbacks import hook_calls
from tests.callbacks._tiny import Line, Two, loader, make
from tests.callbacks.models import Gan, Net, ValNet, adamw, assert_clean, data, nesterov, trainer_of
from tests.cli.test_cli import BASE, MODEL

W = "layer.weight"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    hook_calls.seen.clear()
    yield
    hook_calls.seen.clear()


class Every(Line):
    """A `Line` with all the other steps; batches say which they are."""

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.layer(batch)

    test_step = validation_step

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        y: Tensor = self.layer(batch)
        return y


def noting(seen: list[Any], **options: Any) -> Hook:
    """A hook that notes the first number of the input of `layer`."""
    return Hook(lambda module, args, output: seen.append(args[0][0, 0].item()), kind="forward", modules="layer", **options)


# -- stages ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ("train", [1.0, 2.0]),
        ("validate", [5.0, 5.0]),  # after each of two epochs; not in the sanity check
        (["train", "validate"], [1.0, 5.0, 2.0, 5.0]),
        (["test", "predict"], []),
    ],
)
def test_stages_of_a_fit(tmp_path: Path, stages: Any, expected: list[float]) -> None:
    seen: list[float] = []

    class EpochOf(Every):
        def on_train_epoch_start(self) -> None:
            self.number = float(self.current_epoch + 1)

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return super().training_step(torch.full_like(batch, self.number), batch_idx)

    model = EpochOf()
    trainer = make(tmp_path, CustomHooks([noting(seen, stages=stages)]), max_epochs=2, num_sanity_val_steps=2)
    trainer.fit(model, loader([0.0, 0.0]), loader([5.0, 0.0]))
    assert seen == expected
    assert_no_hooks(model)


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_stage_by_itself(tmp_path: Path, stage: str) -> None:
    seen: list[float] = []
    model = Every()
    trainer = make(tmp_path, CustomHooks([noting(seen, stages=stage)]))
    for run in ("validate", "test", "predict"):
        getattr(trainer, run)(model, loader([1.0, 0.0], [2.0, 0.0]), **({} if run == "predict" else {"verbose": False}))
        assert_no_hooks(model)
        assert not model.layer._forward_hooks
    assert seen == [1.0, 2.0]
    model.layer(torch.ones(1, 2))
    assert seen == [1.0, 2.0]


def test_what_a_hook_returns_changes_a_prediction(tmp_path: Path) -> None:
    hook = Hook(lambda module, args, output: output + 7, kind="forward", modules="layer", stages="predict")
    trainer, model = make(tmp_path, CustomHooks([hook])), Every()
    assert [y.item() for y in trainer.predict(model, loader([1.0, 0.0]))] == [7.0]  # type: ignore[union-attr]
    assert model.layer(torch.ones(1, 2)).item() == 0.0


def test_in_other_stages_the_schedule_counts_the_batches_of_a_run(tmp_path: Path) -> None:
    seen: list[float] = []
    trainer = make(tmp_path, CustomHooks([noting(seen, stages="validate", every_n_steps=2)]), max_epochs=2)
    trainer.fit(Every(), loader([0.0, 0.0]), loader([1.0, 0.0], [2.0, 0.0], [3.0, 0.0]))
    assert seen == [2.0, 2.0]  # every second one of 1 2 3, in each run


def test_validation_in_the_middle_of_a_window_leaves_training_alone(tmp_path: Path) -> None:
    """One step of four batches; a validation after the second."""
    seen: list[Any] = []
    rules = [
        noting(seen, stages=["train"]),
        noting(seen, stages=["validate"]),
        Hook(lambda *args: seen.append("step"), kind="optimizer_step_post"),
    ]
    trainer = make(tmp_path, CustomHooks(rules), accumulate_grad_batches=4, val_check_interval=2)
    trainer.fit(Every(), loader([1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]), loader([9.0, 0.0]))
    assert seen == [1.0, 2.0, 9.0, 3.0, 4.0, "step", 9.0]


def test_every_n_steps_counts_steps_and_runs_at_all_batches_of_one(tmp_path: Path) -> None:
    seen: list[float] = []
    trainer = make(tmp_path, CustomHooks([noting(seen, every_n_steps=2)]), accumulate_grad_batches=2)
    trainer.fit(Line(), loader(*([float(i), 0.0] for i in range(8))))
    assert seen == [2.0, 3.0, 6.0, 7.0]


def test_once_runs_once_in_each_fit(tmp_path: Path) -> None:
    seen: list[float] = []
    callback = CustomHooks([noting(seen, once=True)])
    for _ in range(2):
        make(tmp_path, callback).fit(Line(), loader([1.0, 0.0], [2.0, 0.0]))
    assert seen == [1.0, 1.0]


# -- what changes ----------------------------------------------------------------------------------------------------------


def test_gradients_are_changed_for_each_batch_of_a_window(tmp_path: Path) -> None:
    """The gradients of the two batches are (6, 0)/2 and (2, 0)/2."""
    grads: list[Any] = []
    model = Line()
    rules = [
        Hook(lambda grad: grad.clamp(max=2.0), kind="param_grad", params=W),
        Hook(lambda p: grads.append(p.grad.tolist()), kind="post_accumulate_grad", params=W),
    ]
    make(tmp_path, CustomHooks(rules), accumulate_grad_batches=2).fit(model, loader([6.0, 0.0], [2.0, 0.0]))
    assert grads == [[[2.0, 0.0]], [[3.0, 0.0]]]
    assert model.w == [-3.0, 0.0]


@pytest.mark.parametrize("hooks_first", [True, False])
def test_hooks_act_in_the_order_of_the_callbacks(tmp_path: Path, hooks_first: bool) -> None:
    """The gradient of w is (4, 0): plus 1, then halved; or halved, then plus 1."""
    model = Line()
    hooks = CustomHooks([Hook(lambda grad: grad + 1, kind="param_grad", params=W)])
    halve = GradientTransforms([Apply(Scale(0.5), params=W, when="backward")])
    make(tmp_path, *((hooks, halve) if hooks_first else (halve, hooks))).fit(model, loader([4.0, 0.0]))
    assert model.w == ([-2.5, -0.5] if hooks_first else [-3.0, -1.0])


@pytest.mark.parametrize("monitor_first", [True, False])
def test_a_monitor_sees_what_the_callbacks_before_it_made(tmp_path: Path, monitor_first: bool) -> None:
    """The layer gives 0 for every input; the hook adds 7 to it and doubles the gradient of it, which is 1."""
    monitor = StatsMonitor([Watch(modules="layer", tensors=["output", "output_grad"], stats=["mean"])])
    hooks = CustomHooks(
        [
            Hook(lambda module, args, output: output + 7, kind="forward", modules="layer"),
            Hook(lambda grad: grad * 2, kind="output_grad", modules="layer"),
        ]
    )
    make(tmp_path, *((monitor, hooks) if monitor_first else (hooks, monitor))).fit(Line(), loader([4.0, 0.0]))
    assert monitor.latest["output_mean/layer"] == (0.0 if monitor_first else 7.0)
    assert monitor.latest["output_grad_mean/layer"] == (1.0 if monitor_first else 2.0)


@pytest.mark.parametrize("hooks_first", [True, False])
def test_hooks_and_activation_transforms_act_in_order(tmp_path: Path, hooks_first: bool) -> None:
    last = StatsMonitor([Watch(modules="layer", tensors=["output"], stats=["mean"])])
    hooks = CustomHooks([Hook(lambda module, args, output: output + 4, kind="forward", modules="layer")])
    halve = ActivationTransforms([Apply(Scale(0.5), modules="layer")])
    make(tmp_path, *((hooks, halve) if hooks_first else (halve, hooks)), last).fit(Line(), loader([4.0, 0.0]))
    assert last.latest["output_mean/layer"] == (2.0 if hooks_first else 4.0)


def look(*args: Any) -> None:
    pass


def looking() -> CustomHooks:
    """Every kind at every place. The full backward hooks not where the input needs no gradient: torch would warn."""
    rules = [Hook(look, kind=kind, modules="*") for kind in MODULE_KINDS if "full" not in kind and kind != "saved_tensors"]
    rules += [Hook(look, kind=kind, modules="body.3", stages=["train", "validate"]) for kind in ("full_backward", "forward")]
    rules += [Hook(look, kind="full_backward_pre", modules="body.3")]
    rules += [Hook(look, kind=kind, params="*") for kind in PARAM_KINDS]
    rules += [Hook(look, kind=kind) for kind in OPTIMIZER_KINDS]
    rules += [Hook((same, same), kind="saved_tensors", modules="*")]
    return CustomHooks(rules)


def same(tensor: Tensor) -> Tensor:
    return tensor


@pytest.mark.parametrize("optimizer", [nesterov, adamw])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_are_bit_identical_where_hooks_only_look(tmp_path: Path, optimizer: Any, accumulate: int) -> None:
    def run(*callbacks: Callback) -> list[Tensor]:
        torch.manual_seed(0)
        model = ValNet(optimizer)
        trainer_of(tmp_path, *callbacks, max_epochs=2, accumulate_grad_batches=accumulate, num_sanity_val_steps=1).fit(
            model, data(), data(2)
        )
        assert_clean(model)
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(one, other) for one, other in zip(run(), run(looking()), strict=True))


# -- optimizers ------------------------------------------------------------------------------------------------------------


def test_the_hooks_around_the_step_of_an_optimizer(tmp_path: Path) -> None:
    seen: list[Any] = []
    model = Line()

    def note(what: str) -> Callable[..., None]:
        return lambda optimizer, args, kwargs: seen.append((what, type(optimizer).__name__, model.w))

    rules = [Hook(note(kind), kind=kind) for kind in OPTIMIZER_KINDS]
    make(tmp_path, CustomHooks(rules), accumulate_grad_batches=2).fit(model, loader(*[[2.0, 0.0]] * 4))
    assert seen == [
        ("optimizer_step_pre", "SGD", [0.0, 0.0]),
        ("optimizer_step_post", "SGD", [-2.0, 0.0]),
        ("optimizer_step_pre", "SGD", [-2.0, 0.0]),
        ("optimizer_step_post", "SGD", [-4.0, 0.0]),
    ]


def test_the_hook_before_a_step_sees_the_gradients_only_where_lightning_makes_no_closure(tmp_path: Path) -> None:
    """Lightning runs forward and backward inside the step of an automatic optimizer: torch calls the hook before it."""
    seen: list[Any] = []

    class Manual(Line):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            self.optimizers().zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            self.optimizers().step()

    def note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        grad = optimizer.param_groups[0]["params"][0].grad
        seen.append(None if grad is None else grad.tolist())

    for model in (Line(), Manual()):
        make(tmp_path, CustomHooks([Hook(note, kind="optimizer_step_pre")])).fit(model, loader([1.0, 0.0]))
    assert seen == [None, [[1.0, 0.0]]]


@pytest.mark.parametrize("every", [1, 2])
def test_the_hooks_of_several_optimizers_in_manual_optimization(tmp_path: Path, every: int) -> None:
    """`a` steps at every batch, `b` at batches 0 and 2; a batch is a step."""
    seen: list[Any] = []
    model = Two()

    def note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        seen.append("a" if optimizer.param_groups[0]["params"][0] is model.a.weight else "b")

    rule = Hook(note, kind="optimizer_step_post", every_n_steps=every)
    trainer = make(tmp_path, CustomHooks([rule]))
    trainer.fit(model, loader(*[[1.0, 0.0]] * 4))
    assert seen == (["a", "b", "a", "a", "b", "a"] if every == 1 else ["a", "a"])
    assert not any(o._optimizer_step_post_hooks for o in trainer.optimizers)


def test_gradient_hooks_in_manual_optimization(tmp_path: Path) -> None:
    model = Two()
    start = [layer.weight.detach().clone() for layer in (model.a, model.b)]
    rule = Hook("tests.callbacks.hook_calls.double", kind="param_grad", params="a.weight")
    make(tmp_path, CustomHooks([rule])).fit(model, loader([1.0, 3.0]))
    moved = [before - layer.weight.detach() for before, layer in zip(start, (model.a, model.b), strict=True)]
    torch.testing.assert_close(moved[0], torch.tensor([[2.0, 6.0]]))
    torch.testing.assert_close(moved[1], torch.tensor([[1.0, 3.0]]))


def test_weights_in_manual_optimization_are_bit_identical(tmp_path: Path) -> None:
    def run(*callbacks: Callback) -> list[Tensor]:
        torch.manual_seed(0)
        model = Gan(every=2)
        trainer_of(tmp_path, *callbacks, max_epochs=2).fit(model, data())
        assert_clean(model)
        return [p.detach().clone() for p in model.parameters()]

    rules = [Hook(look, kind=kind, modules="*") for kind in ("forward", "input_grad", "output_grad", "node")]
    rules += [Hook(look, kind=kind) for kind in OPTIMIZER_KINDS]
    assert all(torch.equal(one, other) for one, other in zip(run(), run(CustomHooks(rules)), strict=True))


# -- what goes wrong -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("forward_pre", {"modules": "layer"}),
        ("forward", {"modules": "layer"}),
        ("output_grad", {"modules": "layer"}),
        ("param_grad", {"params": W}),
        ("post_accumulate_grad", {"params": W}),
        ("optimizer_step_pre", {}),
        ("optimizer_step_post", {}),
    ],
)
def test_stop_iteration_does_not_end_the_epoch_silently(tmp_path: Path, kind: str, where: dict[str, str]) -> None:
    model = Line()
    callback = CustomHooks([Hook("tests.callbacks.hook_calls.stop", kind=kind, **where)])
    trainer = make(tmp_path, callback)
    place = next(iter(where.values()), "hooks[0]")
    expected = f"hooks[0] (tests.callbacks.hook_calls.stop, {kind}) at {place} raised StopIteration: no more"
    with pytest.raises(HookError, match=f"^{re.escape(expected)}$"):
        trainer.fit(model, loader([1.0, 0.0]))
    assert_no_hooks(model)
    assert not any(o._optimizer_step_pre_hooks or o._optimizer_step_post_hooks for o in trainer.optimizers)


@pytest.mark.parametrize("run", ["validate", "test", "predict"])
def test_an_exception_in_a_hook_leaves_none_in_any_run(tmp_path: Path, run: str) -> None:
    model = Every()
    rule = Hook("tests.callbacks.hook_calls.stop", kind="forward", modules="layer", stages=run)
    trainer = make(tmp_path, CustomHooks([rule]))
    with pytest.raises(HookError, match="at layer raised StopIteration"):
        getattr(trainer, run)(model, loader([1.0, 0.0]))
    assert_no_hooks(model)
    rules = [noting([], stages=run)]
    getattr(make(tmp_path, CustomHooks(rules)), run)(model, loader([1.0, 0.0]))
    assert_no_hooks(model)


def test_a_users_own_exception_comes_through_with_a_note(tmp_path: Path) -> None:
    def fail(grad: Tensor) -> None:
        raise KeyError("mine")

    model = Line()
    with pytest.raises(KeyError, match="mine") as raised:
        make(tmp_path, CustomHooks([Hook(fail, kind="param_grad", params=W)])).fit(model, loader([1.0, 0.0]))
    (note,) = raised.value.__notes__
    assert note.startswith("raised in hooks[0] (") and note.endswith(f"fail, param_grad) at {W}")
    assert_no_hooks(model)


def test_a_rule_that_matches_nothing_fails_before_training(tmp_path: Path) -> None:
    model = Line()
    callback = CustomHooks([noting([]), Hook(look, kind="forward", modules="layr")])
    with pytest.raises(NoMatchError, match=r"hooks\[1\].modules: 'layr' matches nothing; .*'layer'"):
        make(tmp_path, callback).fit(model, loader([1.0, 0.0]))
    assert model.starts == 0
    assert_no_hooks(model)


def test_an_empty_list_and_a_wrong_field_are_refused() -> None:
    with pytest.raises(RuleError, match="hooks is an empty list; give at least one rule"):
        CustomHooks([])
    with pytest.raises(RuleError, match=r"hooks\[0\].kind: unknown kind 'forwad' \(did you mean 'forward'"):
        CustomHooks([{"call": "tests.callbacks.hook_calls.look", "kind": "forwad", "modules": "*"}])
    with pytest.raises(RuleError, match=r"hooks\[0\]: unknown key 'module' \(did you mean 'modules'"):
        CustomHooks([{"call": "tests.callbacks.hook_calls.look", "kind": "forward", "module": "*"}])


class Checkpointed(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        h: Tensor = checkpoint(self.layer, batch.requires_grad_(), use_reentrant=False)
        return self.head(h).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_forward_hook_runs_in_a_recomputation_too(tmp_path: Path) -> None:
    """What it returned the first time must be there the second time, or torch would save another tensor."""
    seen: list[int] = []

    def change(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        seen.append(1)
        return output.exp()

    make(tmp_path, CustomHooks([Hook(change, kind="forward", modules="layer")])).fit(Checkpointed(), loader([1.0, 0.0]))
    assert len(seen) == 2


# -- from YAML -------------------------------------------------------------------------------------------------------------

YAML = """
trainer:
  callbacks:
    - class_path: lightning_hooks.CustomHooks
      init_args:
        hooks:
          - {call: tests.callbacks.hook_calls.look, kind: forward, modules: "*", types: Linear, named: true, once: true}
          - {call: tests.callbacks.hook_calls.double, kind: param_grad, params: "head.*"}
          - call: {class_path: tests.callbacks.hook_calls.Times, init_args: {factor: 0.0}}
            kind: output_grad
            modules: encoder
          - {call: [tests.callbacks.test_custom.same, tests.callbacks.test_custom.same], kind: saved_tensors, modules: head}
          - {call: lightning_hooks.hooks.print_shapes, kind: optimizer_step_post, every_n_steps: 2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a model, as a user's project has one."""
    (tmp_path / "cli_model.py").write_text(MODEL)
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "hooks.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_model", raising=False)
    yield tmp_path
    sys.modules.pop("cli_model", None)


CONFIGS = ["--config", "base.yaml", "--config", "hooks.yaml"]


def test_fit_from_yaml(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *CONFIGS]) == 0
    assert hook_calls.seen == ["encoder.0", "encoder.2", "head"]
    trained = sys.modules["cli_model"].Model.last
    moved = {name for name, p in trained.named_parameters() if not torch.equal(p, trained.start[name])}
    assert moved == {"head.weight", "head.bias"}  # nothing flows back into the encoder
    assert len(re.findall(r"^hooks\[4\] optimizer_step_post: ", capsys.readouterr().out, re.M)) == 1  # of two steps
    assert_no_hooks(trained)


def test_match_shows_hooks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", *CONFIGS]) == 0
    lines = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    found = [(line[0], line[1]) for line in lines if line[0].startswith("hooks[")]
    assert found[:3] == [("hooks[0]", "encoder.0"), ("hooks[0]", "encoder.2"), ("hooks[0]", "head")]
    assert found[3:7] == [("hooks[1]", "head.weight"), ("hooks[1]", "head.bias"), ("hooks[2]", "encoder"), ("hooks[3]", "head")]
    assert hook_calls.seen == []


def test_the_printed_config_goes_round(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", *CONFIGS, "--print_config"])
    (folder / "printed.yaml").write_text(capsys.readouterr().out)
    assert main(["match", *CONFIGS]) == 0
    direct = capsys.readouterr().out
    assert main(["match", "--config", "printed.yaml"]) == 0
    assert capsys.readouterr().out == direct
    assert main(["fit", "--config", "printed.yaml"]) == 0
    assert hook_calls.seen == ["encoder.0", "encoder.2", "head"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "kind: param_grad",
            "kind: parm_grad",
            "CustomHooks: hooks[1].kind: unknown kind 'parm_grad' (did you mean 'param_grad'",
        ),
        ("hook_calls.double", "hook_calls.duoble", "CustomHooks: hooks[1].call"),
        ('"head.*"', '"haed.*"', "hooks[1].params: 'haed.*' matches nothing"),
    ],
)
def test_a_wrong_rule_ends_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert YAML.count(old) == 1
    (folder / "hooks.yaml").write_text(YAML.replace(old, new))
    assert main(["fit", *CONFIGS]) == 2
    assert message in capsys.readouterr().err


ALL = """
trainer:
  callbacks:
    - class_path: ActivationTransforms
      init_args:
        apply:
          - {modules: encoder.0, stages: [train, validate], transform: {class_path: Zero, init_args: {index: [0], dim: 1}}}
    - class_path: CustomHooks
      init_args:
        hooks:
          - {call: tests.callbacks.hook_calls.double, kind: output_grad, modules: head}
    - class_path: ActivationCapture
      init_args: {modules: encoder.0, every_n_steps: 2, reduce: mean, dtype: float16, folder: kept}
"""


def test_all_of_them_from_yaml(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "hooks.yaml").write_text(ALL)
    with pytest.raises(SystemExit):
        main(["fit", *CONFIGS, "--print_config"])
    (folder / "printed.yaml").write_text(capsys.readouterr().out)
    for configs in (CONFIGS, ["--config", "printed.yaml"]):
        assert main(["match", *configs]) == 0
        shown = capsys.readouterr().out
        for part in (
            "ActivationTransforms\n",
            "CustomHooks\n",
            "ActivationCapture\n",
            "Zero(index=(0,), dim=1)",
            "reduce='mean'",
        ):
            assert part in shown
    assert main(["fit", "--config", "printed.yaml"]) == 0
    entries = load_capture(folder / "kept")["encoder.0"]
    assert entries.steps == (1,) and entries.dtypes == (torch.float16,) and entries.shapes == ((2,),)


def test_from_the_environment_they_come_after_the_scripts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hooks.yaml"
    path.write_text(
        "callbacks:\n"
        "- class_path: CustomHooks\n"
        "  init_args:\n"
        f"    hooks: [{{call: tests.callbacks.hook_calls.double, kind: param_grad, params: {W}}}]\n"
    )
    monkeypatch.setenv("LIGHTNING_HOOKS_CONFIG", str(path))
    model = Line()
    own = CustomHooks([Hook(lambda grad: grad + 1, kind="param_grad", params=W)])
    make(tmp_path, own).fit(model, loader([4.0, 0.0]))
    assert model.w == [-10.0, -2.0]  # (4 + 1)·2


def test_a_callback_and_a_rule_show_themselves_and_can_be_copied() -> None:
    import copy
    import pickle

    callback = CustomHooks([{"call": "tests.callbacks.hook_calls.look", "kind": "forward", "modules": "*", "named": True}])
    expected = "CustomHooks(hooks=[Hook(call='tests.callbacks.hook_calls.look', kind='forward', modules='*', named=True)])"
    assert repr(callback) == expected
    for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert repr(copied) == expected


def test_match_of_the_callback(tmp_path: Path) -> None:
    assert CustomHooks([Hook(look, kind="forward", modules="body.*", types="Linear")]).match(Net()).names == [
        "body.0",
        "body.3",
    ]


SCRIPT = """
import torch
import pytorch_lightning as pl
from torch.utils.data import DataLoader

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def validation_step(self, batch, batch_idx):
        self.layer(batch)

    def predict_step(self, batch, batch_idx):
        return self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

rows = DataLoader([torch.tensor([1.0, 2.0])] * 4, batch_size=2)
model = Model()
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(model, rows, rows)
print("W", model.layer.weight.flatten().tolist())
print("P", torch.cat(trainer.predict(model, rows)).flatten().tolist())
layer = model.layer
print("HOOKS", len(layer._forward_hooks), len(layer._forward_pre_hooks), len(layer.weight._backward_hooks or ()))
"""

UNCHANGED = """
callbacks:
  - class_path: CustomHooks
    init_args:
      hooks:
        - {call: tests.callbacks.hook_calls.double, kind: param_grad, params: layer.weight}
        - {call: lightning_hooks.hooks.print_shapes, kind: forward, modules: layer, stages: validate}
  - class_path: ActivationTransforms
    init_args:
      apply: [{modules: layer, stages: [predict], transform: {class_path: Scale, init_args: {factor: 0.5}}}]
  - class_path: ActivationCapture
    init_args: {modules: layer, stages: [predict], folder: kept}
"""


def test_an_unchanged_script_gets_them_in_all_its_runs(tmp_path: Path) -> None:
    (tmp_path / "hooks.yaml").write_text(UNCHANGED)
    paths = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LIGHTNING_HOOKS_CONFIG": "hooks.yaml", "PYTHONPATH": paths}
    done = forked.run(["-c", SCRIPT], environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *["layer forward: input [(2, 2)], output (2, 1)"] * 2,
        "W [-4.0, -8.0]",  # two steps, each of twice (1, 2)
        "P [-10.0, -10.0, -10.0, -10.0]",  # half of -4·1 - 8·2
        "HOOKS 0 0 0",
    ]
    entries = load_capture(tmp_path / "kept")["layer"]
    assert entries.sample_indices == ((0, 1), (2, 3)) and entries.cat().flatten().tolist() == [-10.0] * 4
