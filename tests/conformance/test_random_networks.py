"""Networks and rules drawn at random: every number is that of autograd, whatever else is watched."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, StepConsumer, StepView, Watch, assert_no_hooks
from lightning_hooks.stats.schema import ABS_SUM, COUNT
from lightning_hooks.transforms import ClipByGlobalNorm, Scale
from tests.callbacks.models import Net, data, plain_sgd, trainer_of
from tests.conformance._tools import MODULE_TENSORS, PARAM_TENSORS, same_weights, three_runs

WIDTH: Final = 6
STATS: Final = ("mean", "std", "norm", "min", "max", "nonfinite", "zero_fraction", "p50", "p99", "abs_mean")
SCHEDULES: Final = (1, 1, 2, 3, [1, 4], {"every": 2, "first": 2}, {"every": 1, "first": 1, "last": 3})


# -- modules ---------------------------------------------------------------------------------------------------------------


class Halves(nn.Module):
    """Returns two views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x).chunk(2, -1)


class Nest(Halves):
    """Returns a nest that also holds a detached tensor, a number and None."""

    def forward(self, x: Tensor) -> Any:
        first, second = super().forward(x)
        return {"first": first, "rest": [second, x.detach()], "number": 3, "nothing": None}


class Keyword(nn.Module):
    """Takes its second tensor by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, x: Tensor, *, other: Tensor) -> Any:
        return torch.tanh(self.layer(x, other))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x).mul_(0.5)
        out[:, :2].add_(1)
        return out


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        return x - y, x + y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[1] + grads[0], grads[1] - grads[0]


class Function(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return TwoResults.apply(x, y)  # type: ignore[no-untyped-call]


class Mean(nn.Module):
    def forward(self, *several: Tensor) -> Tensor:
        return torch.stack(several).mean(0)


class Frozen(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH).requires_grad_(False))


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x)


class WithIndices(nn.Module):
    """Returns integers too, and hands its input through."""

    def forward(self, x: Tensor) -> Any:
        return x.argmax(-1), x


class Parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.randn(WIDTH))
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.used


class Residual(nn.Module):
    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + x
        return out


LAYERS: Final[tuple[Callable[[], nn.Module], ...]] = (
    lambda: nn.Linear(WIDTH, WIDTH),
    nn.ReLU,
    nn.Tanh,
    nn.GELU,
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    InPlace,
    Parameters,
    Frozen,
)


def layer(draw: random.Random) -> nn.Module:
    return draw.choice(LAYERS)()


def residual(draw: random.Random) -> nn.Module:
    return Residual(nn.Sequential(*(layer(draw) for _ in range(draw.randint(1, 3)))))


# -- a network -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call in a forward pass; its inputs are among the tensors that are there by then, as fractions of their number."""

    kind: str
    module: int
    first: float
    second: float
    in_place: bool


KINDS: Final[dict[str, Callable[[random.Random], nn.Module]]] = {
    "layer": layer,
    "residual": residual,
    "no_grad": layer,
    "detached": layer,
    "halves": lambda draw: Halves(),
    "nest": lambda draw: Nest(),
    "keyword": lambda draw: Keyword(),
    "function": lambda draw: Function(),
    "mean": lambda draw: Mean(),
    "fourier": lambda draw: Fourier(),
    "indices": lambda draw: WithIndices(),
}


class Drawn(Net):
    """Two to eight calls of modules, some of them again; some weights are tied, some results changed in place."""

    def __init__(self, seed: int) -> None:
        super().__init__(plain_sgd, dropout=0.0)
        draw = random.Random(seed)
        self.body = nn.ModuleList()  # type: ignore[assignment]
        self.head = nn.Linear(WIDTH, 3)
        self.calls: list[Call] = []
        for _ in range(draw.randint(2, 8)):
            again = [call for call in self.calls if call.kind in ("layer", "residual")]
            if again and draw.random() < 0.15:
                kind, module = "layer", draw.choice(again).module
            else:
                kind, module = draw.choice(["layer", "layer", *KINDS]), len(self.body)
                self.body.append(KINDS[kind](draw))
            self.calls.append(Call(kind, module, draw.random(), draw.random(), draw.random() < 0.2))
        same = [m for m in self.modules() if isinstance(m, nn.Linear) and m.out_features == WIDTH and m.weight.requires_grad]
        if len(same) > 1 and draw.random() < 0.3:
            same[1].weight = same[0].weight

    def forward(self, x: Tensor) -> Tensor:
        there = [x]
        for call in self.calls:
            given = there[int(call.first * len(there))], there[int(call.second * len(there))]
            results = self._results(call, *given)
            if call.in_place:
                results[0] = (results[0] * 1).add_(1)
            there += results
        out: Tensor = self.head(torch.tanh(torch.stack(there[1:]).sum(0)))
        return out

    def _results(self, call: Call, x: Tensor, y: Tensor) -> list[Tensor]:
        module = self.body[call.module]
        match call.kind:
            case "no_grad":
                with torch.no_grad():
                    return [module(x)]
            case "detached":
                return [module(x).detach()]
            case "halves":
                return list(module(x))
            case "nest":
                nest = module(x)
                return [nest["first"], nest["rest"][0]]
            case "keyword":
                return [module(x, other=y)]
            case "function":
                return list(module(x, y))
            case "mean":
                return [module(x, y)]
            case "fourier":
                return [module(x).real]
            case "indices":
                return [module(x)[1]]
            case _:
                return [module(x)]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self(batch[0])


@pytest.mark.parametrize("seed", range(12))
def test_every_number_is_that_of_autograd(tmp_path: Path, seed: int) -> None:
    options = random.Random(seed).choice(
        [{}, {"accumulate_grad_batches": 2}, {"precision": "64-true"}, {"gradient_clip_val": 0.1}]
    )
    # The witness cannot tell a module's own share of the gradient of an input that has several readers.
    compared = [tensor for tensor in (*MODULE_TENSORS, *PARAM_TENSORS) if tensor != "input_grad"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not what this is about: modules that are not called, for example
        three_runs(tmp_path, lambda: Drawn(seed), lambda: data(4), tensors=compared, **options)


# -- rules -----------------------------------------------------------------------------------------------------------------


class Keep(StepConsumer):
    def __init__(self) -> None:
        self.views: dict[tuple[str, int], StepView] = {}

    def consume(self, view: StepView) -> None:
        self.views[view.stage, view.step] = view


def drawn_rules(draw: random.Random) -> list[Watch]:
    rules = []
    for _ in range(draw.randint(1, 4)):
        stats = draw.sample(STATS, draw.randint(1, 4))
        schedule: Any = draw.choice([None, *SCHEDULES])
        if draw.random() < 0.6:
            tensors = draw.sample(MODULE_TENSORS, draw.randint(1, 4))
            names = draw.choice(["*", "body.*", "head", "body.0", "*.0*"])
            kept = "leaves" if draw.random() < 0.3 else "all"
            rules.append(
                Watch(
                    names,
                    select=kept,
                    tensors=tensors,
                    stats=stats,
                    every_n_steps=schedule,
                    strict=False,
                )
            )
        else:
            tensors = draw.sample(PARAM_TENSORS, draw.randint(1, 4))
            names = draw.choice(["*", "*.weight", "head.*", "*.bias"])
            rules.append(Watch(params=names, tensors=tensors, stats=stats, every_n_steps=schedule, strict=False))
    return rules


def drawn_options(draw: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"max_epochs": 2}
    choices = {
        "val_check_interval": [1, 2],
        "accumulate_grad_batches": [2, 3],
        "precision": ["64-true"],
        "gradient_clip_val": [0.01],
        "num_sanity_val_steps": [2],
    }
    return options | {name: draw.choice(values) for name, values in choices.items() if draw.random() < 0.3}


def fit(folder: Path, seed: int, monitor: StatsMonitor) -> Drawn:
    draw = random.Random(seed)
    callbacks: list[Callback] = [monitor]
    if draw.random() < 0.4:
        callbacks.append(GradientTransforms([Apply(draw.choice([Scale(0.5), ClipByGlobalNorm(0.01)]), params="*")]))
    if draw.random() < 0.3:
        callbacks.append(GradientTransforms([Apply(Scale(0.5), params="head.*", when="backward")]))
    draw.shuffle(callbacks)
    options = drawn_options(draw)
    torch.manual_seed(0)
    model = Drawn(seed)
    trainer_of(folder, *callbacks, **options).fit(model, data(5), data(2))
    assert_no_hooks(model)
    return model


def assert_same_rows(some: StepView, everything: StepView) -> None:
    """What was due is there exactly if it is there in the other, and has the same moments."""
    index = {key: i for i, key in enumerate(zip(everything.rows.tensors, everything.rows.names, strict=True))}
    requested = some.rows.requested_rows
    due = {i for each in requested if any(s in some.due for s, _ in each.requests) for i in each.rows.tolist()}
    for i, key in enumerate(zip(some.rows.tensors, some.rows.names, strict=True)):
        ours, theirs = some.moments[i], everything.moments[index[key]]
        assert i not in due or (ours[COUNT] > 0) == (theirs[COUNT] > 0), key
        if ours[COUNT]:
            known = ~np.isnan(ours) if np.isnan(ours[ABS_SUM]) else slice(None)  # not asked for
            assert np.array_equal(ours[known], theirs[known], equal_nan=True), key


@pytest.mark.parametrize("seed", range(24))
def test_few_rules_see_what_a_rule_for_everything_sees(tmp_path: Path, seed: int) -> None:
    draw = random.Random(-seed)
    stages = draw.choice([("train",), ("train", "validate")])
    few, everything = Keep(), Keep()
    rules = [
        Watch(modules="*", tensors=MODULE_TENSORS, stats=STATS, strict=False),
        Watch(params="*", tensors=PARAM_TENSORS, stats=STATS, strict=False),
    ]
    drawn = [*drawn_rules(draw), Watch(modules="head", tensors="output", stats="mean")]  # validation needs one of outputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = fit(tmp_path, seed, StatsMonitor(drawn, every_n_steps=draw.choice(SCHEDULES), stages=stages, consumers=[few]))
        second = fit(tmp_path, seed, StatsMonitor(rules, every_n_steps=1, stages=stages, consumers=[everything]))
    same_weights(first, second)
    assert few.views
    for key, view in few.views.items():
        assert_same_rows(view, everything.views[key])
