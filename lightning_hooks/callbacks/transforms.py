"""`GradientTransforms` and `ActivationTransforms`: change tensors by `Apply` rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._changing import Changing
from lightning_hooks.engine.changing.participant import TransformParticipant
from lightning_hooks.errors import RuleError
from lightning_hooks.rules import Apply
from lightning_hooks.rules.reading import as_rules


class GradientTransforms(HooksCallback):
    """Change gradients by rules, in the order written.

    A rule on `params` acts on the gradient of the optimizer step (`when="step"`: accumulated, unscaled, averaged over ranks,
    before Lightning's own clipping) or on each gradient as backward computes it (`when="backward"`). A rule on `modules` acts
    on the gradient that flows through the module.

    Every transform reports the gradient norm before and after, the share of reported steps on which it changed anything,
    and the cosine between before and after: in the event of a `StatsMonitor`, or every `log_every_n_steps` without one.

    Args:
        apply: rules, or mappings with the fields of a rule.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.
        UnsupportedError: at fit start, a rule that cannot be correct under a loss scaler.

    Example:
        >>> from lightning_hooks import Apply
        >>> from lightning_hooks.transforms import ClipByGlobalNorm
        >>> GradientTransforms(apply=[Apply(ClipByGlobalNorm(max_norm=1.0), params="*")]).apply[0].params
        '*'
    """

    _job: Changing

    def __init__(self, apply: Sequence[Mapping[str, Any] | Apply]) -> None:
        super().__init__(Changing(self, "output_grad"))
        self.apply = _as_applies(apply)
        for i, rule in enumerate(self.apply):
            if rule.acts_at() == "forward":
                raise RuleError(
                    f"apply[{i}].tensor: {rule.tensor!r} is an activation, and GradientTransforms changes gradients; use "
                    "ActivationTransforms"
                )

    def __repr__(self) -> str:
        """The rules."""
        return f"{type(self).__name__}(apply={self.apply!r})"

    @property
    def participant(self) -> TransformParticipant | None:
        """The transforms in use during a run."""
        return self._job.participant


class ActivationTransforms(HooksCallback):
    """Change outputs or inputs of modules by rules, in the order written.

    Autograd differentiates through the change: elements set to zero get no gradient, scaled elements get a scaled gradient.
    A rule acts in training only, unless its `stages` name others; then validation also uses the changed model. The sanity
    check before training is never changed.

    Every transform reports norm before and after, share of steps on which it acted, and cosine, as in
    `GradientTransforms`.

    Args:
        apply: rules on modules, or mappings with the fields of a rule; `tensor` is `output` by default.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.

    Example:
        >>> from lightning_hooks import Apply
        >>> from lightning_hooks.transforms import Zero
        >>> rules = [Apply(Zero(index=[3]), modules="encoder.0", stages=["train", "validate"])]
        >>> ActivationTransforms(apply=rules).apply[0].stages
        ('train', 'validate')
    """

    _job: Changing

    def __init__(self, apply: Sequence[Mapping[str, Any] | Apply]) -> None:
        super().__init__(Changing(self, "output"))
        self.apply = _as_applies(apply)
        for i, rule in enumerate(self.apply):
            if rule.params is not None:
                raise RuleError(f"apply[{i}].params: a parameter has no activation; name modules, or use GradientTransforms")
            if rule.acts_at("output") != "forward":
                raise RuleError(
                    f"apply[{i}].tensor: {rule.tensor!r} is a gradient, and ActivationTransforms changes activations "
                    "('output', 'input'); use GradientTransforms"
                )

    def __repr__(self) -> str:
        """The rules."""
        return f"{type(self).__name__}(apply={self.apply!r})"

    @property
    def participant(self) -> TransformParticipant | None:
        """The transforms in use during a run."""
        return self._job.participant


def _as_applies(apply: Any) -> list[Apply]:
    """The option `apply`.

    Raises:
        RuleError: a rule is invalid, or there is none.
    """
    rules = as_rules(Apply, apply, "apply")
    if not rules:
        raise RuleError("apply is an empty list; give at least one rule")
    return rules
