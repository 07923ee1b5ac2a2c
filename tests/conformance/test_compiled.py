"""Under `torch.compile`: every hook fires, the numbers are those of eager mode, nothing breaks a graph or compiles again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader

from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    StatsMonitor,
    StepConsumer,
    StepView,
    UnsupportedError,
    Watch,
    assert_no_hooks,
    instrument,
    load_capture,
    paused,
)
from lightning_hooks.hooks import print_shapes
from lightning_hooks.transforms import AddNoise, ClipByNorm, Scale

# torch's compiler makes an instance of every autograd function it meets, asks every input for its gradient, and warns of both.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

TENSORS = ["input", "output", "input_grad", "output_grad"]
STATS = ["mean", "std", "norm", "min", "max", "abs_max", "zero_fraction", "nonfinite", "p50"]


def largest(tensor: Tensor) -> Tensor:
    return tensor.abs().max()


RULES = [
    Watch(modules="*", tensors=TENSORS, stats=[*STATS, largest]),
    Watch(params="*", tensors=["param", "grad", "final_grad", "update"], stats=["norm", "max"]),
]
# Tracing a hook takes 40 ms. Tests that compare no numbers watch few rows: a layer, two modules around layers, some parameters.
FEW_RULES = [
    Watch(modules=["net", "net.blocks.0.up", "net.blocks.0.pair"], tensors=TENSORS, stats=["norm", largest]),
    Watch(params="*.weight", tensors=["grad", "update"], stats="norm"),
]


class Block(nn.Module):
    """In-place ReLU, a shared layer called twice, a tuple and a dictionary on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.relu = nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(inplace=True)
        self.pair, self.shared = Pair(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        a, rest = self.pair(self.relu(self.up(self.norm(x))))
        y: Tensor = x + self.shared(self.shared(a)) + rest["b"]
        return y


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x * 2, {"b": x + 1}


class Net(nn.Module):
    def __init__(self, blocks: int = 1) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(x))
        return y


class Model(LightningModule):
    def __init__(self, blocks: int = 1) -> None:
        super().__init__()
        self.net = Net(blocks)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.net(batch).square().mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.net(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def whole_module(model: Model, backend: str) -> Any:
    return torch.compile(model, backend=backend)


def attribute(model: Model, backend: str) -> Any:
    model.net = torch.compile(model.net, backend=backend, fullgraph=True)  # type: ignore[assignment]
    return model


def in_place(model: Model, backend: str) -> Any:
    model.net.compile(backend=backend, fullgraph=True)
    return model


def regional(model: Model, backend: str) -> Any:
    for block in model.net.blocks:
        block.compile(backend=backend, fullgraph=True)
    return model


def eager(model: Model, backend: str) -> Any:
    return model


WAYS = [whole_module, attribute, in_place, regional]


def blocks_for(way: Callable[..., Any]) -> int:
    """Compiled by itself, a block shares its code with its sibling. In one graph a second block only takes time to compile."""
    return 2 if way is regional else 1


BACKENDS = ["aot_eager", "inductor"] if shutil.which("c++") else ["aot_eager"]


class Note(StatsMonitor):
    """Keeps every record, and how many graphs there are by then."""

    def __init__(self, watch: Any, **options: Any) -> None:
        super().__init__(watch, max_scalars=10_000, **options)
        self.records: list[dict[str, float]] = []
        self.graphs: list[int] = []
        self.consumers.append(Records(self))


class Records(StepConsumer):
    def __init__(self, note: Note) -> None:
        self.note = note

    def consume(self, view: StepView) -> None:
        if view.stage != "train":
            return
        record = {tag: value for tag, value in self.note.latest.items() if tag != "run/overhead"}  # a time
        self.note.records.append(record)
        self.note.graphs.append(counters["stats"]["unique_graphs"])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    return DataLoader([torch.randn(4, 8, generator=generator) for _ in range(6)], batch_size=None)


def trainer(tmp_path: Path, *callbacks: Any, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"max_epochs": 1, "logger": False, **options}
    return Trainer(
        default_root_dir=tmp_path,
        callbacks=list(callbacks),
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **settings,
    )


def fit(
    tmp_path: Path,
    way: Callable[..., Any],
    backend: str,
    *callbacks: Any,
    model: Model | None = None,
    blocks: int = 1,
    validates: bool = False,
    **options: Any,
) -> Model:
    """Fit a model; a validation is a variant of every graph more, and half of the time."""
    torch.manual_seed(0)
    model = model or Model(blocks)
    options.setdefault("limit_val_batches", 1.0 if validates else 0)
    trainer(tmp_path, *callbacks, **options).fit(way(model, backend), data(), data())
    assert_no_hooks(model)
    return model


def assert_close(got: dict[str, float], expected: dict[str, float], tolerance: float) -> None:
    got, expected = ({t: v for t, v in each.items() if t != "run/overhead"} for each in (got, expected))
    assert set(got) == set(expected)
    for tag, value in expected.items():
        assert got[tag] == pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True), tag


@pytest.mark.parametrize(
    ("way", "backend"), [*((way, "aot_eager") for way in WAYS), *((way, BACKENDS[-1]) for way in (attribute, regional))]
)
def test_all_numbers_are_those_of_eager_mode_without_a_break_or_a_recompilation(
    tmp_path: Path, way: Callable[..., Any], backend: str
) -> None:
    # Two of the ways also watch validation and capture activations: each takes two seconds more to trace.
    adds_more = backend == "aot_eager" and way in (attribute, in_place)
    plain, compiled = (Note(RULES, stages=["train", "validate"] if adds_more else "train") for _ in range(2))
    captures = [
        [ActivationCapture(["net.blocks.*.up", "net.head"], every_n_steps=2, folder=tmp_path / run)] if adds_more else []
        for run in "ab"
    ]
    blocks = blocks_for(way)
    reference = fit(tmp_path, eager, backend, plain, *captures[0], blocks=blocks, validates=True)
    counters.clear()
    model = fit(tmp_path, way, backend, compiled, *captures[1], blocks=blocks, validates=True)
    tolerance = 1e-9 if backend == "aot_eager" else 1e-5
    assert len(compiled.records) == len(plain.records) == 6
    for got, expected in zip(compiled.records, plain.records, strict=True):
        assert_close(got, expected, tolerance)
    assert not counters["graph_break"]
    assert len(set(compiled.graphs)) == 1  # everything that is compiled is compiled in the first step
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    if adds_more:
        assert_close(compiled.latest, plain.latest, tolerance)
        assert any(tag.startswith("val_output_norm/net.blocks.0.pair") for tag in compiled.latest)
        one, other = (load_capture(tmp_path / run) for run in "ab")
        assert one.names == other.names and len(one.names) == 2
        for name in one.names:
            torch.testing.assert_close(one[name].cat(), other[name].cat())


def test_where_torch_makes_new_tensors_by_default_changes_no_number() -> None:
    found = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        net, x, gradient = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8), torch.ones(4, 8)
        net.compile(backend="aot_eager")
        apply = [Apply(Scale(0.5), modules="0")]
        with (
            torch.device(device),
            instrument(net, [StatsMonitor([Watch(modules="*", tensors=TENSORS)]), GradientTransforms(apply)]) as watched,
        ):
            net(x).backward(gradient)
            watched.step()
            found.append(watched.latest)
    assert found[0] == found[1] and "input_grad_norm/1" in found[0]


@pytest.mark.parametrize("way", [whole_module, regional])
def test_a_second_fit_after_one_without_us_sees_everything(tmp_path: Path, way: Callable[..., Any]) -> None:
    monitor, again = Note(FEW_RULES), Note(FEW_RULES)
    model = Model(blocks_for(way))
    compiled = way(model, "aot_eager")
    for callbacks in ([], [monitor], [], [again]):
        torch.manual_seed(0)
        trainer(tmp_path, *callbacks, limit_val_batches=0).fit(compiled, data(), data())
        assert_no_hooks(model)
    assert monitor.records[0].keys() == again.records[0].keys()
    assert {tag.partition("/")[0] for tag in again.latest if tag.startswith(("in", "out"))} >= {f"{t}_norm" for t in TENSORS}


@pytest.mark.parametrize("way", WAYS)
def test_watching_every_third_step_compiles_one_more_variant_at_most(tmp_path: Path, way: Callable[..., Any]) -> None:
    def graphs(*callbacks: Any) -> int:
        torch._dynamo.reset()
        counters.clear()
        fit(tmp_path, way, "aot_eager", *callbacks, blocks=blocks_for(way), max_epochs=2)
        assert not counters["graph_break"]
        return int(counters["stats"]["unique_graphs"])

    monitor = Note(FEW_RULES, every_n_steps=3)
    assert graphs(monitor) <= 2 * graphs()
    assert len(monitor.records) == 4  # of 12 steps


@pytest.mark.parametrize("way", WAYS)
def test_gradients_inside_are_changed_as_in_eager_mode(tmp_path: Path, way: Callable[..., Any]) -> None:
    def callbacks() -> list[Any]:
        return [
            GradientTransforms(
                [
                    Apply(Scale(0.5), modules="net.blocks.0.relu"),
                    Apply(ClipByNorm(1e-3), modules="net.blocks.0.shared", tensor="input_grad"),
                    Apply(AddNoise(0.1), modules="net.blocks.0.up"),
                    Apply(Scale(2.0), params="*.bias", when="backward"),
                    Apply(ClipByNorm(0.01), params="*.weight"),
                ]
            ),
            Note(FEW_RULES),
        ]

    a = fit(tmp_path, eager, "aot_eager", *callbacks())
    b = fit(tmp_path, way, "aot_eager", *callbacks())
    assert not counters["graph_break"]
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_the_weights_of_rules_on_parameters_are_bit_identical(tmp_path: Path) -> None:
    for backend in BACKENDS:
        watched = fit(tmp_path, attribute, backend, StatsMonitor([Watch(params="*")]))
        plain = fit(tmp_path, attribute, backend)
        assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), plain.parameters(), strict=True))


def test_in_bfloat16_it_is_within_its_rounding(tmp_path: Path) -> None:
    def train(*callbacks: Any) -> Model:
        return fit(tmp_path, attribute, BACKENDS[-1], *callbacks, precision="bf16-true")

    for a, b in zip(train(Note(FEW_RULES)).parameters(), train().parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)


def test_what_is_compiled_while_the_fit_starts_is_found(tmp_path: Path) -> None:
    class Late(Model):
        def on_train_start(self) -> None:
            self.net.compile(backend="aot_eager", fullgraph=True)

    monitor = Note(FEW_RULES)
    fit(tmp_path, eager, "", monitor, model=Late())
    assert "output_norm/net.blocks.0.up" in monitor.latest and not counters["graph_break"]


def test_what_is_compiled_while_the_fit_starts_is_found_before_it_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Model):
        def on_train_start(self) -> None:
            self.net.compile(backend="aot_eager", fullgraph=True)

    model, forgotten = Late(), []
    monkeypatch.setattr(
        "lightning_hooks.engine.participants.compiled.forget_graphs", lambda _: forgotten.append(model.trainer.global_step)
    )
    monitor = Note(FEW_RULES, every_n_steps=3)
    fit(tmp_path, eager, "", monitor, model=model)
    assert "output_norm/net.blocks.0.up" in monitor.latest and forgotten == [0]


def test_what_is_compiled_no_more_after_a_pause_is_watched_by_ordinary_hooks(tmp_path: Path) -> None:
    class Undone(Model):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                with paused(self):
                    self.net._compiled_call_impl = None

    monitor = Note(FEW_RULES, every_n_steps=2)
    fit(tmp_path, in_place, "aot_eager", monitor, model=Undone())
    assert len(monitor.records) >= 2
    assert all(record.keys() == monitor.records[0].keys() for record in monitor.records)


def test_paused_takes_the_hooks_off_and_brings_them_back(tmp_path: Path) -> None:
    class Pausing(Model):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                with paused(self):
                    assert_no_hooks(self)
                    self.net(batch)

    monitor = Note(FEW_RULES)
    fit(tmp_path, in_place, "aot_eager", monitor, model=Pausing())
    assert all(record.keys() == monitor.records[0].keys() for record in monitor.records)


@pytest.mark.parametrize(
    ("callback", "place"),
    [
        (ActivationTransforms([Apply(Scale(2.0), modules="net.head")]), "apply[0].modules"),
        (CustomHooks([Hook(print_shapes, kind="forward", modules="net.head")]), "hooks[0].modules"),
    ],
)
def test_what_cannot_be_part_of_a_compiled_graph_is_refused(tmp_path: Path, callback: Any, place: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        fit(tmp_path, attribute, "aot_eager", callback)
    message = str(caught.value)
    assert message.startswith(f"{place}: 'net.head' is compiled (net), and ") and "torch.compiler.disable" in message


def test_a_hook_of_ours_in_code_that_somebody_else_compiles_does_not_break_the_graph(tmp_path: Path) -> None:
    class Function(Model):
        """A compiled function around the module, which does not tell the module."""

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            if "compiled" not in self.__dict__:
                self.__dict__["compiled"] = torch.compile(self.loss, backend="aot_eager", fullgraph=True)
            return self.__dict__["compiled"](batch)

        def loss(self, x: Tensor) -> Tensor:
            return self.net(x).square().mean()

    monitor = Note(FEW_RULES)
    with pytest.warns(UserWarning, match=r"were not called in the first step: .*compiled"):
        fit(tmp_path, eager, "", monitor, model=Function())
    assert not counters["graph_break"]


def activations() -> Any:
    return ActivationTransforms([Apply(Scale(2.0), modules="net.head")])


def own_hooks() -> Any:
    return CustomHooks([Hook(print_shapes, kind="forward", modules="net.head")])


def gradients(modules: str = "net.head") -> Any:
    return GradientTransforms([Apply(Scale(2.0), modules=modules)])


def by_decorator(model: Model, backend: str) -> Any:
    """As `@torch.compile` on `forward` and on `training_step`, in the class."""

    class Decorated(Net):
        forward = torch.compile(Net.forward, backend=backend, fullgraph=True)

    model.net.__class__ = Decorated
    return model


def forward_in_instance(model: Model, backend: str) -> Any:
    model.net.forward = torch.compile(model.net.forward, backend=backend, fullgraph=True)  # type: ignore[method-assign]
    return model


def step_by_decorator(model: Model, backend: str) -> Any:
    class Decorated(type(model)):  # type: ignore[misc]
        training_step = torch.compile(type(model).training_step, backend=backend)

    model.__class__ = Decorated
    return model


def step_in_instance(model: Model, backend: str) -> Any:
    model.training_step = torch.compile(model.training_step, backend=backend)  # type: ignore[method-assign]
    return model


FUNCTIONS = [by_decorator, forward_in_instance, step_by_decorator, step_in_instance]


@pytest.mark.parametrize("callback", [activations, own_hooks])
@pytest.mark.parametrize("way", FUNCTIONS)
def test_what_cannot_be_part_of_a_compiled_function_is_refused(
    tmp_path: Path, way: Callable[..., Any], callback: Callable[[], Any]
) -> None:
    compiled = "training_step" if "step" in way.__name__ else "net.forward"
    rule = "apply" if callback is activations else "hooks"
    with pytest.raises(UnsupportedError, match=rf"^{rule}\[0\].modules: 'net.head' is compiled \({compiled}\), and "):
        fit(tmp_path, way, "aot_eager", callback())


@pytest.mark.parametrize("way", FUNCTIONS)
def test_gradients_and_statistics_in_a_compiled_function_are_those_of_eager_mode(
    tmp_path: Path, way: Callable[..., Any]
) -> None:
    plain, compiled = Note(RULES), Note(RULES)
    reference = fit(tmp_path, eager, "aot_eager", gradients("net.blocks.0.up"), plain)
    model = fit(tmp_path, way, "aot_eager", gradients("net.blocks.0.up"), compiled)
    assert len(compiled.records) == len(plain.records) == 6
    for got, expected in zip(compiled.records, plain.records, strict=True):
        assert_close(got, expected, 1e-6)
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_disabled_forward_is_not_compiled(tmp_path: Path) -> None:
    model = Model()
    model.net.forward = torch.compiler.disable(model.net.forward)  # type: ignore[method-assign]
    fit(tmp_path, eager, "", activations(), model=model)


MOMENTS = ["on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start"]


@pytest.mark.parametrize("callback", [activations, own_hooks])
@pytest.mark.parametrize("way", [attribute, in_place, forward_in_instance])
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_compiled_within_the_fit_is_refused_in_the_first_batch(
    tmp_path: Path, moment: str, way: Callable[..., Any], callback: Callable[[], Any]
) -> None:
    model, done = Model(), []

    def compile_it(*_: Any) -> None:
        if not done:
            done.append(way(model, "aot_eager"))

    setattr(model, moment, compile_it)
    with pytest.raises(UnsupportedError, match=r"\[0\].modules: .*net.head.*torch.compiler.disable"):
        fit(tmp_path, eager, "", callback(), model=model)
    assert done and model.trainer.global_step <= 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_changed_gradient_of_what_is_compiled_within_the_fit_is_as_in_eager_mode_or_refused(
    tmp_path: Path, moment: str
) -> None:
    reference = fit(tmp_path, eager, "", gradients())
    torch.manual_seed(0)
    model, done = Model(), []

    def compile_it(*_: Any) -> None:
        if not done:
            done.append(in_place(model, "aot_eager"))

    setattr(model, moment, compile_it)
    if moment == "on_train_batch_start":
        expected = r"^apply\[0\].modules: net.head had no effect in this batch: .*before the batch"
        with pytest.raises(UnsupportedError, match=expected):
            fit(tmp_path, eager, "", gradients(), model=model)
        return
    fit(tmp_path, eager, "", gradients(), model=model)
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("callback", [activations, own_hooks, gradients])
def test_rules_in_a_compiled_function_that_nothing_tells_of_are_refused(tmp_path: Path, callback: Callable[[], Any]) -> None:
    class Function(Model):
        def __init__(self) -> None:
            super().__init__()
            self.loss = torch.compile(lambda x: self.net(x).square().mean(), backend="aot_eager")

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            loss: Tensor = self.loss(batch)
            return loss

    with pytest.raises(UnsupportedError, match=r"\[0\].modules: net.head had no effect in this batch: .*a compiled function"):
        fit(tmp_path, eager, "", callback(), model=Function())


class Late(Model):
    """Compiled by itself at the start of an epoch, or in the middle of one."""

    def __init__(self, way: Callable[..., Any], epoch: int = 1, batch: int | None = None) -> None:
        super().__init__()
        self.way, self.when = way, (epoch, batch)

    def on_train_epoch_start(self) -> None:
        if (self.current_epoch, None) == self.when:
            self.way(self, "aot_eager")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (self.current_epoch, batch_idx) == self.when:
            self.way(self, "aot_eager")


@pytest.mark.parametrize(("way", "every"), [(attribute, 1), (in_place, 2), (in_place, 1), (regional, 2)])
def test_what_is_compiled_at_the_start_of_a_later_epoch_is_watched_in_its_graphs(
    tmp_path: Path, way: Callable[..., Any], every: int
) -> None:
    plain, compiled = Note(RULES, every_n_steps=every), Note(RULES, every_n_steps=every)
    options: dict[str, Any] = {"max_epochs": 2}
    fit(tmp_path, eager, "", plain, **options)
    counters.clear()
    torch.manual_seed(0)
    fit(tmp_path, eager, "", compiled, model=Late(way), **options)
    assert len(compiled.records) == len(plain.records) == 12 // every
    for got, expected in zip(compiled.records, plain.records, strict=True):
        assert_close(got, expected, 1e-9)
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(("way", "first"), [(attribute, True), (in_place, True), (in_place, False), (regional, False)])
def test_what_is_compiled_by_a_callback_at_the_start_of_an_epoch_is_watched(
    tmp_path: Path, way: Callable[..., Any], first: bool
) -> None:
    class Compile(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.current_epoch == 1:
                way(pl_module, "aot_eager")

    monitor = Note(FEW_RULES)
    callbacks = [Compile(), monitor] if first else [monitor, Compile()]
    fit(tmp_path, eager, "", *callbacks, max_epochs=2)
    assert len(monitor.records) == 12 and len({frozenset(record) for record in monitor.records}) == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize(("way", "every"), [(attribute, 2), (in_place, 1), (in_place, 3), (regional, 2)])
def test_what_is_compiled_in_the_middle_of_an_epoch_is_watched(tmp_path: Path, way: Callable[..., Any], every: int) -> None:
    monitor = Note(FEW_RULES, every_n_steps=every)
    fit(tmp_path, eager, "", monitor, model=Late(way, epoch=0, batch=2), max_epochs=2)
    assert len(monitor.records) == 12 // every and not counters["graph_break"]
    assert monitor.records[-1].keys() == monitor.records[0].keys()


class Other(nn.Module):
    """A model that nobody watches, with layers of its own and a graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        torch._dynamo.graph_break()
        y: Tensor = self.layer(x)
        return y


@pytest.mark.parametrize("way", [whole_module, regional])
def test_graphs_of_other_models_stay(tmp_path: Path, way: Callable[..., Any]) -> None:
    made: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    x = torch.randn(4, 8)
    other, stack = torch.compile(Other(), backend=backend), nn.Sequential(Other(), Other())
    stack.compile(backend=backend)
    function = torch.compile(lambda x: x.sin() + 1, backend=backend)

    def call() -> int:
        for each in (other, stack, function):
            each(x)
        return len(made)

    before = call()
    assert before == 4
    monitor, model = Note(FEW_RULES), Model(blocks_for(way))
    compiled = way(model, "aot_eager")
    for callbacks in ([], [monitor, Note(FEW_RULES, prefix="again")], [], [monitor]):
        trainer(tmp_path, *callbacks, limit_val_batches=0).fit(compiled, data(), data())
        assert call() == before
    assert len({frozenset(record) for record in monitor.records}) == 1


class Broken(nn.Module):
    """The graph breaks, and what follows calls a layer by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return broken_again(self.third, self.second(x))


def broken_again(layer: nn.Module, x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    y: Tensor = layer(x)
    return y


@pytest.mark.parametrize(
    ("blocks", "how", "who"),
    [(1, "wrapped", "itself"), (1, "in place", "another"), (2, "wrapped", "another"), (2, "in place", "itself")],
)
def test_hooks_are_seen_in_every_part_of_a_graph_that_was_traced_before(blocks: int, how: str, who: str) -> None:
    def compiled() -> Any:
        net = nn.Sequential(Broken(), Broken()) if blocks == 2 else Broken()
        if how == "wrapped":
            return torch.compile(net, backend="aot_eager")
        net.compile(backend="aot_eager")
        return net

    net, x = compiled(), torch.randn(4, 8)
    first = net if who == "itself" else compiled()  # of the same classes: torch shares its graphs
    first(x).sum().backward()
    with instrument(net, [StatsMonitor([Watch(modules="*", select="leaves", stats="mean")])]) as watched:
        net(x).sum().backward()
        watched.step()
        rows = watched.latest
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    names = [name.replace("_orig_mod.", "") for name in layers]
    assert all(f"{tensor}_mean/{name}" in rows for name in names for tensor in ("output", "output_grad"))


def test_where_torch_does_not_say_which_graphs_it_keeps_all_of_them_go(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[bool] = []
    monkeypatch.setattr("torch.compiler.reset", lambda: gone.append(True))
    monkeypatch.delattr("torch._C._dynamo.eval_frame._debug_get_cache_entry_list")
    with instrument(torch.compile(Net(), backend="aot_eager"), [StatsMonitor([Watch(modules="*")])]):
        assert gone
