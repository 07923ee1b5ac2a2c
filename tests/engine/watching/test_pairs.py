"""Gradients compared with those of the previous step and of micro-batches, and the noise scale computed from them."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import RuleError, StatsMonitor, Watch, instrument, match
from lightning_hooks.stats.pairs import DECAY
from tests.callbacks._tiny import Keeper, Line, loader, make

STATS = ["cosine", "micro_cosine", "noise_scale"]


class Linear(nn.Module):
    """A model for which the gradient of w is the input x."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.w @ x


def run(steps: list[list[list[float]]], stats: list[str], **watch: object) -> list[dict[str, float]]:
    """The statistics of each step, by tag. A step is a list of micro-batches."""
    model = Linear(len(steps[0][0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    with instrument(
        model, [StatsMonitor([Watch(params="w", tensors="grad", stats=stats, **watch)])], optimizer=optimizer
    ) as watched:
        for micro_batches in steps:
            optimizer.zero_grad()
            for x in micro_batches:
                model(torch.tensor(x)).backward()
            optimizer.step()
            out.append(watched.latest)
    return out


def test_the_cosine_with_the_step_before() -> None:
    first, second, third = run([[[3.0, 0.0]], [[4.0, 3.0]], [[-8.0, -6.0]]], ["cosine"])
    assert "grad_cosine/w" not in first  # The first step has no previous step.
    assert second["grad_cosine/w"] == pytest.approx(0.8)
    assert third["grad_cosine/w"] == pytest.approx(-1.0)


def test_the_cosine_of_complex_gradients_is_that_of_their_real_and_imaginary_parts() -> None:
    model = Linear()
    model.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    with instrument(model, [StatsMonitor([Watch(params="w", tensors="grad", stats="cosine")])], optimizer=optimizer) as watched:
        for x in ([1 + 2j, 3 - 1j], [2 - 1j, 1 + 4j]):
            optimizer.zero_grad()
            model(torch.tensor(x)).real.backward()
            assert model.w.grad is not None
            kept.append(torch.view_as_real(model.w.grad.resolve_conj()).flatten().double())
            optimizer.step()
    expected = torch.nn.functional.cosine_similarity(*kept, dim=0).item()
    assert watched.latest["grad_cosine/w"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ending", [{"every": 1, "last": 2}, [1, 2]])
def test_gradients_are_compared_until_the_last_step_at_which_the_cosine_is_due(ending: object) -> None:
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [
        Watch(params="w", tensors="grad", stats="norm"),
        Watch(params="w", tensors="grad", stats="cosine", every_n_steps=ending),
    ]
    measured = []
    with instrument(model, [StatsMonitor(rules)], optimizer=optimizer) as watched:
        for x in ([3.0, 0.0], [4.0, 3.0], [-8.0, -6.0], [1.0, 1.0], [2.0, 1.0]):
            optimizer.zero_grad()
            model(torch.tensor(x)).backward()
            optimizer.step()
            series = watched.view.stat("grad", "cosine")
            measured.append(series.values[0] if series.measured[0] else None)
    assert measured == [None, pytest.approx(0.8), pytest.approx(-1.0), None, None]


def test_the_step_before_is_the_watched_one_before() -> None:
    values = run([[[1.0, 0.0]], [[0.0, 1.0]], [[-1.0, 0.0]]], ["cosine"], every_n_steps=[0, 2])
    assert values[2]["grad_cosine/w"] == -1.0


def test_micro_batches_that_agree_cancel_or_are_unrelated() -> None:
    for micro_batches, expected in [
        ([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], 1.0),
        ([[1.0, 0.0], [0.0, 1.0]], 0.0),
        ([[1.0, 0.0], [-1.0, 0.0]], -1.0),
    ]:
        (values,) = run([micro_batches], ["micro_cosine"])
        assert values["grad_micro_cosine/w"] == pytest.approx(expected, abs=1e-12)


def test_of_one_micro_batch_nothing_can_be_said() -> None:
    (values,) = run([[[1.0, 2.0]]], STATS)
    assert set(values) == {"run/grad_norm", "run/loss", "run/nonfinite"}


def estimates(micro_batches: list[list[float]]) -> tuple[float, float]:
    """The estimator of McCandlish et al., appendix A.1, with one micro-batch as the small batch."""
    g = torch.tensor(micro_batches, dtype=torch.float64)
    n = len(g)
    small, big = g.square().sum(1).mean(), g.mean(0).square().sum()
    return ((n * big - 1 * small) / (n - 1)).item(), ((small - big) / (1 / 1 - 1 / n)).item()


def test_the_noise_scale_is_the_ratio_of_two_averages() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [(torch.randn(4, 3, generator=generator) * 0.5 + torch.tensor([1.0, 0.0, 2.0])).tolist() for _ in range(5)]
    values = run(steps, ["noise_scale"])
    gradient, noise = estimates(steps[0])
    assert values[0]["grad_noise_scale/w"] == pytest.approx(noise / gradient, rel=1e-6)
    for micro_batches, seen in zip(steps[1:], values[1:], strict=True):
        g, s = estimates(micro_batches)
        gradient, noise = DECAY * gradient + (1 - DECAY) * g, DECAY * noise + (1 - DECAY) * s
        assert seen["grad_noise_scale/w"] == pytest.approx(noise / gradient, rel=1e-6)
        assert seen["run/noise_scale"] == pytest.approx(noise / gradient, rel=1e-6)


def test_it_finds_the_scale_that_the_data_was_made_with() -> None:
    torch.manual_seed(0)
    mean, spread = torch.tensor([0.3, 0.4]), 0.5  # |G|² is 0.25, the trace of the covariance 2 · 0.25
    steps = [(mean + spread * torch.randn(64, 2)).tolist() for _ in range(60)]
    assert run(steps, ["noise_scale"])[-1]["grad_noise_scale/w"] == pytest.approx(0.5 / 0.25, rel=0.1)


def test_of_a_group_it_is_that_of_its_parameters_as_one_vector() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.a @ x[:2] + self.b @ x[2:]

    model, micro_batches = Two(), [[1.0, 2.0, 3.0], [2.0, 2.0, 2.5], [0.5, 1.0, 3.5]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = Watch(params="*", tensors="grad", stats=["noise_scale", "micro_cosine", "cosine"], group_by={"all": "*"})
    with instrument(model, [StatsMonitor([rule])], optimizer=optimizer) as watched:
        for _ in range(2):
            optimizer.zero_grad()
            for x in micro_batches:
                model(torch.tensor(x)).backward()
            optimizer.step()
    gradient, noise = estimates(micro_batches)
    values = watched.latest
    assert values["grad_noise_scale/all"] == pytest.approx(noise / gradient, rel=1e-6)
    assert values["run/noise_scale"] == pytest.approx(noise / gradient, rel=1e-6)
    assert values["grad_cosine/all"] == pytest.approx(1.0)
    g = torch.tensor(micro_batches, dtype=torch.float64)
    total, small = g.sum(0).square().sum(), g.square().sum()
    assert values["grad_micro_cosine/all"] == pytest.approx(((total - small) / (2 * small)).item(), rel=1e-6)


def test_a_sum_that_starts_again_forgets_the_parts_before() -> None:
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with instrument(
        model, [StatsMonitor([Watch(params="w", tensors="grad", stats="micro_cosine")])], optimizer=optimizer
    ) as watched:
        model(torch.tensor([9.0, 9.0])).backward()
        optimizer.zero_grad()  # A closure for LBFGS does this too.
        for x in ([1.0, 0.0], [0.0, 1.0]):
            model(torch.tensor(x)).backward()
        optimizer.step()
    assert watched.latest["grad_micro_cosine/w"] == pytest.approx(0.0, abs=1e-12)


class Steps(Line):
    """Two optimizer steps for each batch, each with two micro-batches."""

    def __init__(self, set_to_none: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.set_to_none = set_to_none

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for rows in batch.split(2):
            for x in rows:
                self.manual_backward(self.layer(x).sum())
            optimizer.step()
            optimizer.zero_grad(set_to_none=self.set_to_none)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_of_several_steps_in_a_batch_the_last_one_counts(tmp_path: Path, set_to_none: bool) -> None:
    book, last = Keeper(), [[2.0, 1.0], [1.0, 1.0]]
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats=["micro_cosine", "noise_scale"])])
    make(tmp_path, monitor, logger=book).fit(Steps(set_to_none), loader([[9.0, 9.0], [-9.0, 5.0], *last]))
    (expected,) = run([last], ["micro_cosine", "noise_scale"])
    for stat in ("micro_cosine", "noise_scale"):
        assert book.lines[0][f"grad_{stat}/layer.weight"] == pytest.approx(expected[f"grad_{stat}/w"])


def test_of_several_steps_in_a_batch_the_last_one_is_compared_with_that_of_the_batch_before(tmp_path: Path) -> None:
    book = Keeper()
    monitor = StatsMonitor([Watch(params="*.weight", tensors="grad", stats="cosine")])
    first = [[9.0, -9.0], [0.0, 0.0], [3.0, 0.0], [0.0, 0.0]]
    second = [[-9.0, 5.0], [0.0, 0.0], [4.0, 3.0], [0.0, 0.0]]
    make(tmp_path, monitor, logger=book).fit(Steps(set_to_none=True), loader(first, second))
    assert [line.get("grad_cosine/layer.weight") for line in book.lines.values()] == [None, pytest.approx(0.8)]


@pytest.mark.parametrize("kind", ["half", "float", "double"])
def test_a_gradient_may_have_any_layout_and_change_it_from_step_to_step(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    model = Linear()
    model.w = nn.Parameter(getattr(torch.zeros(4, 6), kind)())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layouts = [
        torch.randn(4, 6, generator=generator),
        torch.randn(4, 6, generator=generator),
        torch.randn(6, 4, generator=generator).t(),
        torch.randn(6, 4, generator=generator).t(),
        torch.randn(4, 1, generator=generator).expand(4, 6),
        torch.randn(8, 6, generator=generator)[::2],
    ]
    gradients = [getattr(each, kind)() for each in layouts]
    with instrument(model, [StatsMonitor([Watch(params="w", tensors="grad", stats="cosine")])], optimizer=optimizer) as watched:
        seen = []
        for gradient in gradients:
            model.w.grad = gradient
            optimizer.step()
            seen.append(watched.latest.get("grad_cosine/w"))
    wide = [each.double().flatten() for each in gradients]
    expected = [torch.nn.functional.cosine_similarity(*each, dim=0).item() for each in pairwise(wide)]
    assert seen == [None, *(pytest.approx(each, rel=1e-12) for each in expected)]


def copies_of(*shape: int) -> int:
    gc.collect()
    return sum(type(each) is Tensor and not each.is_nested and each.shape == shape for each in gc.get_objects())


def test_after_the_last_step_at_which_the_cosine_is_due_no_copy_is_kept() -> None:
    model = Linear(1237)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = Watch(params="w", tensors="grad", stats="cosine", every_n_steps={"every": 1, "last": 2})
    norm = Watch(params="w", tensors="grad", stats="norm")
    kept = []
    with instrument(model, [StatsMonitor([rule, norm])], optimizer=optimizer):
        for _ in range(5):
            model(torch.ones(1237)).backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(copies_of(1237))
    assert kept == [1, 2, 0, 0, 0]


def test_after_a_row_that_fails_the_others_are_looked_at_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Size] = []

    def fails_first(tensor: Tensor) -> Tensor:
        seen.append(tensor.shape)
        if len(seen) == 1:
            raise MemoryError("mine")
        return tensor

    monkeypatch.setattr("lightning_hooks.engine.watching.pairs.local_part", fails_first)
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats="cosine")], on_error="warn")
    line = Line()
    line.layer = nn.Linear(2, 1)
    with pytest.warns(UserWarning, match="stopped watching after MemoryError: mine"):
        make(tmp_path, monitor).fit(line, loader([[1.0, 2.0]]))
    assert seen == [(1, 2), (1,)]


@pytest.mark.parametrize("stat", STATS)
def test_they_are_statistics_of_a_gradient(stat: str) -> None:
    with pytest.raises(RuleError, match=rf"^stats\[0\]: '{stat}' is a statistic of 'grad'; the rule watches output$"):
        match(nn.Sequential(nn.Linear(1, 1)), rules=[Watch(modules="0", tensors="output", stats=stat)])


class Mixed(nn.Module):
    """A dense and a sparse gradient in one group."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 1, bias=False)
        self.table = nn.Embedding(4, 2, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x).sum() + 100.0 * self.table(torch.tensor([1, 2])).sum()


def test_the_cosine_of_a_group_is_that_of_the_members_that_are_compared() -> None:
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rule = Watch(params="*", tensors="grad", stats="cosine", group_by={"all": "*"})
    with instrument(model, [StatsMonitor([rule])], optimizer=optimizer) as watched:
        for x in ([3.0, 0.0], [4.0, 3.0]):
            optimizer.zero_grad()
            model(torch.tensor([x])).backward()
            optimizer.step()
            values = watched.latest
    assert values["grad_cosine/all"] == pytest.approx(0.8)
