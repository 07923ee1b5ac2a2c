"""Clipping to a limit that depends on the norms of previous steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.saved_state import DamagedState, read_tensor, refuse_other_keys
from lightning_hooks.transforms._batch import over_values
from lightning_hooks.transforms._check import check_count, check_finite, check_share, is_number
from lightning_hooks.transforms._contract import unchanged
from lightning_hooks.transforms._norms import coefficient, times, total_norm
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class AutoClip(Transform):
    """Scale all tensors together down to a percentile of the norms seen so far, including the current one.

    `x * min(1, limit / (norm(all x) + 1e-6))`, where `limit` is the percentile of the history, interpolated linearly.
    A non-finite norm does not enter the history. The history stays on the device, and the host does not wait for it. Each
    rule has its own history: use one rule per optimizer.

    Source: Seetharaman et al., "AutoClip: Adaptive Gradient Clipping for Source Separation Networks", 2020.

    Args:
        percentile: from 0, which clips to the minimum norm so far, to 100, which scales only a new maximum, and that by
            norm / (norm + 1e-6); 10 by default.
        history: the number of most recent norms to keep; None, the default, for all, as in the source. A norm takes four
            bytes, and all norms are sorted at every step: set a limit in CPU runs of more than about ten thousand steps.

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
    _: KW_ONLY
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
            norms = _append_norm(norm, context.state, self.history)
            # Do not use torch.nanquantile, which takes at most 16 million numbers.
            return times(values, coefficient(norm, _percentile(norms, self.percentile)), owned)

        return over_values(tensors, context, change)

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """Check the norms of the previous steps; before the first step the state is empty."""
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
    initialise the averages. A non-finite norm does not enter the averages. They stay on the device, and the host does not wait
    for them. Each rule has its own averages: use one rule per optimizer.

    Source: Kumar et al., "ZClip: Adaptive Spike Mitigation for LLM Pre-Training", 2025, arXiv 2504.02507. Their code also
    clips to a norm of 1: for that, put `ClipByGlobalNorm(1.0)` after this transform.

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
    _: KW_ONLY
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
            new_mean = torch.lerp(clipped, mean, self.alpha)
            new_var = torch.lerp((clipped - new_mean).square(), var, self.alpha)
            # A non-finite norm does not change the averages. If all norms of the warm-up were non-finite, the averages start
            # with this norm.
            is_finite, is_first = norm.isfinite(), mean.isnan()
            context.state["mean"] = torch.where(is_finite, torch.where(is_first, clipped, new_mean), mean)
            context.state["var"] = torch.where(is_finite, torch.where(is_first, 0.0, new_var), var)
            # If the norm is not an outlier, the factor is exactly 1 and the tensors stay bit-equal.
            return times(values, torch.where(norm <= limit, 1.0, coefficient(norm, limit)), owned)

        return over_values(tensors, context, change)

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """Check the norms of the previous steps during the warm-up, and the mean and the variance after the warm-up."""
        if "norms" in state:
            refuse_other_keys(state, "norms")
            _check_norms(state["norms"], self.warmup - 1)
        elif state:
            refuse_other_keys(state, "mean", "var")
            mean, var = (_not_negative(read_tensor(state[key], f"state[{key!r}]", ()), key) for key in ("mean", "var"))
            if bool(var.isnan() & ~mean.isnan()):
                raise DamagedState("state['var'] must be a number where state['mean'] is one, got nan")

    def _warm_up(self, norm: Tensor, state: dict[str, Any]) -> None:
        norms = _append_norm(norm, state)
        # End the warm-up after a number of steps, which the host knows without waiting for the device.
        if len(norms) >= self.warmup:
            state["mean"] = norms.nanmean()
            state["var"] = (norms - state["mean"]).square().nanmean()
            del state["norms"]

    def _limit(self, norm: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """The norm to scale the tensors down to; infinity if their norm is not an outlier."""
        std = var.sqrt()
        z = (norm - mean) / (std + self.eps)
        # If the norm is NaN, the limit must be NaN, so that the tensors become NaN. If the mean is NaN, no norm was finite yet:
        # z is NaN, the comparison is False, and nothing is clipped.
        return torch.where((z > self.z_thresh) | norm.isnan(), mean + std * self.z_thresh**2 / z, torch.inf)


def _check_norms(norms: Any, most: int | None) -> None:
    """Raise if `norms` is not a history of `_append_norm`: a vector of 1 to `most` norms, with NaN for a non-finite norm."""
    number = _not_negative(read_tensor(norms, "state['norms']"), "norms").numel()
    if norms.dim() != 1:
        raise DamagedState(f"state['norms'] must have 1 dimension, got {norms.dim()}")
    if number < 1 or (most is not None and number > most):
        bound = "at least 1 number" if most is None else f"1 to {most} numbers"
        raise DamagedState(f"state['norms'] must have {bound}, got {number}")
    if bool(norms.isinf().any()):
        raise DamagedState("state['norms'] must be finite or NaN, got inf")


def _not_negative(values: Tensor, key: str) -> Tensor:
    """The values; raise if one of them is negative. NaN is allowed."""
    if bool((values < 0).any()):
        raise DamagedState(f"state[{key!r}] must not be negative, got {float(values.min()):g}")
    return values


def _append_norm(norm: Tensor, state: dict[str, Any], most: int | None = None) -> Tensor:
    """Append a norm to the history in the state, drop all but the last `most` norms, and return the history."""
    # Store NaN for a non-finite norm: to leave it out, the host would have to read its value.
    history = torch.where(norm.isfinite(), norm, torch.nan).detach().reshape(1)
    if "norms" in state:
        previous = state["norms"].to(norm)
        n_dropped = 0 if most is None else max(0, len(previous) + 1 - most)
        history = torch.cat([previous[n_dropped:], history])
    state["norms"] = history
    return history


def _percentile(norms: Tensor, percentile: float) -> Tensor:
    """The percentile of the norms that are not NaN, interpolated linearly; NaN if all are NaN."""
    # sort() puts NaN last. The index of the last number is a tensor: reading it would wait for the device.
    ordered, last = norms.sort().values, (~norms.isnan()).sum() - 1
    index = last * (percentile / 100)
    low = index.floor().long().clamp(min=0)
    high = torch.minimum(low + 1, last).clamp(min=0)
    below, above = ordered.index_select(0, low.reshape(1)), ordered.index_select(0, high.reshape(1))
    return torch.lerp(below, above, (index - low).to(norms.dtype)).reshape(())
