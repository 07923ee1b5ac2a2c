"""`ActivationTransforms`: activations changed by rules."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from lightning.pytorch import Trainer
from typing_extensions import override

from lightning_hooks.callbacks._applies import AppliesRules
from lightning_hooks.engine.activations import ActivationChanger
from lightning_hooks.engine.changer import Changer
from lightning_hooks.engine.links import Link
from lightning_hooks.errors import RuleError
from lightning_hooks.rules import Apply


class ActivationTransforms(AppliesRules):
    """Change what modules return, or are given, by rules, in the order written.

    Gradients flow through the change as autograd gives them: what is set to zero gets no gradient, what is scaled gets it
    scaled. A rule acts in training only unless its `stages` name other ones; validation then sees the changed model too. The
    sanity check before training is left alone.

    Every link reports, as those of `GradientTransforms` do, norm before and after, share of steps acted, and cosine.

    Args:
        apply: rules on modules, or mappings that hold a rule's fields; `tensor` is `output` by default.

    Raises:
        RuleError: a value that cannot be meant; at fit start also a rule that matches nothing.

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
    def _changer(self, links: list[Link], trainer: Trainer) -> Changer:
        return ActivationChanger(links, rank=trainer.global_rank)
