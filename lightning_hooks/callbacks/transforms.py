"""`GradientTransforms`: gradients changed by rules."""

from __future__ import annotations

from typing import ClassVar
from weakref import ref

from lightning.pytorch import Trainer
from torch import Tensor
from typing_extensions import override

from lightning_hooks.callbacks._applies import AppliesRules
from lightning_hooks.callbacks._trainer import loss_scale
from lightning_hooks.engine.change.bound import BoundTransform
from lightning_hooks.engine.change.gradients import GradientChanger
from lightning_hooks.errors import RuleError
from lightning_hooks.rules import Apply


class GradientTransforms(AppliesRules):
    """Change gradients by rules, in the order written.

    A rule on `params` acts on the gradient of the optimizer step (`when="step"`: accumulated, unscaled, averaged over ranks,
    before Lightning's own clipping) or on each gradient as backward makes it (`when="backward"`). A rule on `modules` acts on
    the gradient that flows through the module.

    Every transform reports the gradient norm before and after, the share of reported steps on which it changed anything,
    and the cosine between before and after: in the event of a `StatsMonitor`, or every `log_every_n_steps` without one.

    Args:
        apply: rules, or mappings with the fields of a rule.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.
        UnsupportedError: at fit start, a rule that cannot be correct under a loss scaler.

    Example:
        >>> from lightning_hooks import Apply, ClipByGlobalNorm
        >>> GradientTransforms(apply=[Apply(ClipByGlobalNorm(max_norm=1.0), params="*")]).apply[0].params
        '*'
    """

    default_tensor: ClassVar[str] = "output_grad"

    @override
    def _refuse(self, rule: Apply, where: str) -> None:
        if rule.acts_at() == "forward":
            raise RuleError(
                f"{where}.tensor: {rule.tensor!r} is an activation, and GradientTransforms changes gradients; use "
                "ActivationTransforms"
            )

    @override
    def _changer(self, links: list[BoundTransform], trainer: Trainer) -> GradientChanger:
        known = ref(trainer)

        def scale() -> Tensor | None:
            alive = known()
            return None if alive is None else loss_scale(alive)

        changer = GradientChanger(links, scale=scale, rank=trainer.global_rank)
        changer.refuse_skipping(trainer.optimizers)
        changer.refuse_sharded()
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            changer.refuse_under_scaler(trainer.optimizers)
        return changer
