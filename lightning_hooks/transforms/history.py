"""Limits that come from the norms of the steps before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.saved_state import DamagedState, read_tensor, refuse_other_keys
from lightning_hooks.transforms._batch import over_values
from lightning_hooks.transforms._behind import unchanged
from lightning_hooks.transforms._check import check_count, check_finite, check_share, is_number
from lightning_hooks.transforms._norms import coefficient, times, total_norm
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class AutoClip(Transform):
    """Scale all tensors together down to a percentile of the norms seen so far, including the current one.

    `x * min(1, limit / (norm(all x) + 1e-6))`, where `limit` is the percentile of the history, interpolated linearly.
    A non-finite norm does not enter the history. The history stays on the device, and the host does not wait for it. It
    belongs to one rule: use one rule per optimizer.

    Source: Seetharaman et al., "AutoClip: Adaptive Gradient Clipping for Source Separation Networks", 2020.

    Args:
        percentile: from 0, which clips to the minimum norm so far, to 100, which scales only a new maximum, and that by
            norm / (norm + 1e-6); 10 by default.
        history: how many of the last norms to keep; None, the default, for all, as in the source. Each takes four bytes, and
            all are sorted at every step: set a limit in CPU runs of more than about ten thousand steps.

    Raises:
        RuleError: if `percentile` or `history` is not in its range.

    Example:
        >>> clip, context = AutoClip(percentile=50), Context()
        >>> [round(clip([torch.tensor([norm])], context)[0].item(), 3) for norm in (1.0, 3.0, 8.0)]
        [1.0, 2.0, 3.0]
    """

    keeps_direction: ClassVar[bool] = True
    needs_all: ClassVar[bool] = True

    percentile: float = 10.0
    history: int | None = None

    def __post_init__(self) -> None:
        if not is_number(self.percentile) or not 0 <= self.percentile <= 100:
            raise RuleError(f"AutoClip.percentile must be a number from 0 to 100, got {shown(self.percentile)}")
        if self.history is not None:
            check_count(self, "history", at_least=1)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """All tensors, scaled by one coefficient where their common norm is above the percentile."""

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            norm = total_norm(values)
            seen = _noted(norm, context.state, self.history)
            # Sorted here and not in torch.nanquantile, which takes at most 16 million numbers.
            return times(values, coefficient(norm, _percentile(seen, self.percentile)), owned)

        return over_values(tensors, context, change)

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """The norms of the steps so far, after the first one."""
        refuse_other_keys(state, "norms")
        if state:
            _check_norms(state["norms"], self.history)


@dataclass(frozen=True)
class ZClip(Transform):
    """Scale all tensors together down when their norm is an outlier compared with previous steps.

    With the moving mean `m` and standard deviation `s` of the norms, `z = (norm - m) / (s + eps)`. Where
    `z > z_thresh`, the norm is scaled to `m + s * z_thresh**2 / z`: the larger the outlier, the closer to the mean.
    Then both are updated with the norm n after clipping: `m = alpha * m + (1 - alpha) * n`,
    `s**2 = alpha * s**2 + (1 - alpha) * (n - m)**2`. The first `warmup` steps are not clipped; their mean and variance
    initialise the averages. A non-finite norm does not enter them. They stay on the device, and the host does not wait for
    them. They belong to one rule: use one rule per optimizer.

    Source: Kumar et al., "ZClip: Adaptive Spike Mitigation for LLM Pre-Training", 2025, arXiv 2504.02507. Their code also
    clips to a norm of 1: put `ClipByGlobalNorm(1.0)` after it for that.

    Args:
        alpha: the weight of the past in the averages; at least 0 and below 1, 0.97 by default.
        z_thresh: how many standard deviations above the mean a norm must be to be an outlier; above 0, 2.5 by default.
        warmup: how many steps to observe before the first clip; at least 1, 25 by default.
        eps: added to the standard deviation, in units of the norm; above 0, 1e-6 by default.

    Raises:
        RuleError: if a field is not in its range.

    Example:
        >>> clip, context = ZClip(warmup=4), Context()
        >>> norms = [1.0, 2.0, 1.0, 2.0, 1.5, 50.0]
        >>> [round(clip([torch.tensor([norm])], context)[0].item(), 2) for norm in norms]
        [1.0, 2.0, 1.0, 2.0, 1.5, 1.53]
    """

    keeps_direction: ClassVar[bool] = True
    needs_all: ClassVar[bool] = True

    alpha: float = 0.97
    z_thresh: float = 2.5
    warmup: int = 25
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_share(self, "alpha")
        check_finite(self, "z_thresh", above=0)
        check_count(self, "warmup", at_least=1)
        check_finite(self, "eps", above=0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """All tensors, scaled by one coefficient where their common norm is an outlier."""

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            norm = total_norm(values)
            if "mean" not in context.state:
                self._warm_up(norm, context.state)
                return unchanged(values, owned)
            mean, var = (context.state[key].to(norm) for key in ("mean", "var"))
            limit = self._limit(norm, mean, var)
            clipped = torch.minimum(norm, limit).detach()
            moved = torch.lerp(clipped, mean, self.alpha)
            spread = torch.lerp((clipped - moved).square(), var, self.alpha)
            # What is not finite changes nothing. Where the whole warm-up was not, the average starts now.
            known, fresh = norm.isfinite(), mean.isnan()
            context.state["mean"] = torch.where(known, torch.where(fresh, clipped, moved), mean)
            context.state["var"] = torch.where(known, torch.where(fresh, 0.0, spread), var)
            # Exactly 1 for what is not an outlier, so that it keeps its bits.
            return times(values, torch.where(norm <= limit, 1.0, coefficient(norm, limit)), owned)

        return over_values(tensors, context, change)

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """The norms of the steps so far in the warm-up, after it the mean and the variance."""
        if "norms" in state:
            refuse_other_keys(state, "norms")
            _check_norms(state["norms"], self.warmup - 1)
        elif state:
            refuse_other_keys(state, "mean", "var")
            mean, var = (_not_negative(read_tensor(state[key], f"state[{key!r}]", ()), key) for key in ("mean", "var"))
            if bool(var.isnan() & ~mean.isnan()):
                raise DamagedState("state['var'] must be a number where state['mean'] is one, got nan")

    def _warm_up(self, norm: Tensor, state: dict[str, Any]) -> None:
        seen = _noted(norm, state)
        # The number of steps is known on the host, so the end of the warm-up needs no look at the device.
        if len(seen) >= self.warmup:
            state["mean"] = seen.nanmean()
            state["var"] = (seen - state["mean"]).square().nanmean()
            del state["norms"]

    def _limit(self, norm: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """The norm to bring this one down to; infinity if it is not an outlier."""
        std = var.sqrt()
        z = (norm - mean) / (std + self.eps)
        # A NaN in the norm passes the comparison to the factor; one in the mean means that nothing is known yet.
        return torch.where((z > self.z_thresh) | norm.isnan(), mean + std * self.z_thresh**2 / z, torch.inf)


def _check_norms(norms: Any, most: int | None) -> None:
    """Refuse what `_noted` does not make: at most so many norms, in which NaN stands for those that were not finite."""
    number = _not_negative(read_tensor(norms, "state['norms']"), "norms").numel()
    if norms.dim() != 1:
        raise DamagedState(f"state['norms'] must have 1 dimension, got {norms.dim()}")
    if number < 1 or (most is not None and number > most):
        bound = "at least 1 number" if most is None else f"1 to {most} numbers"
        raise DamagedState(f"state['norms'] must have {bound}, got {number}")
    if bool(norms.isinf().any()):
        raise DamagedState("state['norms'] must be finite or NaN, got inf")


def _not_negative(values: Tensor, key: str) -> Tensor:
    """The values, or an error; a NaN is not negative."""
    if bool((values < 0).any()):
        raise DamagedState(f"state[{key!r}] must not be negative, got {float(values.min()):g}")
    return values


def _noted(norm: Tensor, state: dict[str, Any], most: int | None = None) -> Tensor:
    """The norms of the steps so far, this one included, which become the state; only the last ones where there is a limit."""
    # A NaN stands for what is not finite, since skipping it would need its value on the host.
    seen = torch.where(norm.isfinite(), norm, torch.nan).detach().reshape(1)
    if "norms" in state:
        before = state["norms"].to(norm)
        forgotten = 0 if most is None else max(0, len(before) + 1 - most)
        seen = torch.cat([before[forgotten:], seen])
    state["norms"] = seen
    return seen


def _percentile(norms: Tensor, percentile: float) -> Tensor:
    """The percentile of those that are not NaN, interpolated linearly; NaN where there are none."""
    # NaN sort last. Indices are tensors: reading how many there are would wait for the device.
    ordered, last = norms.sort().values, (~norms.isnan()).sum() - 1
    index = last * (percentile / 100)
    low = index.floor().long().clamp(min=0)
    high = torch.minimum(low + 1, last).clamp(min=0)
    below, above = ordered.index_select(0, low.reshape(1)), ordered.index_select(0, high.reshape(1))
    return torch.lerp(below, above, (index - low).to(norms.dtype)).reshape(())
