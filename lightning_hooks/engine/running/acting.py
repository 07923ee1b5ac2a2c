"""The participants that act in a step, sorted by what they do, so that the step calls only those that do something."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from lightning_hooks.engine.participants.participant import Active, Participant

_METHODS: Final = (
    "begin_step",
    "begin_batch",
    "saw_batch",
    "saw_loss",
    "look_at_loss",
    "before_step",
    "final",
    "before_update",
    "after_update",
    "take_reports",
    "end_step",
)
"""The methods of `Participant` that are called in each step, and do nothing unless a class defines them."""


class Acting:
    """The participants that act in steps of one kind. Whether a participant does something is decided once for each kind.

    Args:
        active: the participants, each with its key.

    Attributes:
        active: as given.
        members: the participants.
        does: by the name of a method, the participants that do something in it, in order.
        serving: those that note for others what these need in `before_step`.
        reporting: those that may write the reports of transforms.
        registering: those that register hooks of their own, each with its key.
        hooked: those that decide which hooks modules and gradients of parameters have, each with its key. Equal for kinds of
            steps with the same hooks.
        reads_updates: whether one of them acts in `before_update` and `after_update`.
        acts_before: whether one of them reads or changes anything in `before_step`.

    Example:
        >>> class Counts(Participant):
        ...     def end_step(self):
        ...         print("a step has ended")
        >>> acting = Acting(((Counts(), "always"), (Participant(), "always")))
        >>> len(acting.members), [type(each).__name__ for each in acting.does["end_step"]], acting.does["final"]
        (2, ['Counts'], ())
    """

    __slots__ = (
        "active",
        "acts_before",
        "does",
        "hooked",
        "members",
        "reads_updates",
        "registering",
        "reporting",
        "serving",
    )

    def __init__(self, active: Active) -> None:
        participants = [participant for participant, _ in active]
        self.active = active
        self.members = frozenset(participants)
        defined = [(each, _defined_by(each)) for each in participants]
        self.does = {name: tuple([each for each, names in defined if name in names]) for name in _METHODS}
        self.serving = tuple([each for each in participants if each.serves_all])
        self.reporting = tuple([each for each in participants if defines(each, "reports", "reports_now")])
        self.registering: Active = tuple([pair for pair in active if defines(pair[0], "register")])
        self.hooked: Active = tuple([pair for pair in active if defines(pair[0], "actions", "module_rules")])
        self.reads_updates = any(each.reads_updates for each in participants)
        self.acts_before = any(each.acts_before for each in participants)


def defines(participant: Participant, *names: str) -> bool:
    """Whether a participant has one of some methods or attributes of its own, in place of that of `Participant`."""
    return not _defined_by(participant).isdisjoint(names)


def _defined_by(participant: Participant) -> set[str]:
    """The names of the attributes of a participant, and of what its class defines in place of `Participant`."""
    kind: Any = type(participant)
    return vars(participant).keys() | _defined_by_class(kind)


@cache
def _defined_by_class(kind: Any) -> frozenset[str]:
    names = (name for name in vars(Participant) if not name.startswith("_"))
    return frozenset(name for name in names if getattr(kind, name) is not getattr(Participant, name))


NOBODY: Final = Acting(())
"""In a step in which no participant acts, and between two steps."""
