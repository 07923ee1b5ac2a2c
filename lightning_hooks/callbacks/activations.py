"""`ActivationTransforms`: activations changed by rules."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from lightning.pytorch import Trainer
from typing_extensions import override

from lightning_hooks.callbacks._applies import AppliesRules
from lightning_hooks.engine.change.activations import ActivationChanger
from lightning_hooks.engine.change.bound import BoundTransform
from lightning_hooks.engine.change.gradients import GradientChanger
from lightning_hooks.errors import RuleError
from lightning_hooks.rules import Apply


class ActivationTransforms(AppliesRules):
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
        >>> from lightning_hooks import Apply, Zero
        >>> rules = [Apply(Zero(index=[3]), modules="encoder.0", stages=["train", "validate"])]
        >>> ActivationTransforms(apply=rules).apply[0].stages
        ('train', 'validate')
    """

    default_tensor: ClassVar[str] = "output"

    @override
    def _refuse(self, rule: Apply, where: str) -> None:
        if rule.params is not None:
            raise RuleError(f"{where}.params: a parameter has no activation; name modules, or use GradientTransforms")
        if rule.acts_at(self.default_tensor) != "forward":
            raise RuleError(
                f"{where}.tensor: {rule.tensor!r} is a gradient, and ActivationTransforms changes activations ('output', "
                "'input'); use GradientTransforms"
            )

    @property
    @override
    def _stages(self) -> Collection[str]:
        return {stage for rule in self.apply for stage in rule.stages or ("train",)}

    @override
    def _changer(self, links: list[BoundTransform], trainer: Trainer) -> GradientChanger:
        return ActivationChanger(links, rank=trainer.global_rank)
