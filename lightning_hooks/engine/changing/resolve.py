"""Resolves `Apply` rules against a model: finds the targets of each transform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from torch import nn

from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.engine.participants.compiled import compiled_modules, refuse_compiled
from lightning_hooks.errors import RuleError
from lightning_hooks.rules import Apply
from lightning_hooks.rules.patterns import matched_by

# Keep the random streams of transforms apart. Any large prime works.
_SEED_STRIDE: Final = 7919


def resolve_applies(
    model: nn.Module,
    rules: Sequence[Apply],
    seed: int = 0,
    start: int = 0,
    default: str = "output_grad",
    where: str = "",
) -> list[BoundTransform]:
    """The transforms of apply rules, bound to a model.

    Args:
        model: the root module.
        rules: the rules in order.
        seed: the seed of the random transforms; equal on all ranks.
        start: the index of the first transform, after those of earlier callbacks.
        default: the tensor that a rule on modules changes if it names none.
        where: a prefix for the names of rules in messages.

    Raises:
        RuleError: a rule that is invalid here, or matches nothing.
    """
    transforms: list[BoundTransform] = []
    for here, rule, targets in matched_by(model, rules, f"{where}apply"):
        tensor, when = rule.acts_on(default), rule.acts_at(default)
        # The constructor of the rule has normalised `transform` to a tuple.
        for transform in cast(tuple[Any, ...], rule.transform):
            _refuse_unsuitable(transform, rule, when, here)
            index = start + len(transforms)
            transforms.append(
                BoundTransform(index, rule, transform, targets, seed + _SEED_STRIDE * index, f"{here}.transform", tensor, when)
            )
        if rule.modules is not None:
            refuse_compiled(compiled_modules(model), transforms[-1].module_rule)
    return transforms


def _refuse_unsuitable(transform: Any, rule: Apply, when: str, here: str) -> None:
    """Refuse a transform whose needs, which its attributes declare, the rule does not meet."""
    name = type(transform).__name__
    if getattr(transform, "needs_step", False) and when != "step":
        raise RuleError(f"{here}: {name} acts on the optimizer's step as a whole; use it at when='step' on params")
    if getattr(transform, "needs_params", False) and rule.params is None:
        raise RuleError(f"{here}: {name} needs the parameter behind each gradient; use it on params")
    if when == "forward" and not getattr(transform, "on_activations", True):
        raise RuleError(f"{here}: {name} has no meaning on activations; use it on gradients, in GradientTransforms")
    if when != "step" and getattr(transform, "needs_all", False):
        raise RuleError(
            f"{here}: {name} needs all gradients at once, but in {when} they come one at a time; "
            "use it at when='step' on params, or ClipByNorm for each tensor"
        )
