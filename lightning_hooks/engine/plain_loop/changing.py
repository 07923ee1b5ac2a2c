"""What changes tensors or calls a user's hooks in a plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.changing.checks import refuse_unsupported
from lightning_hooks.engine.changing.participant import TransformParticipant
from lightning_hooks.engine.changing.resolve import resolve_applies
from lightning_hooks.engine.plain_loop.checks import refuse_other_stages, refuse_without_optimizer
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.user_hooks.participant import UserHooksParticipant, resolve_hooks
from lightning_hooks.rules import Apply, Hook
from lightning_hooks.stats.processes import of_first_rank, rank


def changing_tensors(run: LoopRun, rules: Sequence[Apply], default: str, owner: str, label: str) -> Contribution | None:
    """What transforms bring into a block; None if no rule matches anything.

    Args:
        run: the block.
        rules: the rules of transforms.
        default: the tensor that a rule on modules changes if it names none.
        owner: the class of their callback.
        label: how messages name the callback.

    Raises:
        RuleError, UnsupportedError: a rule is not valid in this model, or with these optimizers.
    """
    for i, rule in enumerate(rules):
        refuse_other_stages(rule.stages, f"{label}apply[{i}].stages")
    if not run.optimizers:
        refuse_without_optimizer(apply=rules, label=label)
    given: list[Any] = [transform for rule in rules for transform in cast(Sequence[Any], rule.transform)]
    random = any(getattr(transform, "random", False) for transform in given)
    seed = torch.initial_seed()
    # Ranks must draw the same random numbers, so take the seed of the first rank.
    seed = of_first_rank(seed) if random else seed
    start = len(run.transforms)
    bound = [each for each in resolve_applies(run.model, rules, seed, start, default, label) if each.targets]
    if not bound:
        return None
    refuse_unsupported(bound, run.optimizers, scaled=False)
    run.transforms += bound
    return Contribution(owner, label, participants=[TransformParticipant(bound, rank=rank())])


def calling_hooks(run: LoopRun, rules: Sequence[Hook], owner: str, label: str) -> Contribution | None:
    """What a user's hooks bring into a block; None if no rule matches anything. Arguments as of `changing_tensors`.

    Raises:
        RuleError: a rule is not valid in this model, or without an optimizer.
    """
    for i, rule in enumerate(rules):
        refuse_other_stages(rule.stages, f"{label}hooks[{i}].stages")
    if not run.optimizers:
        refuse_without_optimizer(hooks=rules, label=label)
    bound = [hook for hook in resolve_hooks(run.model, rules, label) if hook.runners]
    if not bound:
        return None
    participant = UserHooksParticipant(bound, optimizers=lambda: run.optimizers, stays=True)
    return Contribution(owner, label, participants=[participant])
