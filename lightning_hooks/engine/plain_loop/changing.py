"""The participants of a plain loop that change tensors or call a user's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.changing.checks import refuse_unsupported
from lightning_hooks.engine.changing.participant import TransformParticipant
from lightning_hooks.engine.changing.resolve import resolve_applies
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.user_hooks.participant import UserHooksParticipant, resolve_hooks
from lightning_hooks.rules import Apply, Hook
from lightning_hooks.stats.processes import of_first_rank, rank


def changing_participants(
    model: nn.Module, applies: Sequence[Apply], hooks: Sequence[Hook], optimizers: Callable[[], Sequence[Optimizer]]
) -> list[Participant]:
    """The participants of `apply` and `hooks` rules, of those that match anything.

    Args:
        model: the root module.
        applies: the rules of transforms.
        hooks: the rules of a user's hooks.
        optimizers: returns the optimizers of the loop; they are released when the loop is over.

    Raises:
        RuleError, UnsupportedError: a rule is not valid in this model, or with these optimizers.
    """
    participants: list[Participant] = []
    given: list[Any] = [transform for rule in applies for transform in cast(Iterable[Any], rule.transform)]
    random = any(getattr(transform, "random", False) for transform in given)
    seed = torch.initial_seed()
    # Ranks must draw the same random numbers, so take the seed of the first rank.
    seed = of_first_rank(seed) if random else seed
    if transforms := [bound for bound in resolve_applies(model, applies, seed) if bound.targets]:
        refuse_unsupported(transforms, optimizers(), scaled=False)
        participants.append(TransformParticipant(transforms, rank=rank()))
    if bound := [hook for hook in resolve_hooks(model, hooks) if hook.runners]:
        participants.append(UserHooksParticipant(bound, optimizers=optimizers, stays=True))
    return participants
