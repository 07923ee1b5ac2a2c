"""`StatsMonitor`: the numbers, against float64 by hand, and what it says about wrong options."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms, RuleError, StatsMonitor, StepConsumer, StepView, Watch
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.transforms import Scale
from tests.callbacks.models import (
    Gan,
    Memory,
    Net,
    ValNet,
    assert_clean,
    data,
    everything,
    norm,
    ours_on,
    trainer_of,
    watch_fit,
)

PARAMS = [Watch(params="*", tensors=["param", "grad", "final_grad", "update"], stats=["norm", "mean", "abs_max", "ratio"])]


def batches(count: int = 6) -> list[Any]:
    return list(data(count))


def windows(count: int, size: int) -> list[list[Any]]:
    all_batches = batches(count)
    return [all_batches[i : i + size] for i in range(0, count, size)]


# -- parameters ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 4])
def test_parameter_numbers_equal_a_plain_loop(tmp_path: Path, accumulate: int) -> None:
    torch.manual_seed(0)
    model = Net(dropout=0.0)
    twin = copy.deepcopy(model)
    memory, _ = watch_fit(tmp_path, model, StatsMonitor(PARAMS), gradient_clip_val=0.2, accumulate_grad_batches=accumulate)
    optimizer = twin.make(twin.parameters())
    assert memory.steps == list(range(len(windows(6, accumulate))))
    for (_, seen), window in zip(memory.ours, windows(6, accumulate), strict=True):
        optimizer.zero_grad()
        for batch in window:
            (twin.training_step(batch, 0) / accumulate).backward()
        grads = {name: p.grad.clone() for name, p in twin.named_parameters()}
        before = {name: p.detach().clone() for name, p in twin.named_parameters()}
        nn.utils.clip_grad_norm_(twin.parameters(), 0.2)
        final = {name: p.grad.clone() for name, p in twin.named_parameters()}
        optimizer.step()
        updates = {name: p.detach() - before[name] for name, p in twin.named_parameters()}
        for tensor, values in {"param": before, "grad": grads, "final_grad": final, "update": updates}.items():
            for name, value in values.items():
                assert seen[f"{tensor}_norm/{name}"] == pytest.approx(norm(value), rel=1e-6), (tensor, name)
                assert seen[f"{tensor}_mean/{name}"] == pytest.approx(
                    value.double().mean().item(), rel=1e-6, abs=1e-6 * value.double().abs().mean().item()
                )
                assert seen[f"{tensor}_abs_max/{name}"] == pytest.approx(value.abs().max().item(), rel=1e-7)
        for name, update in updates.items():
            assert seen[f"update_ratio/{name}"] == pytest.approx(norm(update) / norm(before[name]), rel=1e-6)
        assert seen["run/grad_norm"] == pytest.approx(norm(*grads.values()), rel=1e-6)
        assert seen["run/final_grad_norm"] == pytest.approx(norm(*final.values()), rel=1e-6)
        assert seen["run/param_norm"] == pytest.approx(norm(*before.values()), rel=1e-6)
        assert seen["run/update_ratio"] == pytest.approx(norm(*updates.values()) / norm(*before.values()), rel=1e-6)
        assert seen["run/nonfinite"] == 0


def test_latest_is_the_last_logged_step(tmp_path: Path) -> None:
    monitor = StatsMonitor(max_scalars=500)
    assert monitor.latest == {}
    memory, _ = watch_fit(tmp_path, Net(), monitor)
    assert monitor.latest == memory.ours[-1][1]
    assert {tag.partition("/")[0] for tag in monitor.latest} == {"run"} | {
        f"{tensor}_{stat}"
        for tensor in ("output", "output_grad", "param", "grad", "update")
        for stat in ("mean", "std", "norm", "abs_max", "zero_fraction", "nonfinite")
    } | {"update_ratio"}


# -- modules ---------------------------------------------------------------------------------------------------------------


class Spy(Net):
    """Keeps what the hidden layer really sees, by hand."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x.requires_grad_(True)
        hidden = self.body[0](x)
        hidden.retain_grad()
        out = self.body[3](torch.relu(hidden))
        self.kept.append((x, hidden))
        return nn.functional.mse_loss(out, y)


@pytest.mark.filterwarnings("ignore:matched modules were not called")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_module_numbers_over_micro_batches_equal_one_big_computation(tmp_path: Path, accumulate: int) -> None:
    model = Spy(dropout=0.0)
    model.kept = []
    stats = ["mean", "std", "norm", "rms", "abs_mean", "min", "max", "zero_fraction"]
    watch = [Watch(modules="body.0", tensors=["input", "output", "input_grad", "output_grad"], stats=stats)]
    memory, _ = watch_fit(tmp_path, model, StatsMonitor(watch), data(7), accumulate_grad_batches=accumulate)
    groups = [model.kept[i : i + accumulate] for i in range(0, 7, accumulate)]
    assert len(groups) == len(memory.ours)
    for (_, seen), group in zip(memory.ours, groups, strict=True):
        tensors = {
            "input": [x for x, _ in group],
            "output": [h for _, h in group],
            "input_grad": [x.grad for x, _ in group],
            "output_grad": [h.grad for _, h in group],
        }
        for tensor, parts in tensors.items():
            value = torch.cat([part.detach().double().flatten() for part in parts])
            assert seen[f"{tensor}_norm/body.0"] == pytest.approx(norm(value), rel=1e-6), tensor
            assert seen[f"{tensor}_std/body.0"] == pytest.approx(value.std(correction=0).item(), rel=1e-6)
            assert seen[f"{tensor}_rms/body.0"] == pytest.approx(value.square().mean().sqrt().item(), rel=1e-6)
            assert seen[f"{tensor}_abs_mean/body.0"] == pytest.approx(value.abs().mean().item(), rel=1e-6)
            assert seen[f"{tensor}_mean/body.0"] == pytest.approx(
                value.mean().item(), rel=1e-6, abs=1e-6 * value.abs().mean().item()
            )
            assert seen[f"{tensor}_min/body.0"] == value.min().item()
            assert seen[f"{tensor}_max/body.0"] == value.max().item()
            assert seen[f"{tensor}_zero_fraction/body.0"] == (value == 0).double().mean().item()


class Count(StepConsumer):
    """Number of elements of a row by step, as the table counted them."""

    def __init__(self, monitor: StatsMonitor, tensor: str, name: str) -> None:
        self.what = tensor, name
        self.counts: dict[int, float] = {}
        monitor.consumers.append(self)

    def consume(self, view: StepView) -> None:
        tensor, name = self.what
        series = view.stat(tensor, "count")
        self.counts[view.step] = float(series.values[series.names.index(name)])


@pytest.mark.parametrize(
    "options",
    [
        {"num_sanity_val_steps": 2},
        {"num_sanity_val_steps": 2, "val_check_interval": 1},
        {"num_sanity_val_steps": 2, "val_check_interval": 2, "accumulate_grad_batches": 4},
        {"val_check_interval": 3, "accumulate_grad_batches": 2},
    ],
)
def test_sanity_check_and_validation_are_not_watched(tmp_path: Path, options: dict[str, Any]) -> None:
    monitor, model = StatsMonitor([Watch(modules="body.0", tensors=["input", "output_grad"])]), ValNet()
    seen, back = Count(monitor, "input", "body.0"), Count(monitor, "output_grad", "body.0")
    trainer_of(tmp_path, monitor, **options).fit(model, data(), data(3))
    size = options.get("accumulate_grad_batches", 1)
    assert list(seen.counts.values()) == [len(w) * 4 * 6 for w in windows(6, size)]
    assert list(back.counts.values()) == [len(w) * 4 * 8 for w in windows(6, size)]
    assert_clean(model)


def test_what_a_callback_computes_between_two_batches_is_not_watched(tmp_path: Path) -> None:
    class Calls(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            pl_module(batch[0])

    monitor = StatsMonitor([Watch(modules="body.0", tensors="output")])
    seen = Count(monitor, "output", "body.0")
    trainer_of(tmp_path, monitor, Calls(), accumulate_grad_batches=3).fit(Net(), data())
    assert list(seen.counts.values()) == [3 * 4 * 8] * 2


def test_a_module_that_is_never_called_is_named_once(tmp_path: Path) -> None:
    class Idle(Net):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(2, 2)

    model = Idle()
    with pytest.warns(
        UserWarning, match=r"matched modules were not called in the first step: spare \(Linear; StatsMonitor: watch\). Usual"
    ) as caught:
        memory, _ = watch_fit(tmp_path, model, StatsMonitor([Watch(modules=["spare", "body.0"])]), max_epochs=2)
    assert sum("not called" in str(w.message) for w in caught) == 1
    assert not [tag for tag in memory.ours[-1][1] if "spare" in tag]


def test_modules_that_are_never_called_are_named_once_per_trainer_by_class(tmp_path: Path) -> None:
    class Idle(Net):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.ModuleList([*(nn.Linear(2, 2) for _ in range(12)), nn.Tanh()])

    monitors = StatsMonitor([Watch(modules="*", select="leaves")]), StatsMonitor([Watch(modules="spare.*")], prefix="b/")
    trainer = trainer_of(tmp_path, *monitors)
    with pytest.warns(UserWarning, match="never|not called") as caught:
        for epochs in (1, 2):
            trainer.fit_loop.max_epochs = epochs
            trainer.fit(Idle(), data())
    (said,) = [str(w.message) for w in caught if "not called" in str(w.message)]
    names = ", ".join(f"spare.{i}" for i in range(10))
    assert (
        f"step: {names} and 2 more (Linear; StatsMonitor: watch); spare.12 (Tanh; StatsMonitor: watch). Usual reasons" in said
    )


# -- when ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule, steps",
    [
        (1, list(range(12))),
        (5, [4, 9]),
        ([0, 3, 11], [0, 3, 11]),
        ({"first": 3, "every": 2, "last": 8}, [3, 5, 7]),
        ({"every": 6}, [5, 11]),
        ({"first": 9}, [9, 10, 11]),
        (100, []),
    ],
)
def test_every_n_steps(tmp_path: Path, schedule: Any, steps: list[int]) -> None:
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats="norm")], every_n_steps=schedule)
    memory, _ = watch_fit(tmp_path, Net(), monitor, max_epochs=2)
    assert memory.steps == steps and bool(monitor.latest) == bool(steps)


def test_monitors_begin_and_end_only_the_steps_in_which_they_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, Any]] = []
    for name in ("begin_step", "end_step"):
        method = getattr(Observer, name)

        def noting(self: Observer, *args: Any, method: Any = method, name: str = name) -> None:
            called.append((name, args[0] if args else None))
            method(self, *args)

        monkeypatch.setattr(Observer, name, noting)
    rule = Watch(params="*", tensors="grad", stats="norm")
    first, second = StatsMonitor([rule], every_n_steps=5), StatsMonitor([rule], every_n_steps=[7], prefix="b/")
    trainer_of(tmp_path, first, second, max_epochs=2).fit(Net(), data())
    assert called == [pair for step in (4, 7, 9) for pair in (("begin_step", step), ("end_step", None))]


def test_a_rules_own_schedule_goes_before_the_monitors(tmp_path: Path) -> None:
    watch = [
        Watch(params="*.weight", tensors="grad", stats="norm"),
        Watch(params="*.bias", tensors="grad", stats="norm", every_n_steps=2),
        Watch(params="body.0.weight", tensors="grad", stats="mean", every_n_steps=[5]),
        Watch(modules="body.0", tensors="output", stats="std", every_n_steps={"first": 4}),
    ]
    memory, _ = watch_fit(tmp_path, Net(), StatsMonitor(watch, every_n_steps=3))
    assert memory.steps_of("grad_norm/body.0.weight") == [2, 5]
    assert memory.steps_of("grad_norm/body.0.bias") == [1, 3, 5]
    assert memory.steps_of("grad_mean/body.0.weight") == [5]
    assert memory.steps_of("output_std/body.0") == [4, 5]
    assert memory.steps == [1, 2, 3, 4, 5]


# -- several optimizers ----------------------------------------------------------------------------------------------------


def test_each_parameter_has_a_row_at_its_own_optimizers_step(tmp_path: Path) -> None:
    class Follow(Callback):
        def __init__(self) -> None:
            self.grads: dict[str, list[float]] = {}
            self.params: dict[str, list[float]] = {}

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            names = {id(p): name for name, p in pl_module.named_parameters()}
            for parameter in optimizer.param_groups[0]["params"]:
                self.grads.setdefault(names[id(parameter)], []).append(norm(parameter.grad))
                self.params.setdefault(names[id(parameter)], []).append(norm(parameter))

    model, memory, follow = Gan(every=2), Memory(), Follow()
    monitor = StatsMonitor([Watch(params="*", tensors=["param", "grad", "update"], stats="norm")])
    trainer_of(tmp_path, follow, monitor, logger=memory, max_epochs=2).fit(model, data())
    for name in ("gen.weight", "disc.weight"):
        every = 1 if name.startswith("gen") else 2
        for tensor, expected in (("grad", follow.grads), ("param", follow.params)):
            assert memory.steps_of(f"{tensor}_norm/{name}") == list(range(0, 12, every))
            assert memory.values(f"{tensor}_norm/{name}") == pytest.approx(expected[name], rel=1e-6)
        assert memory.steps_of(f"update_norm/{name}") == list(range(0, 12, every))
    gen = memory.values("update_norm/gen.weight")
    assert gen == pytest.approx([0.1 * g for g in memory.values("grad_norm/gen.weight")], rel=1e-4)


class Twice(LightningModule):
    """Its optimizer steps several times in one training step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.layer = nn.Linear(6, 3)
        self.made: list[Any] = []
        self.seen: list[tuple[float, float, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for _ in range(3):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.mse_loss(self.layer(batch[0]), batch[1]))
            before, grad = self.layer.weight.detach().clone(), norm(self.layer.weight.grad)
            optimizer.step()
            last = (norm(before), grad, norm(self.layer.weight.detach() - before))
        self.seen.append(last)

    def configure_optimizers(self) -> Any:
        self.made = [torch.optim.SGD(self.parameters(), lr=0.1)]
        return self.made[0]


def test_where_an_optimizer_steps_several_times_the_last_one_counts(tmp_path: Path) -> None:
    model = Twice()
    memory, trainer = watch_fit(tmp_path, model, StatsMonitor(PARAMS))
    assert trainer.global_step == 18 and memory.steps == list(range(6))
    for tensor, position in (("param", 0), ("grad", 1), ("final_grad", 1), ("update", 2)):
        expected = [seen[position] for seen in model.seen]
        assert memory.values(f"{tensor}_norm/layer.weight") == pytest.approx(expected, rel=1e-6), tensor
    assert_clean(model)


def test_the_last_closure_of_lbfgs_counts(tmp_path: Path) -> None:
    class Follow(Callback):
        def __init__(self) -> None:
            self.calls = 0
            self.last: dict[int, tuple[float, float]] = {}

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self.calls += 1
            weight = pl_module.body[0].weight
            step = trainer.fit_loop.epoch_loop._batches_that_stepped
            self.last[step] = norm(weight.grad), norm(weight)

    start: list[Tensor] = []

    class Started(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            start.append(pl_module.body[0].weight.detach().clone())

    model = Net(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4), dropout=0.0)
    memory, follow = Memory(), Follow()
    trainer_of(tmp_path, follow, StatsMonitor(PARAMS), Started(), logger=memory).fit(model, data(3))
    assert follow.calls > 6
    assert memory.values("grad_norm/body.0.weight") == pytest.approx([g for g, _ in follow.last.values()], rel=1e-6)
    assert memory.values("final_grad_norm/body.0.weight") == pytest.approx([g for g, _ in follow.last.values()], rel=1e-6)
    assert memory.values("param_norm/body.0.weight") == pytest.approx([p for _, p in follow.last.values()], rel=1e-6)
    ends = [*start[1:], model.body[0].weight.detach()]
    moved = [norm(b.double() - a.double()) for a, b in zip(start, ends, strict=True)]
    assert memory.values("update_norm/body.0.weight") == pytest.approx(moved, rel=1e-5)
    assert_clean(model)


# -- a loss scaler ---------------------------------------------------------------------------------------------------------


def test_gradients_are_unscaled_and_a_skipped_step_has_no_update(tmp_path: Path) -> None:
    class Overflows(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * (float("inf") if batch_idx == 2 else 1.0)

    results = []
    for plugins in (None, [MixedPrecision("16-mixed", "cpu")]):
        torch.manual_seed(0)
        model = Overflows(dropout=0.0)
        memory, _ = watch_fit(
            tmp_path,
            model,
            StatsMonitor([Watch(modules="body.0"), *PARAMS]),
            data(3),
            **({"plugins": plugins} if plugins else {}),
        )
        results.append(memory)
    plain, scaled = results
    for tag in ("grad_norm/body.0.weight", "final_grad_norm/body.0.weight", "output_grad_norm/body.0"):
        assert scaled.values(tag)[:2] == pytest.approx(plain.values(tag)[:2], rel=0.02), tag
    assert scaled.steps_of("update_norm/body.0.weight") == [0, 1]
    assert scaled.steps_of("grad_norm/body.0.weight") == [0, 1, 2]


def test_the_scale_of_a_backward_is_noted_once_however_many_callbacks_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards: list[float] = []
    note = HookManager.scaled_by
    monkeypatch.setattr(HookManager, "scaled_by", lambda self, scale: backwards.append(float(scale)) or note(self, scale))
    monitors = [StatsMonitor([Watch(modules="body.0")], prefix=f"{i}/") for i in range(2)]
    trainer_of(tmp_path, *monitors, plugins=[MixedPrecision("16-mixed", "cpu")]).fit(Net(), data(3))
    assert len(backwards) == 3


# -- tags ------------------------------------------------------------------------------------------------------------------


class Deep(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(4)), nn.Linear(6, 3)
        )


def test_more_scalars_than_max_scalars_are_rolled_up_exactly(tmp_path: Path) -> None:
    model = Deep()
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats=["abs_max", "norm"])], max_scalars=16, scalars="body.4.*")
    said = (
        r"^36 scalars are more than max_scalars=16: 13 are written, merged along the module tree \(tables have every "
        r"row\); max_scalars=20 keeps level 4. See docs/rules.md#many-layers$"
    )
    with pytest.warns(UserWarning, match=said) as caught:
        memory, _ = watch_fit(tmp_path, model, monitor, max_epochs=2)
    assert sum("max_scalars" in str(w.message) for w in caught) == 1
    step, seen = memory.ours[-1]
    latest = monitor.latest
    rows = {tag: value for tag, value in seen.items() if not tag.startswith("run/")}
    assert len(rows) <= 16
    assert {"grad_norm/body.4.weight", "grad_norm/body.4.bias", "grad_abs_max/body.4.weight"} <= set(rows)
    assert sum(tag.startswith("grad_norm/body.") for tag in latest) == 18
    merged = [tag for tag in rows if "body.4" not in tag]
    assert merged
    for tag in merged:
        stat, block = tag.split("/")
        parts = [value for known, value in latest.items() if known.startswith((f"{stat}/{block}.", f"{stat}/{block}"))]
        exact = sum(v * v for v in parts) ** 0.5 if stat == "grad_norm" else max(parts)
        assert rows[tag] == pytest.approx(exact, rel=1e-9), tag


def test_pins_that_match_nothing_are_refused(tmp_path: Path) -> None:
    model = Net()
    with pytest.raises(RuleError, match="^scalars") as raised:
        watch_fit(tmp_path, model, StatsMonitor(scalars="bodi.0.weight"))
    assert "body.0.weight" in str(raised.value)
    assert_clean(model)


def test_a_prefix_goes_before_every_tag(tmp_path: Path) -> None:
    plain, _ = watch_fit(tmp_path, Net(), StatsMonitor(everything(), max_scalars=5000))
    prefixed, _ = watch_fit(tmp_path, Net(), StatsMonitor(everything(), max_scalars=5000, prefix="run/a/"))
    assert {f"run/a/{tag}" for tag in plain.ours[0][1]} == set(prefixed.ours[0][1])


def test_two_monitors_with_the_same_tags_are_refused(tmp_path: Path) -> None:
    first = StatsMonitor([Watch(params="*", tensors="grad", stats=["norm", "mean"])])
    model = Net()
    second = StatsMonitor([Watch(params="body.0.weight", tensors="grad", stats="norm")])
    with pytest.raises(
        RuleError,
        match=r"^prefix: two StatsMonitors would write 'grad_norm/body.0.weight' \(1 tags in common\); give one of them "
        r"another prefix=$",
    ):
        trainer_of(tmp_path, first, second).fit(model, data())
    assert_clean(model)
    memory = Memory()
    second = StatsMonitor([Watch(params="body.0.weight", tensors="grad", stats="norm")], prefix="b/", every_n_steps=2)
    other = StatsMonitor([Watch(params="*", tensors="update", stats="norm")])
    trainer_of(tmp_path, first, second, other, logger=memory).fit(model, data())
    assert memory.steps_of("grad_norm/body.0.weight") == memory.steps_of("update_norm/body.0.weight") == list(range(6))
    assert memory.steps_of("b/grad_norm/body.0.weight") == [1, 3, 5]
    assert memory.values("b/grad_norm/body.0.weight") == memory.values("grad_norm/body.0.weight")[1::2]
    assert memory.steps_of("run/nonfinite") == list(range(6))
    assert_clean(model)


@pytest.mark.parametrize("first", [True, False], ids=["monitor-first", "transforms-first"])
def test_grad_holds_step_transforms_by_the_order_of_the_callbacks(tmp_path: Path, first: bool) -> None:
    memory = Memory()
    monitor = StatsMonitor([Watch(params="*", tensors=["grad", "final_grad"], stats="norm")])
    transforms = GradientTransforms([Apply(Scale(0.25), params="*")])
    trainer_of(tmp_path, *([monitor, transforms] if first else [transforms, monitor]), logger=memory).fit(Net(), data())
    for step in range(6):
        grad, final = (memory.values(f"{t}_norm/body.0.weight")[step] for t in ("grad", "final_grad"))
        assert final == pytest.approx(grad * (0.25 if first else 1.0), rel=1e-6)
    before, after = memory.values("transform_norm_before/0_Scale"), memory.values("transform_norm_after/0_Scale")
    assert after == pytest.approx([0.25 * value for value in before], rel=1e-6)


# -- errors ----------------------------------------------------------------------------------------------------------------


class Fails:
    """A statistic that raises at its fifth call."""

    __name__ = "fails"

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        self.calls += 1
        if self.calls >= 5:
            raise self.error
        return tensor.sum()


RULES = [
    {"modules": "body.0", "tensors": "output"},
    {"modules": "body.0", "tensors": "output_grad"},
    {"params": "*.weight", "tensors": "grad"},
]
ROWS = ["output of body.0", "output_grad of body.0", "grad of body.0.weight"]  # those of the fifth call
failing = pytest.mark.parametrize("rule, row", list(zip(RULES, ROWS, strict=True)), ids=["forward", "backward", "step"])


@failing
def test_a_failing_statistic_raises_its_own_exception(tmp_path: Path, rule: Any, row: str) -> None:
    model, error = Net(), ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as raised:
        watch_fit(tmp_path, model, StatsMonitor([{**rule, "stats": Fails(error)}]))
    assert raised.value is error and error.__notes__ == [f"raised in watch[0].stats[0]: statistic 'fails' of {row}"]
    assert_clean(model)


@failing
def test_a_failing_statistic_detaches_the_monitor_and_training_goes_on(tmp_path: Path, rule: Any, row: str) -> None:
    hooks: list[int] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            hooks.append(ours_on(pl_module))

    model, fails, memory = Net(), Fails(ZeroDivisionError("mine")), Memory()
    monitor = StatsMonitor([{**rule, "stats": fails}], on_error="warn")
    with pytest.warns(UserWarning) as caught:
        trainer = trainer_of(tmp_path, monitor, Look(), logger=memory, max_epochs=2)
        trainer.fit(model, data())
    said = [str(w.message) for w in caught if "StatsMonitor" in str(w.message)]
    note = f"raised in watch[0].stats[0]: statistic 'fails' of {row}"
    assert said == [f"a StatsMonitor stopped watching after ZeroDivisionError: mine ({note}); training continues"]
    assert trainer.global_step == 12 and fails.calls == 5
    assert memory.steps and memory.steps[-1] < 5
    assert hooks[-1] == 0
    assert_clean(model)


@pytest.mark.parametrize(
    "fails, stats",
    [
        ("lightning_hooks.stats.table.Table.measure_all", "norm"),
        ("lightning_hooks.engine.watching.snapshots.Snapshots.take", "norm"),
        ("lightning_hooks.engine.watching.pairs.local_part", "cosine"),
        ("lightning_hooks.engine.watching.pairs.PairWatch.add", "noise_scale"),
    ],
    ids=lambda name: name.rpartition(".")[2],
)
def test_work_that_fails_goes_through_on_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, stats: str) -> None:
    def out_of_memory(*of: Any) -> Any:
        raise MemoryError("mine")

    monkeypatch.setattr(fails, out_of_memory)
    rules = [Watch(params="*", tensors="update", stats="norm"), Watch(params="*", tensors="grad", stats=stats)]
    model, monitor = Net(), StatsMonitor(rules, on_error="warn")
    with pytest.warns(UserWarning, match="stopped watching after MemoryError: mine; training continues"):
        memory, trainer = watch_fit(tmp_path, model, monitor)
    assert trainer.global_step == 6 and memory.ours == [] and monitor.latest == {}
    assert_clean(model)
    with pytest.raises(MemoryError, match="^mine$"):
        watch_fit(tmp_path, model, StatsMonitor(rules))
    assert_clean(model)


def test_a_statistic_that_raises_stop_iteration_does_not_end_the_epoch(tmp_path: Path) -> None:
    model = Net()
    with pytest.raises(RuntimeError, match="statistic 'fails' of output of body.0 raised StopIteration: mine"):
        watch_fit(tmp_path, model, StatsMonitor([{**RULES[0], "stats": Fails(StopIteration("mine"))}]))
    assert_clean(model)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"watch": []}, "watch is an empty list; give at least one rule, or omit it for the default ones"),
        ({"watch": "*"}, "watch must be a list of Watch rules or mappings, got '*'"),
        ({"watch": [{"modles": "*"}]}, "watch[0]: unknown key 'modles' (did you mean 'modules'"),
        (
            {"watch": [{"params": "*"}, {"params": "*", "tensors": "gard"}]},
            "watch[1].tensors: unknown tensor 'gard' (did you mean 'grad'",
        ),
        ({"watch": [{"params": "*", "tensors": "output"}]}, "watch[0].tensors: 'output' is a tensor of modules"),
        (
            {"watch": [{"params": "*", "modules": "*"}]},
            "watch[0].modules: Watch needs exactly one of modules and params, got both",
        ),
        ({"watch": [{"params": "*", "every_n_steps": 0}]}, "watch[0].every_n_steps must be an integer of at least 1"),
        ({"every_n_steps": 0}, "every_n_steps must be an integer of at least 1, a list of steps, or a mapping"),
        ({"every_n_steps": True}, "every_n_steps must be an integer of at least 1"),
        ({"every_n_steps": "2"}, "got '2'"),
        ({"every_n_steps": [1, -2]}, "every_n_steps[1] must be an integer of at least 0, got -2"),
        ({"every_n_steps": {"evry": 2}}, "every_n_steps: unknown key 'evry'"),
        ({"every_n_steps": {"every": 0}}, "every_n_steps.every must be an integer of at least 1, got 0"),
        ({"every_n_steps": {"first": 5, "last": 3}}, "every_n_steps: last=3 is before first=5"),
        ({"max_scalars": -1}, "max_scalars must be an integer of at least 0, got -1"),
        ({"max_scalars": True}, "max_scalars must be an integer of at least 0, got True"),
        ({"max_scalars": 1.5}, "max_scalars must be an integer of at least 0, got 1.5"),
        ({"prefix": None}, "prefix must be a string, got None"),
        ({"on_error": "warm"}, "on_error must be 'raise' or 'warn', got 'warm' (did you mean 'warn'?)"),
        ({"scalars": [1]}, "scalars[0] must be a string, got 1"),
        ({"scalars": 5}, "scalars must be a pattern or a list of patterns, got 5"),
        ({"scalars": {"head": 1}}, "scalars must be a pattern or a list of patterns, got {'head': 1}"),
        ({"logdir": 5}, "logdir must be the path of a folder, got 5"),
        ({"logdir": ""}, "logdir must be the path of a folder, got ''"),
        ({"every_n_steps": {1: 2, "a": 3}}, "every_n_steps: unknown key 1; give an integer"),
        (
            {"watch": [{"params": "*", "group_by": [("a", "b", "c")]}]},
            "watch[0].group_by must hold patterns as strings, got ('a', 'b', 'c')",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError) as raised:
        StatsMonitor(**options)
    assert message in str(raised.value)


def test_a_statistic_that_does_not_exist_is_refused_when_the_monitor_is_made() -> None:
    with pytest.raises(RuleError, match=r"^watch\[1\]\.stats\[0\]: unknown statistic 'menu' \(did you mean 'mean' or"):
        StatsMonitor([{"params": "*"}, {"params": "*", "tensors": "grad", "stats": "menu"}])


def test_its_repr_holds_what_differs_from_the_defaults() -> None:
    assert repr(StatsMonitor()) == "StatsMonitor()"
    assert repr(StatsMonitor(prefix="a/", every_n_steps=[1])) == "StatsMonitor(every_n_steps=[1], prefix='a/')"


def test_match_says_what_a_fit_would_watch() -> None:
    found = StatsMonitor([Watch(params="*.bias", tensors="grad", stats="norm")]).match(Net())
    assert found.names == ["body.0.bias", "body.3.bias"] and found.tags == 2
