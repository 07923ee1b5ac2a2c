import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_hooks.errors import RuleError
from lightning_hooks.transforms import AutoClip, Context, Transform, ZClip


def with_norm(norm: float, seed: int = 0) -> list[Tensor]:
    """Two tensors with the given common norm."""
    values = torch.randn(10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = (values / values.norm() * norm).float()
    return [values[:4].reshape(2, 2), values[4:]]


def norm_of(tensors: list[Tensor]) -> float:
    return float(torch.cat([value.flatten().double() for value in tensors]).norm())


def norms_after(transform: Transform, norms: list[float]) -> list[float]:
    context = Context()
    return [norm_of(transform(with_norm(norm, seed), context)) for seed, norm in enumerate(norms)]


NORMS = np.random.default_rng(3).lognormal(1.0, 1.0, 60).tolist()


@pytest.mark.parametrize("percentile", [0, 10, 37.5, 90, 100])
@pytest.mark.parametrize("history", [None, 1, 2, 7, 1000])
def test_autoclip_is_the_percentile_of_numpy(percentile: float, history: int | None) -> None:
    after = norms_after(AutoClip(percentile, history=history), NORMS)
    for step, (norm, new) in enumerate(zip(NORMS, after, strict=True)):
        kept = NORMS[: step + 1] if history is None else NORMS[max(0, step + 1 - history) : step + 1]
        limit = float(np.percentile(kept, percentile))
        assert new == pytest.approx(norm * min(1.0, limit / (norm + 1e-6)), rel=2e-6)


def test_autoclip_keeps_no_more_than_it_is_told() -> None:
    context = Context()
    for norm in (1.0, 2.0, 3.0, 4.0, 5.0):
        AutoClip(history=3)([torch.tensor([norm])], context)
    assert context.state["norms"].tolist() == [3.0, 4.0, 5.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_autoclip_forgets_what_is_not_finite(bad: float) -> None:
    context, clip = Context(), AutoClip(percentile=50)
    (first,) = clip([torch.tensor([bad, 1.0])], context)
    assert first[0].isnan()
    for norm in (2.0, 4.0):
        (result,) = clip([torch.tensor([norm])], context)
    assert result.item() == pytest.approx(3.0, rel=1e-6)


def zclip_by_hand(norms: list[float], alpha: float, thresh: float, warmup: int, eps: float) -> list[float]:
    """The recurrence of the paper, calculated with Python numbers."""
    first = norms[:warmup]
    mean = sum(first) / warmup
    var = sum((norm - mean) ** 2 for norm in first) / warmup
    after = list(first)
    for norm in norms[warmup:]:
        z = (norm - mean) / (var**0.5 + eps)
        new = mean + thresh**2 / z * var**0.5 if z > thresh else norm
        mean = alpha * mean + (1 - alpha) * new
        var = alpha * var + (1 - alpha) * (new - mean) ** 2
        after.append(new)
    return after


@pytest.mark.parametrize("options", [{}, {"alpha": 0.5, "z_thresh": 1.0, "warmup": 3, "eps": 0.01}, {"warmup": 1}])
def test_zclip_is_the_recurrence(options: dict[str, Any]) -> None:
    transform = ZClip(**options)
    norms = [*NORMS, 500.0, 3.0]
    expected = zclip_by_hand(norms, transform.alpha, transform.z_thresh, transform.warmup, transform.eps)
    clipped = [new < norm * (1 - 1e-5) for norm, new in zip(norms, expected, strict=True)]
    assert any(clipped) and not all(clipped)
    assert norms_after(transform, norms) == pytest.approx(expected, rel=1e-5)


def test_zclip_defaults() -> None:
    assert ZClip() == ZClip(alpha=0.97, z_thresh=2.5, warmup=25)


def test_zclip_numbers() -> None:
    # With mean 1.5 and standard deviation 0.5, the norm 11.5 has z = 20 and is clipped to 1.5 + 0.5 * 2.5**2 / 20.
    after = norms_after(ZClip(warmup=2, eps=1e-12), [1.0, 2.0, 11.5])
    assert after == pytest.approx([1.0, 2.0, 1.65625], rel=1e-5)


def test_zclip_leaves_what_is_no_outlier() -> None:
    context, clip = Context(), ZClip(warmup=3)
    for step, norm in enumerate((1.0, 2.0, 3.0, 2.5, 0.1)):
        tensors = with_norm(norm, step)
        assert all(torch.equal(a, b) for a, b in zip(clip(tensors, context), tensors, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_zclip_statistics_survive_what_is_not_finite(bad: float, at: int) -> None:
    norms = [1.0, 2.0, 1.5, 2.0, 1.0, 1.5, 9.0]
    context, clip = Context(), ZClip(warmup=3)
    for step, norm in enumerate(norms):
        before = dict(context.state)
        (result,) = clip([torch.tensor([bad if step == at else norm])], context)
        if step == at == 5:
            assert result.isnan().all() and context.state == before
    assert context.state["mean"].isfinite() and context.state["var"].isfinite()
    assert result.item() < 3.0


def test_zclip_whose_warm_up_saw_nothing_finite() -> None:
    context, clip = Context(), ZClip(warmup=2)
    results = [clip([torch.tensor([norm])], context)[0].item() for norm in (math.nan, math.inf, 4.0)]
    assert results[2] == 4.0 and context.state["mean"].item() == 4.0 and context.state["var"].item() == 0.0


@pytest.mark.parametrize("transform", [AutoClip(50), ZClip(warmup=1)], ids=repr)
def test_half_norms_are_float32(transform: Transform) -> None:
    context = Context()
    for size in (1e-3, 300.0):
        (result,) = transform([torch.full((65536,), size).half()], context)
    limit = (0.256 + 76800) / 2 if isinstance(transform, AutoClip) else 0.256
    assert norm_of([result]) == pytest.approx(limit, rel=5e-3)


@pytest.mark.parametrize("transform", [AutoClip(), ZClip(warmup=1)], ids=repr)
def test_the_state_holds_no_graph(transform: Transform) -> None:
    context = Context()
    for _ in range(3):
        transform([torch.ones(2, requires_grad=True) * 2], context)
    assert all(not value.requires_grad for value in context.state.values())


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: AutoClip(101), "AutoClip.percentile must be a number from 0 to 100, got 101"),
        (lambda: AutoClip(math.nan), "AutoClip.percentile must be a number from 0 to 100, got nan"),
        (lambda: AutoClip(history=0), "AutoClip.history must be an integer of at least 1, got 0"),
        (lambda: ZClip(alpha=1.0), "ZClip.alpha must be a number of at least 0 and below 1, got 1.0"),
        (lambda: ZClip(z_thresh=0), "ZClip.z_thresh must be a finite number above 0, got 0"),
        (lambda: ZClip(warmup=0), "ZClip.warmup must be an integer of at least 1, got 0"),
        (lambda: ZClip(eps=-1), "ZClip.eps must be a finite number above 0, got -1"),
    ],
)
def test_refused(make_it: Callable[[], Transform], message: str) -> None:
    with pytest.raises(RuleError) as error:
        make_it()
    assert str(error.value) == message
