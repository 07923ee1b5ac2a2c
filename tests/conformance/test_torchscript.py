"""Models that hold modules of TorchScript: traced ones take hooks, scripted and loaded ones have parameters only."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import ActivationCapture, Apply, GradientTransforms, StatsMonitor, Watch, assert_no_hooks
from lightning_hooks.errors import NoMatchError
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Net, data, plain_sgd, trainer_of
from tests.conformance._tools import Book, everything, same_weights, three_runs

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.* is (deprecated|not supported)")
SAID = "the rule has no effect on"


def loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    return torch.jit.load(file)


class Joined(Net):
    """A layer, converted or not, before the body."""

    def __init__(self, convert: Any = lambda module: module) -> None:
        super().__init__(plain_sgd, dropout=0.0)
        self.first = convert(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.first(x))


class Traced(Net):
    def __init__(self) -> None:
        super().__init__(plain_sgd, dropout=0.0)
        self.body = nn.Sequential(torch.jit.trace(nn.Linear(6, 6), torch.ones(1, 6)), nn.Tanh(), nn.Linear(6, 3))


def test_every_number_of_a_traced_module(tmp_path: Path) -> None:
    three_runs(tmp_path, Traced, lambda: data(3))


@pytest.mark.parametrize("convert", [torch.jit.script, loaded])
def test_a_scripted_module_trains_as_without_ours_and_its_parameters_have_rows(tmp_path: Path, convert: Any) -> None:
    def run(convert: Any, *callbacks: Any) -> tuple[Joined, list[str]]:
        torch.manual_seed(0)
        model = Joined(convert)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer_of(tmp_path, *callbacks).fit(model, data(3))
        assert_no_hooks(model)
        return model, [str(each.message) for each in seen if SAID in str(each.message)]

    bare, _ = run(convert)
    monitor, eager = StatsMonitor(everything(), max_scalars=10**6), StatsMonitor(everything(), max_scalars=10**6)
    book, truth = Book(monitor), Book(eager)
    watched, said = run(convert, monitor, book)
    same_weights(bare, watched)
    assert len(said) == 1 and f"watch[0].modules: {SAID} first, first.0, first.1: " in said[0]
    run(lambda module: module, eager, truth)
    for step, rows in truth.rows.items():
        there = {tag: value for tag, value in rows.items() if tag.rpartition("/")[2] not in ("first", "first.0", "first.1")}
        assert {"grad_norm/first.0.weight", "output_norm/body.0"} < there.keys()
        for tag, value in there.items():
            # A mean may cancel, and TorchScript rounds otherwise on some processors.
            size = there.get(tag.replace("_mean/", "_abs_mean/"), 0.0) if "_mean/" in tag else 0.0
            assert book.rows[step][tag] == pytest.approx(value, rel=1e-5, abs=max(1e-9, 1e-6 * size)), tag
        assert book.rows[step].keys() == there.keys()

    rules = [Apply(Scale(1.0), params="*"), Apply(Scale(1.0), params="*", when="backward"), Apply(Scale(1.0), modules="*")]
    capture = ActivationCapture("*", every_n_steps=1, folder=tmp_path / "captures")
    changed, said = run(convert, GradientTransforms(rules), capture)
    same_weights(bare, changed)
    assert [message.partition(": the")[0] for message in said] == ["apply[2].modules", "ActivationCapture: modules"]


def test_the_default_rules_say_once_which_modules_they_do_not_watch() -> None:
    model = Joined(torch.jit.script)
    with pytest.warns(UserWarning, match=SAID) as seen:
        names = StatsMonitor().match(model).names
    assert [str(each.message) for each in seen] == [
        f"the default watch[0].modules: {SAID} first.0, first.1: torch refuses hooks on modules of TorchScript "
        "(torch.jit.script, torch.jit.load); rules on their parameters work"
    ]
    assert "body.0" in names and "first.0.weight" in names and "first.0" not in names


def test_a_rule_that_names_a_scripted_module_is_refused() -> None:
    model = Joined(torch.jit.script)
    reason = r"'first.0' is there, but torch refuses hooks on modules of TorchScript \(torch.jit.script, torch.jit.load\)"
    for modules in ("first.0", ["body.*", "first.0"]):
        with pytest.raises(NoMatchError, match=rf"^watch\[0\].modules: 'first.0' matches nothing: {reason}"):
            StatsMonitor([Watch(modules=modules)]).match(model)
    with pytest.warns(UserWarning, match=reason):
        names = StatsMonitor([Watch(modules=["body.0", "first.0"], strict=False)]).match(model).names
    assert names == ["body.0"]
    with pytest.raises(NoMatchError, match=r"'first\*' matches nothing: 'first' is there, but torch refuses hooks"):
        StatsMonitor([Watch(modules="first*")]).match(model)
